"""Antiphon for the frameworks people already use. Each module is an extra of its own and is imported late."""
