"""Which request is next? Orderings (``order/``), modifiers (``queues/``), routings, and what all are made with."""
