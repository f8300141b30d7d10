"""The guarded call: one pipeline for tool calls, in a synchronous and an asynchronous face."""
