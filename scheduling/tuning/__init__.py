"""The strategic loop (EWSJF 3.1, 4.4): which parameters would have served recent traffic better?

``space`` says what may be tuned, ``reward`` what better means, ``optimizer`` proposes (Gaussian process, ask and tell),
``offline`` tries a proposal on a recording in the simulator.
"""
