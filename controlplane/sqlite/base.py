"""SQLite that takes the numbers that PostgreSQL takes, and is not asked what is known."""

from __future__ import annotations

from django.db.backends.base.operations import BaseDatabaseOperations
from django.db.backends.sqlite3 import base, features, operations


class DatabaseFeatures(features.DatabaseFeatures):
    # Django would ask inside a transaction, which here waits for whoever writes, and would take "locked" for a no.
    # The oldest SQLite that Django takes has JSON, unless somebody compiled it out.
    supports_json_field = True


class DatabaseOperations(operations.DatabaseOperations):
    def integer_field_range(self, internal_type: str) -> tuple[int, int]:
        """SQLite would store any 64 bits in any column: a catalog that it took PostgreSQL might refuse."""
        return BaseDatabaseOperations.integer_field_range(self, internal_type)


class DatabaseWrapper(base.DatabaseWrapper):
    features_class = DatabaseFeatures
    ops_class = DatabaseOperations
