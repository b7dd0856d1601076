"""Rules that follow from numbers alone: no clock, no network, no hidden randomness.

A folder for each question; ``ARCHITECTURE.md`` lists them ("The folders of the core"). What lies beside them is used by
all: ``types`` and ``outcomes`` are the words, ``rights`` those of service classes, ``deadline`` says when what is due,
and the rest is small arithmetic.
"""
