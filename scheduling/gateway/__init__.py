"""``/v1``: a request from its first byte to its end (``request_handler.py``, then ``lifecycle.py``)."""
