"""Django's SQLite with PostgreSQL's bounds (:mod:`controlplane.sqlite.base`, the name that Django asks for)."""
