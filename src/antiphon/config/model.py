"""Every setting there is, with its default. ``antiphon.toml`` and ``ANTIPHON_*`` variables fill it."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from antiphon._gateway.settings import ApprovalPolicy, GatewayOptions, ToolSwitches
from antiphon.contract._base import Count, Lasting, Positive, Seconds, Section
from antiphon.decide.loop import LoopLimits
from antiphon.errors import ConfigError

Ratio = Annotated[float, Meta(ge=0.0, le=1.0)]


class StoreSection(Section, frozen=True):
    """Where claims and the run log are stored: ``url`` for both, or ``claims`` and ``log`` separately."""

    url: str | None = None
    """``sqlite:///path``, ``redis://…``, ``postgresql://…`` or ``memory:``; default: SQLite in the state folder."""
    claims: str | None = None
    """Store for claims and breaker state, if not ``url``."""
    log: str | None = None
    """Store for the run log alone, if not ``url``: claims stay where ``claims`` or ``url`` says."""
    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    """SQLite: ``FULL`` survives a power failure, ``NORMAL`` only a process crash."""
    seal_key_file: str | None = None
    """File with the key that seals results containing secrets; SQLite creates one automatically."""
    wait_replicas: Count = 0
    """Redis: replicas that must confirm the claim of a ``safetyCritical`` call before it is dispatched."""


class RetrySection(Section, frozen=True):
    """Retries."""

    max_attempts: Positive = 4
    """Attempts per call, including the first."""
    base_ms: Count = 200
    """Upper bound of the first delay; the delay is random between 0 and this."""
    max_delay_ms: Count = 4_000
    """Upper bound of any delay, except one requested by the service."""
    max_elapsed_ms: Count = 30_000
    """No attempt starts later than this after the first one."""
    retry_after_cap_ms: Count = 30_000
    """Longest ``Retry-After`` that is honoured; a longer one ends the call and pauses the tool for this long."""
    retriable_codes: tuple[str, ...] = ()
    """Additional error codes that are retried."""
    terminal_codes: tuple[str, ...] = ()
    """Error codes that are never retried."""


class BreakerSection(Section, frozen=True):
    """Circuit breakers; without this table the presets of a tool's ``effect`` apply."""

    consecutive: Positive = 5
    """Consecutive failures that open the breaker."""
    rate: Ratio = 0.5
    """Failure rate within the window that opens the breaker."""
    window_calls: Positive = 20
    """Size of the window in attempts."""
    min_calls: Positive = 10
    """Attempts in the window before the failure rate counts."""
    window_ms: Positive = 120_000
    """Age limit of attempts in the window."""
    cooldown_ms: Positive = 30_000
    """How long the breaker stays open before it allows a probe."""
    probes: Positive = 1
    """Concurrent probes while half-open."""
    close_after: Positive = 2
    """Successful probes that close the breaker."""
    probe_lease_ms: Positive = 60_000
    """A probe without a result is given up after this."""
    forced_open: bool = False
    """Keeps the breaker open until the setting is removed."""


class TtlSection(Section, frozen=True):
    """How long claim records are kept."""

    done_ms: Lasting = 86_400_000
    """Records of successful calls; unknown outcomes stay until they are settled, or for ``unknown_ttl``."""
    failed_ms: Lasting = 300_000
    """Records of failed calls."""
    lease_ms: Lasting = 120_000
    """How long a claim is held without renewal."""


class ToolSection(ToolSwitches, frozen=True):
    """Overrides for one tool, ``[tools."namespace/name"]``."""

    retry: RetrySection | None = None
    """Like ``[retry]``, for this tool."""
    breaker: BreakerSection | None = None
    """Like ``[breaker]``, for this tool."""
    ttl: TtlSection | None = None
    """Like ``[ttl]``, for this tool."""


class TelemetrySection(Section, frozen=True):
    """Logs, metrics and spans."""

    logs: bool = True
    """Structured log lines through the logger ``antiphon``."""
    prefix: Annotated[str, Meta(pattern="^[a-zA-Z_][a-zA-Z0-9_]*$")] = "antiphon"
    """Prefix of metric names."""
    prometheus: bool = False
    """Export metrics through ``prometheus_client``."""
    otel: bool = False
    """Export spans and metrics through OpenTelemetry."""


class RuleSection(Section, frozen=True):
    """A redaction rule of your own."""

    name: str
    """Name that appears in the mask."""
    pattern: str | None = None
    """Regular expression that matches the secret."""
    field: str | None = None
    """Name of a field whose value is secret."""

    def __post_init__(self) -> None:
        from antiphon.redact import Rule

        try:
            rule = Rule(name=self.name, pattern=self.pattern or "", field=self.field or "")
            if rule.pattern:
                rule.compile()
        except ConfigError as error:
            raise ValueError(" ".join(filter(None, (error.message, error.hint))).removesuffix(".")) from None


class RedactSection(Section, frozen=True):
    """Secrets and personal data. Secrets are always redacted."""

    personal_data: bool = True
    """Redact e-mail addresses and phone, card and account numbers in artifacts and the run log."""
    keep_sealed: bool = True
    """Keep the originals of redacted values sealed (encrypted) in the run log, so that a replay can use them."""
    fields: tuple[str, ...] = ()
    """Additional field names whose values are secret."""
    rules: tuple[RuleSection, ...] = ()
    """Additional rules: ``[[redact.rules]]`` with ``name`` and ``pattern`` or ``field``."""


class RecordSection(Section, frozen=True):
    """The run log."""

    enabled: bool = True
    """Off: runs are not recorded."""
    retention_days: Annotated[float, Meta(gt=0)] = 14.0
    """``antiphon gc`` keeps younger runs unless forced."""
    llm_cache: bool = False
    """Answer equal model requests of live runs from earlier responses."""
    llm_cache_seconds: Seconds = 1_209_600.0
    """How long such a response may be reused."""


