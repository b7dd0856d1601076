"""REST of the catalog."""
