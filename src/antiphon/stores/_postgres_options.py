"""What a PostgreSQL store is told: where the server is, and how long to be patient with it."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from antiphon.errors import ConfigError

_PASSWORD = re.compile(r"\b((?:ssl)?password)\s*=\s*('(?:[^'\\]|\\.)*'|\S*)", re.IGNORECASE)
_SCHEME = re.compile(r"^postgres(?:ql)?://", re.IGNORECASE)
SECRETS = frozenset({"password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret"})


class Options(NamedTuple):
    """The frozen form of ``PostgresStore``'s arguments. Hashable: one listener per process and options."""

    dsn: str
    schema: str = "antiphon"
    max_connections: int = 10
    connect_timeout_s: float = 5.0
    pool_timeout_s: float = 10.0
    statement_timeout_s: float = 10.0
    lock_timeout_s: float = 5.0
    reconnect_s: float = 5.0
    migrate: bool = True
    pgbouncer: bool = False
    listen_dsn: str = ""
    poll_s: float = 0.25

    @property
    def channel(self) -> str:
        """The notification channel of this schema (at most 63 bytes)."""
        return "antiphon:" + self.schema

    @property
    def can_listen(self) -> bool:
        """Whether notifications reach us: not through a transaction-pooling PgBouncer."""
        return bool(self.listen_dsn) or not self.pgbouncer

    def check(self) -> Options:
        """Refuse what cannot work before a connection is tried."""
        if not self.schema or len(self.channel.encode()) > 63 or "\0" in self.schema:
            raise ConfigError("The schema's name must have 1 to 54 bytes.", path="schema")
        if self.max_connections < 1:
            raise ConfigError("max_connections must be at least 1.", path="max_connections")
        for name in ("connect_timeout_s", "pool_timeout_s", "statement_timeout_s", "lock_timeout_s", "poll_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be greater than 0.", path=name)
        return self


def without_secrets(dsn: str) -> str:
    """The address with every password left out; an address that cannot be read is not shown at all."""
    if not _SCHEME.match(dsn):
        return _PASSWORD.sub(r"\1=***", dsn) if "=" in dsn else "postgresql://(unreadable)"
    try:
        parts = urlsplit(dsn)
        login, at, hosts = parts.netloc.rpartition("@")
        user = login.partition(":")[0]
        query = [(key, value) for key, value in parse_qsl(parts.query, keep_blank_values=True) if key not in SECRETS]
    except ValueError:
        return "postgresql://(unreadable)"
    address = f"postgresql://{user}{at}{hosts}{parts.path}"
    return f"{address}?{urlencode(query, quote_via=quote)}" if query else address
