"""The shell. Every process of ours begins here: what has to be said before numpy is imported is said here.

A prediction is one product of a small matrix and a vector. With a thread per core it costs milliseconds on a busy
machine instead of 60 us: the library's threads wait for each other in a loop.
"""

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
