"""Where a Redis is and how to be let in: URLs as redis-py takes them, plus Sentinel and Cluster.

    redis://[user:password@]host[:port][/db]        rediss:// the same over TLS
    unix://[user:password@]/path/to/socket[?db=0]
    redis+sentinel://[user:password@]host:port[,host:port]/service[/db][?sentinel_password=…]
    redis+cluster://[user:password@]host:port[,host:port]

``valkey`` may stand for ``redis`` in each of them, and ``rediss+…`` gives TLS. The store's own options may stand in
the URL too, as ``antiphon_NAME``.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from antiphon.errors import ConfigError

DEFAULT_PORT = 6379
SENTINEL_PORT = 26379

Address = tuple[str, int] | str
"""Host and port, or the path of a socket."""
Mode = Literal["single", "sentinel", "cluster"]

_TYPES: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("username", "password", "client_name", "sentinel_username", "sentinel_password"), str),
    **dict.fromkeys(("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_ca_path", "ssl_ca_data", "ssl_password"), str),
    **dict.fromkeys(("ssl_cert_reqs", "ssl_ciphers"), str),
    **dict.fromkeys(("socket_timeout", "socket_connect_timeout"), float),
    **dict.fromkeys(("db", "ssl_min_version"), int),
    **dict.fromkeys(("antiphon_wait_replicas", "antiphon_wait_ms"), int),
    "antiphon_prefix": str,
    "antiphon_patience_s": float,
    "ssl_check_hostname": lambda text: text.lower() not in ("0", "f", "false", "n", "no"),
}
_WITHOUT_MEANING = frozenset(
    (
        *("socket_keepalive", "socket_read_size", "retry_on_timeout", "retry_on_error", "max_connections", "timeout"),
        *("health_check_interval", "protocol", "legacy_responses", "decode_responses", "encoding", "encoding_errors"),
    )
)
"""Settings of a redis-py client or pool that this store takes care of by itself."""


class Target(NamedTuple):
    """A Redis, a set of Sentinels, or a Cluster, with everything that its URL says."""

    mode: Mode
    addresses: tuple[Address, ...]
    safe_url: str
    """Without password: fit for logs and errors."""
    username: str = ""
    password: str = ""
    db: int = 0
    service: str = ""
    sentinel_username: str = ""
    sentinel_password: str = ""
    client_name: str = "antiphon"
    timeout_s: float = 5.0
    connect_timeout_s: float = 2.0
    tls: ssl.SSLContext | None = None
    own: Mapping[str, Any] = {}
    """Options of the store itself."""
    setting: str = "its URL"
    """Where the URL was configured, for messages."""

    def __repr__(self) -> str:
        return f"Target({self.safe_url!r})"


class _Unusable(ValueError):
    """What is wrong with a URL; never a piece of it."""


def parse(url: str, setting: str = "") -> Target:
    """Read *url*; anything unusable is a :class:`~antiphon.errors.ConfigError` that names the *setting*, if any."""
    try:
        target = _parse(url)
        return target._replace(setting=setting) if setting else target
    except _Unusable as error:
        what = str(error)
    except ValueError:  # its text could hold a piece of a password
        what = "it cannot be read; special characters of a password are written as %XX"
    except OSError as error:  # a certificate or key that cannot be read; ssl.SSLError is one too
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
        raise _Unusable(f"{scheme if mark else 'a text without ://'} is not a scheme of Redis")
    if mode and base == "unix":
        raise _Unusable("a socket cannot be a Sentinel or a Cluster")
    parts = urlsplit(f"{base}://{rest}")
    login, _, hosts = parts.netloc.rpartition("@")
    options = _options(parts.query)
    user, _, password = login.partition(":")
    if user:
        options["username"] = unquote(user)
    if password:
        options["password"] = unquote(password)
    if base == "unix":
        if not parts.path:
            raise _Unusable("the path of the socket is missing")
        return _target("single", (unquote(parts.path),), options, _safe(scheme, rest), secure=False)
    port = SENTINEL_PORT if mode == "sentinel" else DEFAULT_PORT
    addresses = tuple(_address(host, port) for host in (hosts.split(",") if mode else [hosts]))
    path = [unquote(part) for part in parts.path.split("/") if part]
    service = path.pop(0) if mode == "sentinel" and path else ""
    if mode == "sentinel" and not service:
        raise _Unusable("the name of the service is missing: redis+sentinel://host:port/SERVICE")
    if path and "db" not in options:
        if not path[0].isdecimal():
            raise _Unusable("the part after the host is the number of the database")
        options["db"] = int(path[0])
    if mode == "cluster" and options.get("db", 0):
        raise _Unusable("a Cluster has database 0 only")
    kind: Mode = "sentinel" if mode == "sentinel" else "cluster" if mode else "single"
    return _target(kind, addresses, options, _safe(scheme, rest), service, secure=base == "rediss")


def _options(query: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, text in parse_qsl(query):
        if name in _TYPES:
            try:
                options[name] = _TYPES[name](text)
            except ValueError:
                raise _Unusable(f"the option {name} is not a number") from None
        elif name not in _WITHOUT_MEANING:
            raise _Unusable(f"the option {name} is not known")
    return options


def _address(text: str, default_port: int) -> tuple[str, int]:
    place = urlsplit(f"//{text}")
    return unquote(place.hostname or "localhost"), place.port or default_port


def _target(
    mode: Mode,
    addresses: tuple[Address, ...],
    options: dict[str, Any],
    safe_url: str,
    service: str = "",
    *,
    secure: bool,
) -> Target:
    return Target(
        mode=mode,
        addresses=addresses,
        safe_url=safe_url,
        username=options.get("username", ""),
        password=options.get("password", ""),
        db=options.get("db", 0),
        service=service,
        sentinel_username=options.get("sentinel_username", ""),
        sentinel_password=options.get("sentinel_password", ""),
        client_name=options.get("client_name", "antiphon"),
        timeout_s=options.get("socket_timeout", 5.0),
        connect_timeout_s=options.get("socket_connect_timeout", 2.0),
        tls=_tls(options) if secure else None,
        own={name[9:]: value for name, value in options.items() if name.startswith("antiphon_")},
    )


def _tls(options: dict[str, Any]) -> ssl.SSLContext:
    context = ssl.create_default_context(
        cafile=options.get("ssl_ca_certs"), capath=options.get("ssl_ca_path"), cadata=options.get("ssl_ca_data")
    )
    asked = str(options.get("ssl_cert_reqs", "required")).lower()
    modes = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
    if asked not in modes:
        raise _Unusable(f"ssl_cert_reqs={asked} is not one of {', '.join(modes)}")
    context.check_hostname = asked != "none" and bool(options.get("ssl_check_hostname", True))
    context.verify_mode = modes[asked]
    if "ssl_min_version" in options:
        context.minimum_version = ssl.TLSVersion(options["ssl_min_version"])
    if "ssl_ciphers" in options:
        context.set_ciphers(options["ssl_ciphers"])
    if "ssl_certfile" in options:
        context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"), options.get("ssl_password"))
    return context


def _safe(scheme: str, rest: str) -> str:
    """The URL without password and without options (they can hold passwords too)."""
    rest, _, query = rest.partition("?")
    login, mark, place = rest.rpartition("@")
    user = login.partition(":")[0]
    database = dict(parse_qsl(query)).get("db")
    return f"{scheme}://{user}{mark if user else ''}{place}" + (f"?db={quote(database)}" if database else "")
