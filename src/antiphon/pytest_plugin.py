"""Pytest plugin: names the installed Antiphon in the report's header."""

from __future__ import annotations

from antiphon._version import __version__


def pytest_report_header() -> str:
    """The line that pytest prints above the tests."""
    return f"antiphon: {__version__}"
