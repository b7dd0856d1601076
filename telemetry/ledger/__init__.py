"""One row per request: written, added up, metered, listed and explained."""
