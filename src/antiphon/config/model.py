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
    """``sqlite:///path``, ``redis://…``, ``postgresql://…``, ``memory:``; else SQLite in the state folder."""
    claims: str | None = None
    """Claims and breakers elsewhere than the run log."""
    log: str | None = None
    """The run log elsewhere than the claims."""
    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    """SQLite: ``FULL`` outlives a power failure, ``NORMAL`` only the end of the process."""
    seal_key_file: str | None = None
    """Key for results that hold secrets; SQLite makes one by itself."""
    wait_replicas: Count = 0
    """Redis: replicas that must have the claim of a ``safetyCritical`` call before it is made."""


class GatewaySection(Section, frozen=True):
    """The guarded call."""

    tenant: str = "default"
    """Whose data this is; part of every key."""
    workspace: str = "default"
    """A part of a tenant; part of every key."""
    enabled: bool = True
    """Off: tools are called directly, nothing else happens (R12)."""
    open_mode: bool = True
    """Off: breakers count but never block."""
    derive_keys: bool = True
    """Off: calls without a given key run without dedupe."""
    shadow: bool = False
    """Compute and log what would have been done, change nothing."""
    payload_limit: Count = 262_144
    """Bytes of a result that stay in the claim record; larger ones go to the blobs."""
    result_limit: Count = 67_108_864
    """Bytes of a result that are kept at all."""
    lease_cap_ms: Positive = 3_600_000
    """How long a lease is renewed at most."""
    stream_idle_ms: Positive = 300_000
    """A stream that nobody pulls for so long counts as broken off."""
    abandoned_threads: Count = 64
    """How many timed-out threads may still be running before tools with a time limit are refused."""
    refresh_ms: Positive = 1_000
    """How often switches, the file and shared breakers are looked at."""
    breaker_quorum: Positive = 2
    """How many processes must see a dependency fail before the fleet fences it off."""


class RetrySection(Section, frozen=True):
    """Retries (R8)."""

    max_attempts: Positive = 4
    """Attempts of a call in all."""
    base_ms: Count = 200
    """The first delay is between 0 and this."""
    max_delay_ms: Count = 4_000
    """No delay is longer, except one that the service asked for."""
    max_elapsed_ms: Count = 30_000
    """No attempt starts later than this after the first."""
    retry_after_cap_ms: Count = 30_000
    """A service that asks for a longer wait ends the call."""
    retriable_codes: tuple[str, ...] = ()
    """Error codes that are tried again beside the usual ones."""
    terminal_codes: tuple[str, ...] = ()
    """Error codes that are never tried again."""


class BreakerSection(Section, frozen=True):
    """Breakers (R9); without this table the presets of a tool's ``effect`` apply."""

    consecutive: Positive = 5
    """Failures in a row that open it."""
    rate: Ratio = 0.5
    """Share of failures in the window that opens it."""
    window_calls: Positive = 20
    """The window: at most so many attempts …"""
    min_calls: Positive = 10
    """The share counts from so many attempts on."""
    window_ms: Positive = 120_000
    """… and none older than this."""
    cooldown_ms: Positive = 30_000
    """How long it stays open before a probe."""
    probes: Positive = 1
    """Probes at a time."""
    close_after: Positive = 2
    """Good probes that close it."""
    probe_lease_ms: Positive = 60_000
    """A probe without an answer is given up after this."""
    forced_open: bool = False
    """Held open until the setting goes."""


class TtlSection(Section, frozen=True):
    """How long records are kept (R6)."""

    done_ms: Positive = 86_400_000
    """Records of calls that succeeded, and of unknown outcomes."""
    failed_ms: Positive = 300_000
    """Records of calls that failed."""
    lease_ms: Positive = 120_000
    """How long a claim is held without a sign of life."""


class ToolSection(Section, frozen=True):
    """Overrides for one tool, ``[tools."namespace/name"]``."""

    enabled: bool | None = None
    """Off: this tool is called directly."""
    shadow: bool | None = None
    """As ``gateway.shadow``, for this tool."""
    timeout: Seconds | None = None
    """Seconds one attempt may take."""
    reuse: Literal["turn", "session", "never"] | float | None = None
    """How long a result answers new calls with equal arguments: ``turn``, ``session``, ``never`` or seconds (D35)."""
    on_store_outage: Literal["closed", "open"] | None = None
    """``closed`` refuses, ``open`` calls without a claim (D10)."""
    forced_open: bool = False
    """Its breaker is held open until the setting goes."""
    retry: RetrySection | None = None
    """As ``[retry]``."""
    breaker: BreakerSection | None = None
    """As ``[breaker]``."""
    ttl: TtlSection | None = None
    """As ``[ttl]``."""


class TelemetrySection(Section, frozen=True):
    """Logs, metrics, spans (R11)."""

    logs: bool = True
    """Structured log lines through the logger ``antiphon``."""
    prefix: Annotated[str, Meta(pattern="^[a-zA-Z_][a-zA-Z0-9_]*$")] = "antiphon"
    """Beginning of the metrics' names."""
    prometheus: bool = False
    """Metrics to ``prometheus_client``."""
    otel: bool = False
    """Spans and metrics to OpenTelemetry."""


class RuleSection(Section, frozen=True):
    """One redaction rule of the user's."""

    name: str
    """Named in the placeholder."""
    pattern: str | None = None
    """A regular expression of what is secret."""
    field: str | None = None
    """The name of a field whose value is secret."""


