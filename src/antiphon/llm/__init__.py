"""LLM calls, purely: provider requests to canonical requests and keys, answers to summaries and refusal kinds."""
