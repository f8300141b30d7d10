"""Real servers for benchmarks, started when a benchmark first asks for one."""

from __future__ import annotations

import contextlib


class Servers:
    """Starts each server at most once and stops them all at the end."""

    def __init__(self) -> None:
        self._started = contextlib.ExitStack()
        self._urls: dict[str, str] = {}

    def stop(self) -> None:
        """Stop what was started."""
        self._started.close()
        self._urls.clear()

    def valkey_url(self) -> str:
        """``redis://…`` of a Redis-compatible server."""
        return self._get("valkey")

    def postgres_dsn(self) -> str:
        """``postgresql://…`` of a PostgreSQL server."""
        return self._get("postgres")

    def s3_endpoint(self) -> str:
        """``http://…`` of an S3-compatible server (keys: ``tests.servers.S3_KEY`` and ``S3_SECRET``)."""
        return self._get("s3")

    def _get(self, kind: str) -> str:
        if kind not in self._urls:
            from tests.servers import KINDS

            self._urls[kind] = self._started.enter_context(KINDS[kind]()).url
        return self._urls[kind]
