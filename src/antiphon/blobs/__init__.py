"""Where large payloads and artifacts are kept: a local folder, an S3-compatible bucket, or a bucket with an outbox."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.blobs.local import LocalBlobs
    from antiphon.blobs.outbox import OutboxBlobs
    from antiphon.blobs.s3 import S3Blobs

_MODULES = {"LocalBlobs": "local", "OutboxBlobs": "outbox", "S3Blobs": "s3"}

__all__ = ["LocalBlobs", "OutboxBlobs", "S3Blobs"]


def __getattr__(name: str) -> Any:
    """Import a back-end on first use."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
