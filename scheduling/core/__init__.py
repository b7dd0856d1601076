"""Rules that follow from numbers alone: no clock, no network, no hidden randomness."""
