"""Prompts as arrays: embeddings, the window of past prompts, a learned classifier, tokenizers.

One thread is enough, and many are worse (see ``controlplane``): whoever imports this first, outside our own processes,
gets it so.
"""

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
