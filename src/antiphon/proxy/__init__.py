"""The proxy: model calls and MCP messages of any program, recorded, replayed and guarded on their way."""
