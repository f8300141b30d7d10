"""Where a Redis server is and how to log in: URLs as redis-py reads them, plus Sentinel and Cluster.

    redis://[user:password@]host[:port][/db]        rediss:// the same over TLS
    unix://[user:password@]/path/to/socket[?db=0]
    redis+sentinel://[user:password@]host:port[,host:port]/service[/db][?sentinel_password=…]
    redis+cluster://[user:password@]host:port[,host:port]

``valkey`` may replace ``redis`` in each of them, and ``rediss+…`` uses TLS. The store's own options may be in the URL,
too, as ``antiphon_NAME``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from antiphon.errors import ConfigError, missing_extra

DEFAULT_PORT = 6379
SENTINEL_PORT = 26379

Mode = Literal["single", "sentinel", "cluster"]

_OWN: dict[str, Callable[[str], Any]] = {
    "antiphon_prefix": str,
    "antiphon_wait_replicas": int,
    "antiphon_wait_ms": int,
    "antiphon_retry_timeout_s": float,
    "antiphon_patience_s": float,
}
_NOT_FOR_A_CLUSTER = frozenset(("ssl_ca_path", "ssl_password"))
_TLS = _NOT_FOR_A_CLUSTER | {
    *("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_ca_data", "ssl_cert_reqs", "ssl_check_hostname"),
    *("ssl_min_version", "ssl_ciphers"),
}
_SENTINEL = frozenset(("sentinel_username", "sentinel_password"))
_PASSED_ON = _TLS | {"db", "username", "password", "client_name", "socket_timeout", "socket_connect_timeout"}
_IGNORED = frozenset(
    (
        *("socket_keepalive", "socket_read_size", "retry_on_timeout", "retry_on_error", "max_connections", "timeout"),
        *("health_check_interval", "protocol", "legacy_responses", "decode_responses", "encoding", "encoding_errors"),
    )
)
"""Settings of redis-py that the store chooses itself."""
_DEFAULTS: dict[str, Any] = {"client_name": "antiphon", "socket_timeout": 5.0, "socket_connect_timeout": 2.0}
_SENTINEL_TIMEOUT_S = 0.5


class Target(NamedTuple):
    """A server, a set of Sentinels, or a Cluster, with everything in its URL."""

    mode: Mode
    addresses: tuple[tuple[str, int], ...]
    options: Mapping[str, Any]
    """Keyword arguments of a redis-py client."""
    safe_url: str
    """Without password: safe for logs and errors."""
    service: str = ""
    sentinel_options: Mapping[str, Any] = {}
    own: Mapping[str, Any] = {}
    """Options of the store itself."""
    setting: str = "its URL"
    """Where the URL was configured, for messages."""

    def __repr__(self) -> str:
        return f"Target({self.safe_url!r})"


class _Unusable(ValueError):
    """What is wrong with a URL; never contains a part of it."""


def parse(url: str, setting: str = "") -> Target:
    """Parse *url*; anything unusable is a :class:`~antiphon.errors.ConfigError` that names the *setting*, if any."""
    try:
        target = _parse(url)
        return target._replace(setting=setting) if setting else target
    except _Unusable as error:
        what = str(error)
    except ValueError:  # its text could contain part of a password
        what = "it is invalid; write special characters of a password as %XX"
    except OSError as error:  # a certificate or key that cannot be read; ssl.SSLError is an OSError, too
        what = f"TLS: {error}"
    check = f"Check the setting {setting}; a usual one" if setting else "A usual one"
    raise ConfigError(
        f"The URL of the Redis store cannot be used: {what}.",
        path=setting or "url",
        hint=f"{check} is redis://host:6379/0.",
    )


def _parse(url: str) -> Target:
    scheme, mark, rest = url.partition("://")
    base, _, mode = scheme.replace("valkey", "redis", 1).partition("+")
    if not mark or base not in ("redis", "rediss", "unix") or mode not in ("", "sentinel", "cluster"):
        raise _Unusable(f"{scheme if mark else 'a text without ://'} is not a Redis scheme")
    if mode and base == "unix":
        raise _Unusable("a socket cannot be a Sentinel or a Cluster")
    parts = urlsplit(f"{base}://{rest}")
    login, at, hosts = parts.netloc.rpartition("@")
    port = SENTINEL_PORT if mode == "sentinel" else DEFAULT_PORT
    addresses = tuple(_address(host, port) for host in (hosts.split(",") if mode else [hosts]))
    path, service = parts.path, ""
    if mode == "sentinel":
        name, _, path = path.lstrip("/").partition("/")
        service = unquote(name)
        if not service:
            raise _Unusable("the name of the service is missing: redis+sentinel://host:port/SERVICE")
    if base == "unix":
        if not path:
            raise _Unusable("the path of the socket is missing")
    elif path.strip("/") and not unquote(path).strip("/").isdecimal():
        raise _Unusable("the part after the host is the number of the database")
    own = _own_options(parts.query)
    first = "" if base == "unix" else hosts.split(",")[0] if mode else hosts
    options = _read(f"{base}://{login}{at}{first}/{path.lstrip('/')}?{parts.query}", secure=base == "rediss")
    sentinel = {name.removeprefix("sentinel_"): options.pop(name) for name in _SENTINEL & options.keys()}
    if mode == "cluster" and options.pop("db", 0):
        raise _Unusable("a Cluster has database 0 only")
    if mode == "cluster" and _NOT_FOR_A_CLUSTER & options.keys():
        raise _Unusable("ssl_ca_path and ssl_password are not supported for a Cluster")
    if mode == "sentinel":
        copied = {name: value for name, value in options.items() if name.startswith(("ssl", "socket_", "client_name"))}
        sentinel = copied | sentinel
    kind: Mode = "sentinel" if mode == "sentinel" else "cluster" if mode else "single"
    return Target(kind, addresses, options, _safe(scheme, rest), service, sentinel, own)


def _own_options(query: str) -> dict[str, Any]:
    own: dict[str, Any] = {}
    for name, text in parse_qsl(query):
        if name in _OWN:
            try:
                own[name.removeprefix("antiphon_")] = _OWN[name](text)
            except ValueError:
                raise _Unusable(f"the option {name} is not a number") from None
        elif name not in _PASSED_ON | _SENTINEL | _IGNORED:
            raise _Unusable(f"the option {name} is not known")
    return own


def _read(url: str, *, secure: bool) -> dict[str, Any]:
    """What redis-py reads from *url*, without host and port, as keyword arguments of its clients."""
    try:
        from redis.connection import parse_url
    except ImportError:
        raise missing_extra("redis", "redis", "A Redis store") from None
    try:
        given: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]
    except ValueError as error:
        text = str(error)
        if text.startswith("Invalid value for '"):
            raise _Unusable(f"the option {text.split(chr(39))[1]} is not a number") from None
        raise
    options = _DEFAULTS | {name: given[name] for name in given.keys() & (_PASSED_ON | _SENTINEL)}
    if "path" in given:
        options["unix_socket_path"] = given["path"]
    if secure:
        options["ssl"] = True
        _check_tls(options)
    else:
        options = {name: value for name, value in options.items() if name not in _TLS}
    return options


def _check_tls(options: Mapping[str, Any]) -> None:
    """Load certificates and keys once: a missing file is an error of the URL, not of the first call."""
    from redis.asyncio import SSLConnection
    from redis.exceptions import RedisError

    try:
        SSLConnection(**{name: options[name] for name in _TLS & options.keys()}).ssl_context.get()
    except RedisError as error:
        raise _Unusable(f"ssl_cert_reqs: {error}") from None


def _address(text: str, default_port: int) -> tuple[str, int]:
    place = urlsplit(f"//{text}")
    return unquote(place.hostname or "localhost"), place.port or default_port


def _safe(scheme: str, rest: str) -> str:
    """The URL without password and without options (they can contain passwords, too)."""
    rest, _, query = rest.partition("?")
    login, mark, place = rest.rpartition("@")
    user = login.partition(":")[0]
    database = dict(parse_qsl(query)).get("db")
    return f"{scheme}://{user}{mark if user else ''}{place}" + (f"?db={quote(database)}" if database else "")


def open_redis(target: Target, library: str) -> Any:
    """A redis-py client; *library* is ``redis`` or ``redis.asyncio``. It does not retry: the store does, for a time."""
    if target.mode != "cluster":
        return open_server(target, library, target.addresses[0])
    lib, options = _library(target, library)
    nodes = [lib.cluster.ClusterNode(host, port) for host, port in target.addresses]
    return lib.RedisCluster(startup_nodes=nodes, require_full_coverage=False, **options)


def open_server(target: Target, library: str, address: tuple[str, int]) -> Any:
    """The same for one server of *target*."""
    lib, options = _library(target, library)
    host, port = address
    return lib.Redis(host=host, port=port, **options)


def open_sentinels(target: Target, library: str) -> Any:
    """The same for the Sentinels of *target*. One that does not answer within a moment is skipped."""
    lib, options = _library(target, library)
    given = {**target.sentinel_options, "retry": options["retry"]}
    given |= {name: min(given[name], _SENTINEL_TIMEOUT_S) for name in ("socket_timeout", "socket_connect_timeout")}
    return lib.Sentinel(target.addresses, sentinel_kwargs=given)


def _library(target: Target, library: str) -> tuple[Any, dict[str, Any]]:
    from redis.backoff import NoBackoff

    lib: Any = import_module(library)
    return lib, {**target.options, "protocol": 2, "retry": lib.retry.Retry(NoBackoff(), 0)}
