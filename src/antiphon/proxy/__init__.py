"""A proxy that records, replays and guards the model calls and MCP messages of any program."""