class ArtifactsSection(Section, frozen=True):
    """Where exported runs and large payloads are stored."""

    backend: Literal["local", "s3", "r2"] = "local"
    """``s3`` and ``r2`` need ``bucket``."""
    folder: str = "artifacts"
    """Folder for exports of the ``local`` backend."""
    bucket: str | None = None
    """Bucket name."""
    endpoint_url: str | None = None
    """URL of an S3-compatible service other than AWS."""
    region: str | None = None
    """Bucket region."""
    prefix: str = ""
    """Prefix of object names."""
    payloads: Literal["auto", "local", "bucket"] = "auto"
    """Where large payloads are stored; ``auto``: in the bucket if there is one and the run log is on a server."""
    timeout_s: Seconds = 30.0
    """Timeout of a request to the bucket in seconds."""


class ReplaySection(Section, frozen=True):
    """Replay and scores."""

    threshold: Ratio = 0.8
    """Determinism score below which a changed configuration requires an explore replay."""
    semantic_threshold: Ratio = 0.85
    """Lowest similarity of free text that an explore replay accepts as a match."""
    exact_only: bool = False
    """Disable semantic matching."""
    embedder: Literal["auto", "minilm", "lexical"] = "auto"
    """``auto``: the sentence model if it is installed, otherwise the lexical embedder."""
    min_ars: Ratio = 0.8
    """Agent regression score below which ``antiphon replay`` fails."""


class PriceSection(Section, frozen=True):
    """Price per million tokens."""

    input: Annotated[float, Meta(ge=0)]
    """Price of input tokens."""
    output: Annotated[float, Meta(ge=0)]
    """Price of output tokens."""


class ProviderSection(Section, frozen=True):
    """A model provider of the host, ``[host.providers.NAME]``."""

    dialect: Literal["openai-chat", "anthropic"]
    """API dialect of the provider."""
    base_url: Annotated[str, Meta(pattern="^https?://[^/]")]
    """Base URL of the API, ``http`` or ``https``."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key; the key itself is never in a file."""
    timeout_s: Seconds = 120.0
    """Request timeout in seconds."""


class HostSection(Section, frozen=True):
    """``antiphon serve``."""

    host: str = "127.0.0.1"
    """Address to bind to."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8321
    """Port to bind to."""
    workers: Positive = 1
    """Worker processes."""
    llm_key_recipe: Literal["rfc0041", "semantic-request-v2"] = "rfc0041"
    """Recipe for the keys of model calls."""
    workflows: str | None = None
    """Folder with workflow definitions (JSON)."""
    agents: tuple[str, ...] = ()
    """Entry points that can be started as runs: ``file.py:function``."""
    tools: tuple[str, ...] = ()
    """Files or modules whose tools can be workflow nodes."""
    providers: dict[str, ProviderSection] = {}
    """``[host.providers.NAME]``, see below."""
    auth: bool = True
    """Require an API key; when off, the host serves loopback only."""
    test_seams: bool = False
    """Enable the routes for conformance tests."""
    replay_verify: bool = False
    """Call the model in every replay fork and compare the kinds of responses."""
    webhooks: bool = False
    """Allow webhooks to URLs that callers register."""
    webhooks_loopback: bool = False
    """Allow webhooks to this machine."""
    max_body_bytes: Positive = 1_048_576
    """Largest request body."""
    request_timeout_s: Seconds = 60.0
    """Seconds that the body of a request may take to arrive."""
    header_timeout_s: Seconds = 10.0
    """Seconds that the headers of a request may take to arrive."""
    idle_timeout_s: Seconds = 30.0
    """Seconds that a connection may stay open between requests, and in which a client reads 16 KB of an answer."""
    max_connections: Positive = 1_000
    """Open connections per worker; at most half the descriptors of the process. The longest idle one gives way."""
    tenant_requests: Positive = 200
    """Requests that one tenant may have open at a time per worker, streams and polls included."""
    tenant_runs: Positive = 1_000
    """Runs and calls of one tenant that a worker executes at a time."""
    tenant_threads: Positive = 8
    """Threads per worker for the synchronous agents of one tenant; more of its agents wait."""
    tenant_webhooks: Positive = 20
    """Webhooks of one tenant."""
    shutdown_grace_s: Seconds = 10.0
    """Seconds that running work gets to finish at shutdown."""
    retention_seconds: Positive = 1_209_600
    """Advertised replay window; capped at ``record.retention_days``."""


class ApprovalsSection(Section, frozen=True):
    """Who may approve calls, and by which rules they need it."""

    allow_self: bool = False
    """Whether the actor that made a call may approve it."""
    url: str = ""
    """Where people open signed links, ``https://desk.example.com/approve``: the page that ``antiphon serve`` has."""
    policies: dict[str, ApprovalPolicy] = {}
    """Rules by name, for ``@gateway.tool(approve="name")``."""


class Config(Section, frozen=True):
    """The whole file."""

    store: StoreSection = StoreSection()
    gateway: GatewayOptions = GatewayOptions()
    retry: RetrySection = RetrySection()
    breaker: BreakerSection | None = None
    ttl: TtlSection = TtlSection()
    loop: LoopLimits = LoopLimits()
    tools: dict[str, ToolSection] = {}
    approvals: ApprovalsSection = ApprovalsSection()
    telemetry: TelemetrySection = TelemetrySection()
    redact: RedactSection = RedactSection()
    record: RecordSection = RecordSection()
    artifacts: ArtifactsSection = ArtifactsSection()
    replay: ReplaySection = ReplaySection()
    prices: dict[str, PriceSection] = {}
    host: HostSection = HostSection()
