"""The reference model: what each Redis script means, in Python, with a clock that is handed in. For tests only."""
