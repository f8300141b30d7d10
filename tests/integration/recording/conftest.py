"""Fixtures of the recording tests."""

from tests.integration.recording.kit import home

__all__ = ["home"]
