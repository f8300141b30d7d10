"""Frozen value types of the wire and file format. Imports nothing else of Antiphon but its errors."""
