"""The shell. Every process of ours begins here: what has to be said before numpy and httpx are imported is said here.

A prediction is one product of a small matrix and a vector. With a thread per core it costs milliseconds on a busy
machine instead of 60 us: the library's threads wait for each other in a loop.

httpx loads its own command line where it finds what that needs (colours, tables, highlighting): a twentieth of the CPU
that a process of ours takes to start. Without it, httpx does all the rest.
"""

import os
import sys

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type] # importing it raises what httpx expects
