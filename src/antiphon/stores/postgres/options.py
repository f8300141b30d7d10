"""The settings of a PostgreSQL store: where the server is, and its time limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from antiphon.errors import ConfigError

_PASSWORD = re.compile(r"\b((?:ssl)?password)\s*=\s*('(?:[^'\\]|\\.)*'|\S*)", re.IGNORECASE)
_SCHEME = re.compile(r"^postgres(?:ql)?://", re.IGNORECASE)
_OURS = "antiphon_"
_BOOLEANS = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}
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

    def with_address_options(self) -> Options:
        """Apply our options from the address's query (``?antiphon_schema=team``), and take them out of it."""
        head, mark, query = self.dsn.partition("?")
        if not mark or not _SCHEME.match(head):
            return self
        pairs = parse_qsl(query, keep_blank_values=True)
        ours = {key[len(_OURS) :]: value for key, value in pairs if key.startswith(_OURS)}
        if not ours:
            return self
        rest = urlencode([pair for pair in pairs if not pair[0].startswith(_OURS)], quote_via=quote)
        return self._replace(
            dsn=f"{head}?{rest}" if rest else head,
            **{name: _typed(name, value, self._field_defaults) for name, value in ours.items()},
        )

    def check(self) -> Options:
        """Reject what cannot work before a connection is attempted."""
        if not self.schema or len(self.channel.encode()) > 63 or "\0" in self.schema:
            raise ConfigError("The schema's name must have 1 to 54 bytes.", path="schema")
        if self.max_connections < 1:
            raise ConfigError("max_connections must be at least 1.", path="max_connections")
        for name in ("connect_timeout_s", "pool_timeout_s", "statement_timeout_s", "lock_timeout_s", "poll_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be greater than 0.", path=name)
        return self


def _typed(name: str, text: str, defaults: Mapping[str, Any]) -> Any:
    """An option as written in an address."""
    default = defaults.get(name)
    path = _OURS + name
    if default is None:
        raise ConfigError(
            f"The address has an unknown option {path}.",
            path=path,
            hint=f"Known: {', '.join(_OURS + known for known in sorted(defaults))}.",
        )
    if isinstance(default, bool):
        if text.lower() not in _BOOLEANS:
            raise ConfigError(f"{path} must be true or false.", path=path)
        return _BOOLEANS[text.lower()]
    try:
        return type(default)(text)
    except ValueError:
        raise ConfigError(f"{path} must be a number.", path=path) from None


def without_secrets(dsn: str) -> str:
    """The address with every password left out; an unreadable address is not shown at all."""
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
