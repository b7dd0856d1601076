"""Dates as the console writes them, with seconds: a ledger without them shows no order. The zone, UTC, is named."""

DATE_FORMAT = "j M Y"
TIME_FORMAT = "H:i:s"
DATETIME_FORMAT = "j M Y, H:i:s T"
