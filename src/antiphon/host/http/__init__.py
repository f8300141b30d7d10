CLOSING = "closing"
"""In the state of an application: what it does when its server begins to end."""
