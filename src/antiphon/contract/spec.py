"""What a tool declares about itself (D30). ``idempotent`` has no default."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

from msgspec import Meta
from msgspec.structs import force_setattr

from antiphon.contract._base import LONGEST_MS, Lasting, Millis, Name, Value
from antiphon.errors import ContractError

Effect = Literal["read", "write"]
Reuse = Literal["turn", "session", "never"]
Ratio = Annotated[float, Meta(ge=0.0, le=1.0)]
Positive = Annotated[int, Meta(ge=1)]
LastingSeconds = Annotated[float, Meta(gt=0, le=LONGEST_MS // 1000)]


class RetryPolicy(Value, frozen=True):
    """How failed attempts are tried again (R8)."""

    max_attempts: Positive = 4
    base_ms: Millis = 200
    max_delay_ms: Millis = 4_000
    max_elapsed_ms: Millis = 30_000
    retry_after_cap_ms: Millis = 30_000
    retriable_codes: tuple[str, ...] = ()
    terminal_codes: tuple[str, ...] = ()


class BreakerPolicy(Value, frozen=True):
    """When the circuit breaker of a dependency opens, and how it closes again (R9)."""

    consecutive: Positive = 5
    rate: Ratio = 0.5
    window_calls: Positive = 20
    min_calls: Positive = 10
    window_ms: Millis = 120_000
    cooldown_ms: Millis = 30_000
    probes: Positive = 1
    close_after: Positive = 2
    probe_lease_ms: Millis = 60_000
    forced_open: bool = False


DEFAULT_BREAKER = BreakerPolicy()
READ_BREAKER = BreakerPolicy(consecutive=8, cooldown_ms=20_000)
WRITE_BREAKER = BreakerPolicy(consecutive=5, rate=0.3, cooldown_ms=15_000)


class Ttls(Value, frozen=True):
    """How long a claim record is kept, by state (R6)."""

    done_ms: Annotated[int, Meta(ge=0, le=LONGEST_MS)] = 86_400_000
    failed_ms: Annotated[int, Meta(ge=0, le=LONGEST_MS)] = 300_000
    lease_ms: Lasting = 120_000


def _policy(kind: type[Value], name: str, fields: Mapping[str, Any]) -> Value:
    known = kind.__struct_fields__
    for field in fields:
        if field not in known:
            raise ContractError(
                f"{name} has no field {field!r} (it has: {', '.join(known)}).", path=f"$.{name}.{field}"
            )
    return kind(**fields)


_CODE: dict[str, Any] = {
    "reconcile": None,
    "serialisers": None,
    "certain_errors": (),
    "key": None,
    "approve": None,
    "approver": None,
}
POLICIES: dict[str, type[Value]] = {"retry": RetryPolicy, "breaker": BreakerPolicy, "ttl": Ttls}


class Happened(NamedTuple):
    """What a ``reconcile`` function returns when the earlier call took effect."""

    value: Any = None


class DidNotHappen(Exception):
    """The call certainly took no effect: returned by a ``reconcile`` function, or raised by the tool itself.

    >>> raise DidNotHappen("the account is closed")
    Traceback (most recent call last):
    antiphon.contract.spec.DidNotHappen: the account is closed
    """

    def __init__(self, note: str = "") -> None:
        super().__init__(note)
        self.note = note


class RetryOptions(TypedDict, total=False):
    """:class:`RetryPolicy` as keywords: ``retry={"max_attempts": 2}``."""

    max_attempts: int
    base_ms: int
    max_delay_ms: int
    max_elapsed_ms: int
    retry_after_cap_ms: int
    retriable_codes: Sequence[str]
    terminal_codes: Sequence[str]


class BreakerOptions(TypedDict, total=False):
    """:class:`BreakerPolicy` as keywords: ``breaker={"consecutive": 3}``."""

    consecutive: int
    rate: float
    window_calls: int
    min_calls: int
    window_ms: int
    cooldown_ms: int
    probes: int
    close_after: int
    probe_lease_ms: int
    forced_open: bool


class TtlOptions(TypedDict, total=False):
    """:class:`Ttls` as keywords: ``ttl={"done_ms": 3_600_000}``."""

    done_ms: int
    failed_ms: int
    lease_ms: int


class ToolOptions(TypedDict, total=False):
    """The keywords of ``@gateway.tool`` beside name, namespace and ``idempotent``: the fields of :class:`ToolSpec`.

    Editors complete them, and type checkers refuse one that does not exist.
    """

    effect: Effect | None
    description: str
    nondeterministic: bool
    dependency: str | None
    timeout: float | None
    scope: Literal["session", "global"]
    reuse: Reuse | float | None
    exact: Sequence[str]
    insensitive: Sequence[str]
    volatile: Sequence[str]
    on_conflict: Literal["conflict", "independent"]
    on_store_outage: Literal["closed", "open"] | None
    forward_key: bool
    poll: bool
    cost: float
    retry: RetryPolicy | RetryOptions | None
    breaker: BreakerPolicy | BreakerOptions | None
    ttl: Ttls | TtlOptions
    reconcile: Callable[..., Any] | None
    serialisers: Mapping[str, Callable[[Any], Any]] | None
    certain_errors: tuple[type[Exception], ...]
    key: Callable[..., Any] | str | None
    key_ignore: Sequence[str]
    key_ttl: float
    unknown_ttl: float | None
    approve: Callable[..., Any] | str | None
    approve_version: str
    approve_ignore: Sequence[str]
    approve_bind: Literal["call", "intent"]
    approval_ttl: float
    approval_wait: float
    approver: Callable[..., Any] | None
    after_undo: Literal["refuse", "run"]


class ToolSpec(Value, frozen=True):
    """What a tool is: whether repeating it is harmless, what it touches, how it may be retried.

    >>> ToolSpec(name="send_email", idempotent=False, effect="write").idempotent
    False
    """

    name: Name
    idempotent: bool
    namespace: Name = "tools"
    effect: Effect | None = None
    description: str = ""
    nondeterministic: bool = False
    dependency: str | None = None
    timeout: Annotated[float, Meta(gt=0)] | None = None
    scope: Literal["session", "global"] = "session"
    reuse: Reuse | Annotated[float, Meta(ge=0)] | None = None
    exact: tuple[str, ...] = ()
    insensitive: tuple[str, ...] = ()
    volatile: tuple[str, ...] = ()
    on_conflict: Literal["conflict", "independent"] = "conflict"
    on_store_outage: Literal["closed", "open"] | None = None
    forward_key: bool = False
    poll: bool = False
    cost: Annotated[float, Meta(ge=0)] = 0.0
    retry: RetryPolicy | None = None
    breaker: BreakerPolicy | None = None
    ttl: Ttls = Ttls()
    reconcile: Callable[..., Any] | None = None
    serialisers: Mapping[str, Callable[[Any], Any]] | None = None
    certain_errors: tuple[Callable[..., Any], ...] = ()
    """Exceptions of the tool that say: it took no effect."""
    key: Callable[..., Any] | None = None
    """What a call is about, from its arguments: a function of them, or the name of one. The tool runs once for it."""
    key_ignore: tuple[str, ...] = ()
    """Parameters that may differ between calls with one key."""
    key_ttl: LastingSeconds = 2_592_000.0
    """Seconds for which a keyed call that is done answers: 30 days."""
    unknown_ttl: LastingSeconds | None = None
    """Seconds after which an unknown outcome is forgotten; without it, it stays until somebody settles it."""
    approve: Callable[..., Any] | None = None
    """Which calls a person must approve: ``"always"``, a function of the arguments, or a configured policy."""
    approve_version: str = ""
    """Version of that rule. An approval given under another one is void."""
    approve_ignore: tuple[str, ...] = ()
    """Parameters that may change after the approval. They are no part of the intent either (``volatile``)."""
    approve_bind: Literal["call", "intent"] = "call"
    """Who may spend an approval: the same call when it is made again, or the next equal call of the session."""
    approval_ttl: LastingSeconds = 86_400.0
    """Seconds from the question to the last moment at which its approval can be spent."""
    approval_wait: Annotated[float, Meta(ge=0)] = 0.0
    """Seconds for which the call itself waits for the decision."""
    approver: Callable[..., Any] | None = None
    """Decides in this process: returns ``True``, ``False``, or ``None`` to leave it to people."""
    after_undo: Literal["refuse", "run"] = "refuse"
    """What a call does whose earlier execution was undone: it is refused, or runs again."""

    def __post_init__(self) -> None:
        """``retry={"max_attempts": 2}`` stands for the policy with that field."""
        if self.approve_ignore:
            force_setattr(self, "volatile", tuple(dict.fromkeys((*self.volatile, *self.approve_ignore))))
        for name, kind in POLICIES.items():
            given: Any = getattr(self, name)
            if isinstance(given, Mapping):
                force_setattr(self, name, _policy(kind, name, given))
            elif given is not None and not isinstance(given, kind):
                example = f"{name}={{{kind.__struct_fields__[0]!r}: 3}}"
                raise ContractError(f"{name} must be a mapping, not {given!r}: write {example}.", path=f"$.{name}")

    def to_wire(self) -> dict[str, Any]:
        """The JSON form; what is code stays behind."""
        import msgspec

        wire: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(self, **_CODE))
        for name in _CODE:
            head, *rest = name.split("_")
            del wire[head + "".join(map(str.title, rest))]
        return wire

    @property
    def breaker_policy(self) -> BreakerPolicy:
        """The declared policy, else the preset of ``effect`` (never of ``idempotent``)."""
        if self.breaker is not None:
            return self.breaker
        if self.effect == "read":
            return READ_BREAKER
        return WRITE_BREAKER if self.effect == "write" else DEFAULT_BREAKER
