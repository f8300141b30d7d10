"""Rules for single tools, identity fields, deadlines, and circuit breakers for failing upstreams."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple

from antiphon.contract.spec import BreakerPolicy
from antiphon.decide.breaker import Breaker, Refusal
from antiphon.errors import InvalidInput

RESERVED_META = "io.modelcontextprotocol/"
_NO_IDENTITY = frozenset({"progresstoken", "traceparent", "tracestate", "baggage", "clientinfo"})
_META_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")
_WILDCARD = re.compile(r"[*?\[]")
_MAX_BREAKERS = 1000


class ToolRule(NamedTuple):
    """How calls to a tool are handled."""

    window_s: float
    """Seconds for which a lost answer is kept for an equal call."""
    read: bool = False
    """Whether repeating it is harmless: it is cancelled with its client, and equal calls all run."""
    on_disconnect: Literal["detach", "cancel"] = "detach"
    guard_handed_over: bool = False
    """Whether an answer that was fully written but not confirmed also answers the next equal call."""
    approve: str | None = None
    """The approval policy for its calls: ``always``, or one from ``antiphon.toml``."""

    @property
    def ends_with_client(self) -> bool:
        return self.read or self.on_disconnect == "cancel"


class ToolRules:
    """The rules from ``--tool SERVER/TOOL:OPTIONS``; later ones override earlier ones."""

    def __init__(
        self,
        texts: Iterable[str] = (),
        *,
        window_s: float,
        policies: Collection[str] = (),
        one_server: bool = False,
        servers: Collection[str] | None = None,
    ) -> None:
        """``approve=NAME`` may name one of *policies*. With *one_server*, rules are ``TOOL:OPTIONS``.

        A rule whose server is not one of *servers* is an error: its tools would not be guarded as it says.
        """
        self._one_server = one_server
        self._default = ToolRule(window_s)
        self._rules = [self._read(text) for text in texts]
        for pattern, fields in self._rules:
            server = pattern.partition("/")[0]
            if servers is not None and not _WILDCARD.search(server) and server not in servers:
                raise InvalidInput(
                    f"--tool {pattern} names no MCP server.",
                    hint=f"Servers given with --mcp: {', '.join(sorted(servers)) or 'none'}.",
                )
            policy = fields.get("approve", "always")
            if policy != "always" and policy not in policies:
                raise InvalidInput(
                    f"--tool …:approve={policy} names no policy.",
                    hint=f'Add it to antiphon.toml: [approvals.policies.{policy}] version = "1".',
                )

    def of(self, server: str, tool: str) -> ToolRule:
        """The rule for a tool."""
        found, name = self._default, tool if self._one_server else f"{server}/{tool}"
        for pattern, fields in self._rules:
            if fnmatchcase(name, pattern):
                found = found._replace(**fields)
        return found

    def _read(self, text: str) -> tuple[str, dict[str, Any]]:
        pattern, colon, options = text.partition(":")
        forms = ("files/read_*:read", "shop/charge:window=30,approve")
        if self._one_server:
            forms = ("read_*:read", "charge:approve")
        wrong = InvalidInput(f"--tool {text!r} cannot be read.", hint=f"Write: --tool {' or --tool '.join(forms)}")
        if not colon or not pattern or ("/" not in pattern and not self._one_server):
            raise wrong
        fields: dict[str, Any] = {}
        for option in options.split(","):
            name, _, value = option.strip().partition("=")
            if self._one_server and name not in ("read", "approve"):  # the others are about connections
                raise wrong
            if name in ("read", "guard_handed_over") and not value:
                fields[name] = True
            elif name == "approve" and re.fullmatch(r"[A-Za-z0-9_-]{0,64}", value):
                fields[name] = value or "always"
            elif name == "on_disconnect" and value in ("detach", "cancel"):
                fields[name] = value
            elif name == "window" and re.fullmatch(r"\d{1,7}(\.\d{1,3})?", value):
                fields["window_s"] = float(value)
            else:
                raise wrong
        return pattern, fields


def identity_keys(given: Iterable[str]) -> tuple[str, ...]:
    """The validated ``_meta`` fields that identify a call."""
    keys = tuple(given)
    for key in keys:
        if not _META_KEY.fullmatch(key) or key.startswith(RESERVED_META) or key.lower() in _NO_IDENTITY:
            raise InvalidInput(
                f"--identity {key!r} cannot identify a call.",
                hint="Name a field of _meta that a client keeps when it sends a call again; the protocol's own change.",
            )
    return keys


class Breakers:
    """One circuit breaker per upstream and model, so that one failing model does not block the others."""

    def __init__(self, policy: BreakerPolicy | None, monotonic: Callable[[], float]) -> None:
        """Without a policy, every call is allowed."""
        self._policy = policy
        self._now = monotonic
        self._known: dict[tuple[str, str], Breaker] = {}

    async def guard(
        self, place: tuple[str, str], send: Callable[[], Any], refused: Callable[[Refusal], Exception]
    ) -> Any:
        """Return the response from *send*; if the breaker is open, raise what *refused* returns instead."""
        policy = self._policy
        if policy is None:
            return await send()
        breaker = self._known.get(place)
        if breaker is None:
            if len(self._known) >= _MAX_BREAKERS:
                self._known.pop(next(iter(self._known)))
            breaker = self._known[place] = Breaker(policy)
        permit = breaker.permit(self._now())
        if isinstance(permit, Refusal):
            raise refused(permit)
        import httpx

        try:
            response = await send()
        except httpx.TransportError:
            breaker.failure(permit, self._now())
            raise
        except BaseException:
            breaker.neutral(permit, self._now())
            raise
        if response.status_code >= 500:
            breaker.failure(permit, self._now())
        else:  # includes 429: the limit may be that of one account, whose client is told when to retry
            breaker.success(permit, self._now())
        return response


def deadline_of(text: str | None, most: float) -> float | None:
    """The value of ``Antiphon-Deadline`` in seconds, at most *most*, if the client sent it."""
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", text) or not float(text):
        raise InvalidInput("Antiphon-Deadline must be a number of seconds greater than 0.", path="Antiphon-Deadline")
    return min(float(text), most)


def first_of(meta: Any, keys: Sequence[str]) -> Any:
    """The value of the first of *keys* that ``_meta`` has."""
    return next((meta[key] for key in keys if meta.get(key) is not None), None) if isinstance(meta, dict) else None
