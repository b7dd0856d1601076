"""Files and batches: work that may wait, done on capacity that is idle."""
