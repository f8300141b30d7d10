"""Benchmarks: our calls and the peers' calls, measured side by side in one run (see ``bench/README.md``)."""

from bench._harness import Case, Context, Race, Timing
from bench._report import Row

__all__ = ["Case", "Context", "Race", "Row", "Timing"]
