"""Ordering policies: who goes next. One file each; the registry finds every module of this package by itself."""
