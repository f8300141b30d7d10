"""Every setting there is, with its default. ``antiphon.toml`` and ``ANTIPHON_*`` variables fill it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Ratio = Annotated[float, Meta(ge=0.0, le=1.0)]
Seconds = Annotated[float, Meta(gt=0)]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file; unknown names are refused."""


class StoreSection(Section, frozen=True):
    """Where claims and run log are kept. ``url`` for both, or ``claims`` and ``log`` apart."""

    url: str | None = None
    claims: str | None = None
    log: str | None = None
    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    seal_key_file: str | None = None
    wait_replicas: Count = 0


class GatewaySection(Section, frozen=True):
    """The guarded call."""

    tenant: str = "default"
    workspace: str = "default"
    enabled: bool = True
    open_mode: bool = True
    derive_keys: bool = True
    shadow: bool = False
    payload_limit: Count = 262_144
    result_limit: Count = 67_108_864
    lease_cap_ms: Positive = 3_600_000
    stream_idle_ms: Positive = 300_000
    abandoned_threads: Count = 64
    refresh_ms: Positive = 1_000
    breaker_quorum: Positive = 2


class RetrySection(Section, frozen=True):
    """Retries (R8)."""

    max_attempts: Positive = 4
    base_ms: Count = 200
    max_delay_ms: Count = 4_000
    max_elapsed_ms: Count = 30_000
    retry_after_cap_ms: Count = 30_000
    retriable_codes: tuple[str, ...] = ()
    terminal_codes: tuple[str, ...] = ()


class BreakerSection(Section, frozen=True):
    """Breakers (R9); without this table the presets of a tool's ``effect`` apply."""

    consecutive: Positive = 5
    rate: Ratio = 0.5
    window_calls: Positive = 20
    min_calls: Positive = 10
    window_ms: Positive = 120_000
    cooldown_ms: Positive = 30_000
    probes: Positive = 1
    close_after: Positive = 2
    probe_lease_ms: Positive = 60_000
    forced_open: bool = False


class TtlSection(Section, frozen=True):
    """How long records are kept (R6)."""

    done_ms: Positive = 86_400_000
    failed_ms: Positive = 300_000
    lease_ms: Positive = 120_000


class ToolSection(Section, frozen=True):
    """Overrides for one tool, ``[tools."namespace/name"]``."""

    enabled: bool | None = None
    shadow: bool | None = None
    timeout: Seconds | None = None
    reuse: Literal["turn", "session", "never"] | float | None = None
    on_store_outage: Literal["closed", "open"] | None = None
    forced_open: bool = False
    retry: RetrySection | None = None
    breaker: BreakerSection | None = None
    ttl: TtlSection | None = None


class TelemetrySection(Section, frozen=True):
    """Logs, metrics, spans (R11)."""

    logs: bool = True
    prefix: Annotated[str, Meta(pattern="^[a-zA-Z_][a-zA-Z0-9_]*$")] = "antiphon"
    prometheus: bool = False
    otel: bool = False


class RuleSection(Section, frozen=True):
    """One redaction rule of the user's."""

    name: str
    pattern: str | None = None
    field: str | None = None


class RedactSection(Section, frozen=True):
    """Secrets and personal data (R14, D21). Secrets are always redacted."""

    personal_data: bool = True
    fields: tuple[str, ...] = ()
    rules: tuple[RuleSection, ...] = ()


class RecordSection(Section, frozen=True):
    """The run log."""

    enabled: bool = True
    retention_days: Annotated[float, Meta(gt=0)] = 14.0
    llm_cache: bool = False
    llm_cache_seconds: Seconds = 1_209_600.0


class ArtifactsSection(Section, frozen=True):
    """Where exported runs and large payloads go (K7)."""

    backend: Literal["local", "s3", "r2"] = "local"
    folder: str = "artifacts"
    bucket: str | None = None
    endpoint_url: str | None = None
    region: str | None = None
    prefix: str = ""
    payloads: Literal["auto", "local", "bucket"] = "auto"
    """Where large payloads of the log are kept; ``auto``: in the bucket if there is one and the log is on a server."""
    timeout_s: Seconds = 30.0


class ReplaySection(Section, frozen=True):
    """Replay and scores."""

    threshold: Ratio = 0.8
    semantic_threshold: Ratio = 0.85
    exact_only: bool = False
    embedder: Literal["auto", "minilm", "lexical"] = "auto"
    min_ars: Ratio = 0.8


class PriceSection(Section, frozen=True):
    """Money per million tokens."""

    input: Annotated[float, Meta(ge=0)]
    output: Annotated[float, Meta(ge=0)]


class ProviderSection(Section, frozen=True):
    """A model provider of the host, ``[host.providers.NAME]``."""

    dialect: Literal["openai-chat", "anthropic"]
    base_url: str
    api_key_env: str | None = None
    """Name of the environment variable that holds the key; the key itself never stands in a file."""
    timeout_s: Seconds = 120.0


class HostSection(Section, frozen=True):
    """``antiphon serve``."""

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8321
    workers: Positive = 1
    llm_key_recipe: Literal["rfc0041", "semantic-request-v2"] = "rfc0041"
    workflows: str | None = None
    """Folder of workflow definitions (JSON)."""
    agents: tuple[str, ...] = ()
    """Entry points that can be started as runs: ``file.py:function``."""
    tools: tuple[str, ...] = ()
    """Files or modules whose tools can be nodes of a workflow."""
    providers: dict[str, ProviderSection] = {}
    auth: bool = True
    """Whether requests need a key; switched off, the host serves loopback only."""
    test_seams: bool = False
    replay_verify: bool = False
    """Ask the model in every replay fork and compare the kinds of the answers (D28)."""
    webhooks: bool = False
    webhooks_loopback: bool = False
    max_body_bytes: Positive = 1_048_576
    request_timeout_s: Seconds = 60.0
    shutdown_grace_s: Seconds = 10.0
    retention_seconds: Positive = 1_209_600


class LoopSection(Section, frozen=True):
    """The loop guard and the caps of a run (D25)."""

    enabled: bool = True
    note_after: Positive | None = None
    block_after: Positive | None = None
    note_rounds: Positive | None = None
    block_rounds: Positive | None = None
    ceiling: Positive | None = None
    end_after_blocks: Positive | None = None
    max_calls: Positive | None = None
    max_seconds: Seconds | None = None
    max_cost: Annotated[float, Meta(gt=0)] | None = None


class Config(Section, frozen=True):
    """The whole file."""

    store: StoreSection = StoreSection()
    gateway: GatewaySection = GatewaySection()
    retry: RetrySection = RetrySection()
    breaker: BreakerSection | None = None
    ttl: TtlSection | None = None
    loop: LoopSection = LoopSection()
    tools: dict[str, ToolSection] = {}
    telemetry: TelemetrySection = TelemetrySection()
    redact: RedactSection = RedactSection()
    record: RecordSection = RecordSection()
    artifacts: ArtifactsSection = ArtifactsSection()
    replay: ReplaySection = ReplaySection()
    prices: dict[str, PriceSection] = {}
    host: HostSection = HostSection()
