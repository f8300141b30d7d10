"""Settings become objects here, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from antiphon._gateway.settings import Settings, ToolOverride
from antiphon._late import LateRedactor
from antiphon.config.home import ensure_home, home
from antiphon.config.load import Loaded, changed, load
from antiphon.config.model import Config, Section
from antiphon.config.stores import compose, open_store
from antiphon.contract.spec import BreakerPolicy, RetryPolicy, Ttls
from antiphon.decide.loop import LoopPolicy
from antiphon.ports import Blobs, Clock, Listener, Store

if TYPE_CHECKING:
    from antiphon._gateway.dependencies import Dependencies
    from antiphon._gateway.report import Metrics
    from antiphon.redact import Rules

ConfigLike = str | Path | Mapping[str, Any] | Config | Settings | Loaded | None


def resolve(config: ConfigLike) -> Loaded:
    """Whatever names a configuration, loaded."""
    if isinstance(config, Loaded):
        return config
    if isinstance(config, Config):
        return Loaded(config, {}, None, None)
    if isinstance(config, Settings):
        return Loaded(Config(), {}, None, None)
    return load(config)


def settings_of(config: Config) -> Settings:
    """The gateway's part of the configuration."""
    plain = {name: getattr(config.gateway, name) for name in config.gateway.__struct_fields__}
    return Settings(
        **plain,
        retry=_as(RetryPolicy, config.retry),
        breaker=None if config.breaker is None else _as(BreakerPolicy, config.breaker),
        ttl=None if config.ttl is None else _as(Ttls, config.ttl),
        loop=LoopPolicy(**{name: value for name, value in _fields(config.loop).items() if value is not None}),
        wait_replicas=config.store.wait_replicas,
        tools={
            name: ToolOverride(
                enabled=tool.enabled,
                shadow=tool.shadow,
                timeout=tool.timeout,
                retry=None if tool.retry is None else _as(RetryPolicy, tool.retry),
                breaker=None if tool.breaker is None else _as(BreakerPolicy, tool.breaker),
                ttl=None if tool.ttl is None else _as(Ttls, tool.ttl),
                reuse=tool.reuse,
                on_store_outage=tool.on_store_outage,
                forced_open=tool.forced_open,
            )
            for name, tool in config.tools.items()
        },
    )


def _fields(section: Section) -> dict[str, Any]:
    return {name: getattr(section, name) for name in section.__struct_fields__}


def _as(kind: Any, section: Section) -> Any:
    return kind(**_fields(section))


def store_of(config: Config) -> Store:
    """The configured store; SQLite in the state folder by default."""
    section = config.store
    default = f"sqlite:///{home() / 'antiphon.db'}?synchronous={section.synchronous}"
    if section.claims or section.log:
        claims = open_store(
            section.claims or section.url or default, setting="[store] claims" if section.claims else "[store] url"
        )
        log = open_store(section.log or section.url or default, setting="[store] log" if section.log else "[store] url")
        return compose(claims, log)
    if section.url:
        return open_store(section.url, setting="[store] url")
    ensure_home()
    return open_store(default)


def rules_of(config: Config) -> Rules:
    """The redaction rules: ours and the user's."""
    from antiphon.redact import Rule, Rules

    own = tuple(
        Rule(name=rule.name, pattern=rule.pattern or "", field=rule.field or "") for rule in config.redact.rules
    )
    fields = tuple(Rule(name="field", field=name) for name in config.redact.fields)
    return Rules(personal=config.redact.personal_data, user=(*own, *fields))


def blobs_of(config: Config) -> Blobs:
    """Where large payloads go: a local folder, or the bucket, with everything kept locally until it has arrived."""
    from antiphon.config.buckets import objects_of, payloads_in_bucket

    if payloads_in_bucket(config):
        from antiphon.blobs._content import ContentBlobs
        from antiphon.blobs.outbox import OutboxBlobs

        remote = ContentBlobs(objects_of(config.artifacts, "payloads"))
        return OutboxBlobs(ensure_home() / "outbox" / "payloads", remote, later=True)
    from antiphon.blobs.local import LocalBlobs

    return LocalBlobs(ensure_home() / "blobs")


def sealer_of(config: Config, store: Store) -> Callable[[], Any]:
    """The key that seals secrets in claim records: a configured one, or a file beside the SQLite database (R14)."""
    file = config.store.seal_key_file
    path = getattr(store, "path", None)
    if file is None and path is not None:
        file = f"{path}.seal-key"
    given = getattr(store, "seal_key", None)
    made: list[Any] = []

    def sealer() -> Any:
        if not made and (given is not None or file is not None):
            from antiphon._seal import Sealer

            if isinstance(given, str):
                made.append(Sealer.from_text(given))
            elif given is not None:
                made.append(Sealer(given))
            else:
                made.append(Sealer.from_key_file(Path(str(file))))
        return made[0] if made else None

    return sealer


def metrics_of(config: Config) -> Metrics:
    """The registry that counts calls."""
    from antiphon.telemetry import metrics

    return metrics(
        prefix=config.telemetry.prefix, prometheus=config.telemetry.prometheus, rules=lambda: rules_of(config)
    )


def listeners_of(config: Config) -> tuple[Listener, ...]:
    """Logs and spans."""
    from antiphon.telemetry import listeners

    return listeners(logs=config.telemetry.logs, otel=config.telemetry.otel, rules=lambda: rules_of(config))


def store_from(store: Store | str | None, config: Config) -> Store:
    """The store that was given, as an object or by its URL, else the configured one."""
    if store is None:
        return store_of(config)
    return open_store(store, setting="store") if isinstance(store, str) else store


def wire(
    store: Store | str | None = None,
    config: ConfigLike = None,
    *,
    tenant: str | None = None,
    workspace: str | None = None,
    clock: Clock | None = None,
    listeners: tuple[Listener, ...] = (),
) -> Dependencies:
    """What a gateway is built from."""
    from antiphon._gateway.dependencies import Dependencies
    from antiphon._gateway.report import Reporter

    loaded = resolve(config)
    settings = config if isinstance(config, Settings) else settings_of(loaded.config)
    given = {name: value for name, value in (("tenant", tenant), ("workspace", workspace)) if value is not None}
    if given:
        settings = msgspec.structs.replace(settings, **given)
    found = store_from(store, loaded.config)
    in_process = found.in_process
    kept: dict[str, Blobs] = {}

    def blobs() -> Blobs | None:
        if in_process:
            return None
        if "blobs" not in kept:
            kept["blobs"] = blobs_of(loaded.config)
        return kept["blobs"]

    return Dependencies(
        store=found,
        settings=settings,
        clock=clock or Clock(),
        reporter=Reporter(metrics_of(loaded.config), (*listeners_of(loaded.config), *listeners)),
        redactor=None if in_process else LateRedactor(lambda: rules_of(loaded.config)),
        sealer=sealer_of(loaded.config, found),
        blobs=blobs,
        reload=_reloader(loaded, given),
    )


def _reloader(loaded: Loaded, given: Mapping[str, str]) -> Callable[[], Settings | None]:
    state = {"loaded": loaded}

    def reload() -> Settings | None:
        if not changed(state["loaded"]):
            return None
        state["loaded"] = load(state["loaded"].file)
        return msgspec.structs.replace(settings_of(state["loaded"].config), **given)

    return reload
