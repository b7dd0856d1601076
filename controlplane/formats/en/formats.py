"""Dates as the console writes them, with the seconds: a ledger without them shows no order."""

DATE_FORMAT = "j M Y"
TIME_FORMAT = "H:i:s"
DATETIME_FORMAT = "j M Y, H:i:s"
