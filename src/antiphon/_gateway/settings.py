"""The settings of a gateway, as frozen values. The config layer makes them; tests build them by hand."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal

from antiphon.contract._base import Millis, Value
from antiphon.contract.spec import BreakerPolicy, RetryPolicy, Ttls
from antiphon.decide.loop import LoopPolicy


class ToolOverride(Value, frozen=True):
    """Settings of one tool from a file or the environment; what code declares takes precedence (D32)."""

    enabled: bool | None = None
    shadow: bool | None = None
    timeout: float | None = None
    retry: RetryPolicy | None = None
    breaker: BreakerPolicy | None = None
    ttl: Ttls | None = None
    reuse: Literal["turn", "session", "never"] | float | None = None
    on_store_outage: Literal["closed", "open"] | None = None
    forced_open: bool = False


class ApprovalPolicy(Value, frozen=True):
    """When calls need a person, by their arguments: any one condition is enough; without conditions, always."""

    version: str
    above: Mapping[str, float] = {}
    """Parameters, and the largest value of each that needs no approval."""
    one_of: Mapping[str, tuple[Any, ...]] = {}
    """Parameters with one of these values."""
    not_one_of: Mapping[str, tuple[Any, ...]] = {}
    """Parameters with any value other than these."""

    def needs(self, arguments: Mapping[str, Any]) -> bool:
        """Whether a call with these arguments needs a person; a missing or non-numeric value is not below a limit."""
        if not (self.above or self.one_of or self.not_one_of):
            return True
        return (
            any(not _is_at_most(arguments.get(name), limit) for name, limit in self.above.items())
            or any(arguments.get(name) in values for name, values in self.one_of.items())
            or any(arguments.get(name) not in values for name, values in self.not_one_of.items())
        )


def _is_at_most(value: Any, limit: float) -> bool:
    return isinstance(value, (int, float, Decimal)) and not isinstance(value, bool) and value <= limit


class Settings(Value, frozen=True):
    """Everything a gateway needs besides its store and its tools."""

    tenant: str = "default"
    workspace: str = "default"
    enabled: bool = True
    open_mode: bool = True
    """False: breakers count but never block."""
    derive_keys: bool = True
    """False: calls without a given key run without dedupe."""
    shadow: bool = False
    retry: RetryPolicy = RetryPolicy()
    breaker: BreakerPolicy | None = None
    ttl: Ttls | None = None
    loop: LoopPolicy = LoopPolicy()
    payload_limit: Millis = 262_144
    """Size in bytes up to which a result is stored in the record itself; larger ones go to the blob store."""
    result_limit: Millis = 67_108_864
    """Size in bytes up to which a result is stored at all."""
    wait_replicas: int = 0
    """Replicas that must have the claim of a safety-critical call (Redis)."""
    lease_cap_ms: Millis = 3_600_000
    """How long a lease is renewed for a call without a deadline."""
    stream_idle_ms: Millis = 300_000
    abandoned_threads: int = 64
    refresh_ms: Millis = 1_000
    breaker_quorum: int = 2
    """Processes that must have tripped before a shared trip opens the breaker here."""
    tools: Mapping[str, ToolOverride] = {}
    approvals: Mapping[str, ApprovalPolicy] = {}
