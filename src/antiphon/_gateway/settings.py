"""The settings of a gateway, as frozen values. The config layer makes them; tests build them by hand."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, Literal

from msgspec import Meta

from antiphon.contract._base import Count, Positive, Seconds, Section
from antiphon.contract.spec import BreakerPolicy, RetryPolicy, Ttls
from antiphon.decide.loop import LoopPolicy


class ToolSwitches(Section, frozen=True):
    """Settings of one tool that the file and the gateway name alike."""

    enabled: bool | None = None
    """Off: this tool is called directly."""
    shadow: bool | None = None
    """Like ``gateway.shadow``, for this tool."""
    timeout: Seconds | None = None
    """Timeout of one attempt in seconds."""
    reuse: Literal["turn", "session", "never"] | float | None = None
    """How long a result answers new calls with equal arguments: ``turn``, ``session``, ``never`` or seconds."""
    on_store_outage: Literal["closed", "open"] | None = None
    """When the store is down: ``closed`` refuses the call, ``open`` makes it without a claim."""
    forced_open: bool = False
    """Keeps this tool's breaker open until the setting is removed."""


class ToolOverride(ToolSwitches, frozen=True):
    """Settings of one tool from a file or the environment; what code declares takes precedence (D32)."""

    retry: RetryPolicy | None = None
    breaker: BreakerPolicy | None = None
    ttl: Ttls | None = None


class ApprovalPolicy(Section, frozen=True):
    """When calls need a person; any condition that holds is enough, and without one every call does."""

    version: Annotated[str, Meta(min_length=1)]
    """Change it with the rule: approvals given under another version are void."""
    above: dict[str, float] = {}
    """Parameters that may be at most so large, ``{ amount = 100 }``; anything else than a number needs a person."""
    one_of: dict[str, tuple[Any, ...]] = {}
    """Parameters with one of these values, ``{ account = ["operations"] }``."""
    not_one_of: dict[str, tuple[Any, ...]] = {}
    """Parameters with any other value than these, ``{ currency = ["EUR"] }``."""

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


class GatewayOptions(Section, frozen=True):
    """Guarded calls."""

    tenant: str = "default"
    """Owner of the data; part of every key."""
    workspace: str = "default"
    """Subdivision of a tenant; part of every key."""
    enabled: bool = True
    """Off: tools are called directly, without any protection."""
    open_mode: bool = True
    """Off: circuit breakers count failures but block only while forced open."""
    derive_keys: bool = True
    """Off: calls without an explicit key are not deduplicated."""
    shadow: bool = False
    """Log what would have been done without changing anything."""
    payload_limit: Count = 262_144
    """Largest result in bytes that is stored in the claim record; larger ones go to the blob store."""
    result_limit: Count = 67_108_864
    """Largest result in bytes that is stored at all."""
    lease_cap_ms: Positive = 3_600_000
    """Longest total time for which a lease is renewed."""
    stream_idle_ms: Positive = 300_000
    """A stream that is not read for this long counts as abandoned."""
    abandoned_threads: Count = 64
    """Timed-out threads that may still be running before calls to tools with a timeout are refused."""
    refresh_ms: Positive = 1_000
    """How often switches, the configuration file and shared breakers are checked."""
    breaker_quorum: Positive = 2
    """Processes that must see a dependency fail before the breaker opens for the whole fleet."""


class Settings(GatewayOptions, frozen=True):
    """Everything a gateway needs besides its store and its tools."""

    retry: RetryPolicy = RetryPolicy()
    breaker: BreakerPolicy | None = None
    ttl: Ttls | None = None
    loop: LoopPolicy = LoopPolicy()
    wait_replicas: int = 0
    """Replicas that must have the claim of a safety-critical call (Redis)."""
    tools: Mapping[str, ToolOverride] = {}
    approvals: Mapping[str, ApprovalPolicy] = {}
