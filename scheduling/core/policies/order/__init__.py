"""Ordering policies: which request goes next. One file each; the registry finds every module of this package."""
