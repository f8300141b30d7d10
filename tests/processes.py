"""Processes of a fleet: forked from a server that has imported what they need and holds nothing else.

A process that imports everything itself costs half a second of work before its first line.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from typing import Any

forked = multiprocessing.get_context("forkserver")
forked.set_forkserver_preload(
    [
        "pytest",
        "antiphon._recording.manifest",
        "antiphon.ops.storage",
        "antiphon.redact",
        "antiphon.stores.sqlite",
        "antiphon.stores.redis.journal",
        "antiphon.stores.postgres.journal",
        "antiphon.telemetry.builtin",
        "antiphon.testing.journal_conformance",
        "antiphon.blobs.s3",
        "cryptography.hazmat.primitives.ciphers.aead",
        "cryptography.hazmat.primitives.kdf.hkdf",
        "redis.asyncio",
        "psycopg_pool",
        "uvloop",
        "tests.faults.fleet_kit",
        "tests.faults.stages",
    ]
)


def process(target: Callable[..., None], *args: Any, child: bool = False) -> BaseProcess:
    """A process that runs ``target(*args)`` in the environment that this one has now; it ends with this one.

    A *child* of this process stays a zombie until it is joined; the server joins others at once.
    """
    context = multiprocessing.get_context("spawn") if child else forked
    return context.Process(target=_run, args=(dict(os.environ), target, *args), daemon=True)


def _run(environment: Mapping[str, str], target: Callable[..., None], *args: Any) -> None:
    os.environ.clear()
    os.environ.update(environment)
    target(*args)
