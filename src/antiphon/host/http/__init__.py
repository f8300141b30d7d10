CLOSING = "closing"
"""Key in the application state: the callback for the start of shutdown."""
