"""Which network addresses callers may make the host connect to: decided by address, never by name.

The ranges are listed here because the answers of ``ipaddress`` differ between Python releases.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections import defaultdict
from concurrent.futures import Future
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from antiphon.errors import InvalidInput

_LONGEST = 2048
_LOOKUP_S = 5.0
_LOOKUPS = 4
"""Concurrent DNS lookups per tenant."""

_SPECIAL_4 = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",
            "100.64.0.0/10",  # carrier-grade NAT
            "127.0.0.0/8",
            "168.63.129.16/32",  # Azure platform services
            "169.254.0.0/16",  # link-local, cloud metadata services
            "172.16.0.0/12",
            "192.0.0.0/24",  # protocol assignments
            "192.0.2.0/24",
            "192.31.196.0/24",
            "192.52.193.0/24",
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",
            "192.175.48.0/24",
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, broadcast
        ),
    )
)
_GLOBAL_6 = ipaddress.IPv6Network("2000::/3")
"""Everything else is special: loopback, mapped and compatible IPv4, NAT64, unique local, link-local, multicast."""
_SPECIAL_6 = tuple(
    map(
        ipaddress.IPv6Network,
        (
            "2001::/23",  # protocol assignments: Teredo, ORCHID, benchmarks
            "2001:db8::/32",
            "2002::/16",  # 6to4 embeds an IPv4 address
            "2620:4f:8000::/48",
            "3fff::/20",
        ),
    )
)


class AddressRefused(InvalidInput):
    """The host does not post to this address."""

    code = "webhook_url_rejected"


class Target(NamedTuple):
    """Where to connect: the checked address, whatever the name resolves to later."""

    url: str
    address: str


def is_public(address: str) -> bool:
    """Whether an address belongs to the public internet.

    >>> is_public("93.184.216.34"), is_public("169.254.169.254"), is_public("64:ff9b::a9fe:a9fe")
    (True, False, False)
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv4Address):
        return not any(found in network for network in _SPECIAL_4)
    return found in _GLOBAL_6 and not any(found in network for network in _SPECIAL_6)


def _is_this_machine(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    return found in ipaddress.IPv4Network("127.0.0.0/8") if found.version == 4 else found == ipaddress.IPv6Address(1)


def _parts(url: Any) -> tuple[SplitResult, str, int]:
    if not isinstance(url, str) or len(url) > _LONGEST:
        raise AddressRefused("'url' must be an https address.", path="$.url")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise AddressRefused("'url' is not a valid address.", path="$.url") from None
    if parts.scheme not in ("https", "http") or not host or parts.username is not None:
        raise AddressRefused("'url' must be an https address without credentials.", path="$.url")
    if not url.isprintable() or " " in url or "\\" in url:
        raise AddressRefused("'url' is not a valid address.", path="$.url")
    return parts, host, port or (443 if parts.scheme == "https" else 80)


class Lookup:
    """Resolves a URL and checks the address; a hanging name server delays only its own tenant."""

    def __init__(self, *, loopback: bool) -> None:
        self._loopback = loopback
        """Whether the operator allows receivers on this machine over plain HTTP."""
        self._room: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_LOOKUPS))

    async def target(self, tenant: str, url: Any) -> Target:
        """The checked address of *url*; public addresses require TLS."""
        parts, host, port = _parts(url)
        try:
            async with asyncio.timeout(_LOOKUP_S):
                addresses = await self._addresses(tenant, host, port)
        except (OSError, UnicodeError):
            raise AddressRefused("The host of 'url' cannot be found.", path="$.url") from None
        if self._loopback and all(map(_is_this_machine, addresses)):
            return Target(url, addresses[0])
        if not all(map(is_public, addresses)):
            raise AddressRefused("'url' resolves to a private network.", path="$.url")
        if parts.scheme != "https":
            raise AddressRefused("'url' must be an https address.", path="$.url")
        return Target(url, addresses[0])

    async def _addresses(self, tenant: str, host: str, port: int) -> list[str]:
        """All addresses of a name; the thread keeps its slot until the name server has answered."""
        room, loop = self._room[tenant], asyncio.get_running_loop()
        await room.acquire()
        answer: Future[list[str]] = Future()
        answer.set_running_or_notify_cancel()  # a waiter that is cancelled does not cancel it

        def look() -> None:
            try:
                infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                if not infos:
                    raise OSError("no address")
                answer.set_result(list(dict.fromkeys(str(info[4][0]) for info in infos)))
            except Exception as error:
                answer.set_exception(error)
            with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody is waiting
                loop.call_soon_threadsafe(room.release)

        threading.Thread(target=look, name="antiphon-lookup", daemon=True).start()
        return await asyncio.wrap_future(answer)
