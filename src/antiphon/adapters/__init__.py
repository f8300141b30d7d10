"""Antiphon for popular frameworks; each module is its own extra and is imported lazily."""
