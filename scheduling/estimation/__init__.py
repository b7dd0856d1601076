"""Prompts as arrays: embeddings, the window of past prompts, a learned classifier, tokenizers.

One search is a product of a small matrix and a vector: threads cost more than they bring, and would take the cores of
other processes. The library reads this once, when it is first imported.
"""

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
