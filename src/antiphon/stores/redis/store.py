"""Claims of a fleet on Redis or Valkey (R6, R9, R13, D1-D3, D7, D10, D31)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from antiphon.errors import ConfigError, missing_extra
from antiphon.stores._common import Settling
from antiphon.stores.redis.schema import Names, Options
from antiphon.stores.redis.url import parse

if TYPE_CHECKING:
    from antiphon.ports import Journal
    from antiphon.stores.redis.journal import SyncRedisJournal

_PREFIX = "antiphon"
_OLD_NAMES = {"patience_s": "retry_timeout_s"}


class RedisStore:
    """A Redis or Valkey server, a set of Sentinels, or a Cluster, by its URL.

    >>> RedisStore("redis://user:secret@cache.example:6379/0").url
    'redis://user@cache.example:6379/0'

    *wait_replicas* is the minimum number of replicas that must have every claim before it counts; a single claim can
    ask for more; they have *wait_ms* to confirm it. *retry_timeout_s* is how long a command is retried while the server
    cannot be reached; *patience_s* is its old name. In the URL, options are ``antiphon_NAME`` and take precedence over
    the arguments. *setting* is where the URL was configured, for messages.
    """

    in_process = False

    def __init__(
        self,
        url: str,
        *,
        prefix: str = _PREFIX,
        seal_key: bytes | str | None = None,
        wait_replicas: int = 0,
        wait_ms: int = 250,
        retry_timeout_s: float = 1.0,
        setting: str = "",
        patience_s: float | None = None,
    ) -> None:
        self._target = parse(url, setting)
        given: dict[str, Any] = {
            "prefix": prefix,
            "wait_replicas": wait_replicas,
            "wait_ms": wait_ms,
            "retry_timeout_s": retry_timeout_s if patience_s is None else patience_s,
        }
        given |= {_OLD_NAMES.get(name, name): value for name, value in self._target.own.items()}
        self.prefix: str = given.pop("prefix")
        self._names = Names(self.prefix)
        self._options = options = Options(**given)
        if options.wait_replicas < 0 or options.wait_ms <= 0 or options.retry_timeout_s < 0:
            raise ConfigError("wait_replicas, wait_ms and retry_timeout_s cannot be negative.", path=setting or "url")
        self.seal_key = seal_key
        self._settling = Settling()
        _import_driver()

    def __repr__(self) -> str:
        return f"RedisStore({self.url!r}, prefix={self.prefix!r})"

    @property
    def url(self) -> str:
        """Where it is, without secrets; includes a non-default prefix, which makes it a different store."""
        place = self._target.safe_url
        if self.prefix == _PREFIX:
            return place
        return f"{place}{'&' if '?' in place else '?'}antiphon_prefix={quote(self.prefix, safe='')}"

    def open_sync(self) -> SyncRedisJournal:
        """A journal for threads: its methods block."""
        from antiphon.stores.redis.journal import SyncRedisJournal

        return SyncRedisJournal(self._target, self._names, self._options, self._settling)

    def open_async(self) -> Journal:
        """A journal for the running event loop."""
        from antiphon.stores.redis.journal import AsyncRedisJournal

        return AsyncRedisJournal(self._target, self._names, self._options, self._settling)


def _import_driver() -> None:
    """Import everything that a journal needs, or say what to install.

    Not on the first call: if a process forks while a thread imports, the child would wait for that import forever.
    """
    try:
        import hiredis  # noqa: F401
        import redis.asyncio  # noqa: F401
    except ImportError as error:
        raise missing_extra("redis[hiredis]", "redis", "A Redis store") from error
    import antiphon.stores.redis.journal  # noqa: F401