class RedactSection(Section, frozen=True):
    """Secrets and personal data (R14, D21). Secrets are always redacted."""

    personal_data: bool = True
    """Whether artifacts and run log are kept free of e-mail addresses, phone, card and account numbers."""
    fields: tuple[str, ...] = ()
    """More field names whose values are secret."""
    rules: tuple[RuleSection, ...] = ()
    """More rules: ``[[redact.rules]]`` with ``name`` and ``pattern`` or ``field``."""


class RecordSection(Section, frozen=True):
    """The run log."""

    enabled: bool = True
    """Off: runs are not recorded."""
    retention_days: Annotated[float, Meta(gt=0)] = 14.0
    """``gc`` keeps younger runs unless forced."""
    llm_cache: bool = False
    """Whether equal requests of live runs are answered from earlier answers (D14)."""
    llm_cache_seconds: Seconds = 1_209_600.0
    """How long such an answer is good."""


class ArtifactsSection(Section, frozen=True):
    """Where exported runs and large payloads go (K7)."""

    backend: Literal["local", "s3", "r2"] = "local"
    """``s3`` and ``r2`` need ``bucket``."""
    folder: str = "artifacts"
    """Where ``local`` exports go."""
    bucket: str | None = None
    """Name of the bucket."""
    endpoint_url: str | None = None
    """Address of an S3-compatible service other than AWS."""
    region: str | None = None
    """Region of the bucket."""
    prefix: str = ""
    """Beginning of the objects' names."""
    payloads: Literal["auto", "local", "bucket"] = "auto"
    """Where large payloads of the log are kept; ``auto``: in the bucket if there is one and the log is on a server."""
    timeout_s: Seconds = 30.0
    """Seconds a request to the bucket may take."""


class ReplaySection(Section, frozen=True):
    """Replay and scores."""

    threshold: Ratio = 0.8
    """Determinism score below which a changed configuration makes a replay exploring (K3)."""
    semantic_threshold: Ratio = 0.85
    """Least similarity of free text that an exploring replay accepts (D11)."""
    exact_only: bool = False
    """No semantic matches at all."""
    embedder: Literal["auto", "minilm", "lexical"] = "auto"
    """``auto``: the sentence model if it is installed, else words."""
    min_ars: Ratio = 0.8
    """Score below which ``antiphon replay`` fails."""


class PriceSection(Section, frozen=True):
    """Money per million tokens."""

    input: Annotated[float, Meta(ge=0)]
    """Of what the model reads."""
    output: Annotated[float, Meta(ge=0)]
    """Of what it writes."""


class ProviderSection(Section, frozen=True):
    """A model provider of the host, ``[host.providers.NAME]``."""

    dialect: Literal["openai-chat", "anthropic"]
    """How the provider is spoken to."""
    base_url: str
    """Where it is."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key; the key itself never stands in a file."""
    timeout_s: Seconds = 120.0
    """Seconds a request may take."""


class HostSection(Section, frozen=True):
    """``antiphon serve``."""

    host: str = "127.0.0.1"
    """Address to bind."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8321
    """Port to bind."""
    workers: Positive = 1
    """Worker processes."""
    llm_key_recipe: Literal["rfc0041", "semantic-request-v2"] = "rfc0041"
    """What the keys of model calls are made of (D24)."""
    workflows: str | None = None
    """Folder of workflow definitions (JSON)."""
    agents: tuple[str, ...] = ()
    """Entry points that can be started as runs: ``file.py:function``."""
    tools: tuple[str, ...] = ()
    """Files or modules whose tools can be nodes of a workflow."""
    providers: dict[str, ProviderSection] = {}
    """``[host.providers.NAME]``, see below."""
    auth: bool = True
    """Whether requests need a key; switched off, the host serves loopback only."""
    test_seams: bool = False
    """Opens the routes of the conformance tests."""
    replay_verify: bool = False
    """Ask the model in every replay fork and compare the kinds of the answers (D28)."""
    webhooks: bool = False
    """Whether runs may be announced to addresses their callers give."""
    webhooks_loopback: bool = False
    """Whether such an address may be this machine."""
    max_body_bytes: Positive = 1_048_576
    """Largest request body."""
    request_timeout_s: Seconds = 60.0
    """Seconds a request may take."""
    shutdown_grace_s: Seconds = 10.0
    """Seconds running work is given at the end."""
    retention_seconds: Positive = 1_209_600
    """The replay window that is advertised; never more than ``record.retention_days``."""


class LoopSection(Section, frozen=True):
    """The loop guard and the caps of a run (D25)."""

    enabled: bool = True
    """Off: nothing is called a loop; the caps below hold where they are set."""
    note_after: Positive | None = None
    """Equal calls with equal results after which the model is told."""
    block_after: Positive | None = None
    """… after which the call is refused."""
    note_rounds: Positive | None = None
    """Rounds of a cycle after which the model is told."""
    block_rounds: Positive | None = None
    """… after which the call is refused."""
    ceiling: Positive | None = None
    """Equal calls, whatever came back, after which the call is refused."""
    end_after_blocks: Positive | None = None
    """Refused calls without progress that end the run."""
    max_calls: Positive | None = None
    """Calls of one run, also with ``enabled = false``; then the run is ended."""
    max_seconds: Seconds | None = None
    """Seconds of one run, likewise."""
    max_cost: Annotated[float, Meta(gt=0)] | None = None
    """Cost of one run, likewise: the ``cost`` of its tools, and its tokens by ``[prices]``. Then no more tools run."""


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
