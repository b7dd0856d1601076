"""A pool's leader: elected among processes, it decides which request runs next, and where (``term.py``)."""
