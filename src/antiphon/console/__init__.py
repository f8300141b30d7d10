"""The console: pages that show recorded runs, on top of the HTTP API."""
