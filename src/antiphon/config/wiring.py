"""The only place where settings become objects."""

from __future__ import annotations

import errno
import functools
import logging
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from antiphon._gateway.settings import Settings, ToolOverride
from antiphon._late import LateRedactor
from antiphon.config.load import Loaded, changed, load, process_environment
from antiphon.config.model import ArtifactsSection, Config
from antiphon.config.place import DATABASE, Place, in_home, state_place, test_stores
from antiphon.contract._base import Section
from antiphon.contract.spec import POLICIES
from antiphon.decide.loop import LoopPolicy
from antiphon.errors import ConfigError, InvalidInput
from antiphon.ports import Blobs, Clock, Listener, Store

if TYPE_CHECKING:
    from antiphon._gateway.ids import Fingerprints
    from antiphon._gateway.plan import Dependencies
    from antiphon._gateway.report import Metrics
    from antiphon._recording.seals import KeyRing
    from antiphon._seal import Sealer
    from antiphon.blobs.s3 import Bucket, S3Objects
    from antiphon.redact import Rules

log: logging.Logger = logging.getLogger("antiphon.config")

ConfigLike = str | Path | Mapping[str, Any] | Config | Settings | Loaded | None


def resolve(config: ConfigLike) -> Loaded:
    """A configuration in any of its forms, loaded."""
    if isinstance(config, Loaded):
        return config
    if isinstance(config, Config):
        return Loaded(config, {}, None, None)
    if isinstance(config, Settings):
        return Loaded(Config(), {}, None, None)
    return load(config)


def settings_of(config: Config) -> Settings:
    """The gateway's part of the configuration."""
    return Settings(
        **_fields(config.gateway),
        **_policies(config),
        loop=LoopPolicy(**_fields(config.loop)),
        wait_replicas=config.store.wait_replicas,
        tools={name: ToolOverride(**{**_fields(tool), **_policies(tool)}) for name, tool in config.tools.items()},
        approvals=config.approvals.policies,
    )


def _fields(section: Section) -> dict[str, Any]:
    return {name: getattr(section, name) for name in section.__struct_fields__}


def _policies(section: Any) -> dict[str, Any]:
    """The policies that a section sets; the others stay ``None``."""
    given = {name: getattr(section, name) for name in POLICIES}
    return {name: None if part is None else POLICIES[name](**_fields(part)) for name, part in given.items()}


# -- stores ----------------------------------------------------------------------------------------------------------


_warned: set[Path | str] = set()


def home() -> Path:
    """Where state is kept (not created); see :mod:`antiphon.config.place`."""
    return state_place().folder


def ensure_home(place: Place | None = None) -> Path:
    """The state folder, created with a ``.gitignore`` so that its content is not committed by accident."""
    folder, project, is_legacy = place or state_place()
    ignore = folder / ".gitignore"
    new = not folder.exists()
    if (folder / ".git").exists():
        raise ConfigError(
            f"{folder} is the root of a repository, not a folder for state: git would ignore everything in it.",
            hint="Name a folder of its own, such as .antiphon, which is the default.",
            path="ANTIPHON_HOME",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not ignore.exists():
            ignore.write_text("*\n", encoding="ascii")
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ConfigError(
            f"The state folder {folder} cannot be used: {error.strerror or error}.",
            hint="Name another one with ANTIPHON_HOME, or a store elsewhere: [store] url.",
            path="ANTIPHON_HOME",
        ) from None
    if (new or is_legacy) and folder not in _warned:
        _warned.add(folder)
        if is_legacy:
            log.warning(
                "claims and runs are in %s, where an earlier release put them. "
                "For one store per project, move the folder to %s.",
                folder,
                project,
            )
        else:
            log.warning("claims and runs are kept in %s (ANTIPHON_HOME sets another folder)", folder.absolute())
    return folder


def open_store(url: str, *, setting: str = "[store]") -> Store:
    """``sqlite:///relative``, ``sqlite:////absolute``, ``memory:``, ``redis://…`` or ``postgresql://…``."""
    scheme = url.partition(":")[0].lower()
    if scheme == "memory":
        from antiphon.stores.memory import MemoryStore

        return MemoryStore()
    if scheme == "sqlite":
        return _open_sqlite(url, setting)
    if scheme.startswith(("redis", "valkey", "unix")):
        from antiphon.stores.redis import RedisStore

        return RedisStore(url, setting=setting)
    if scheme.startswith("postgres"):
        from antiphon.stores.postgres import PostgresStore

        return PostgresStore(url)
    raise ConfigError(
        f"{setting}: the store URL {url.split('@')[-1]!r} has an unknown scheme.",
        hint="Use memory:, sqlite:///path, redis://host:port/0 or postgresql://host/database.",
        path=setting,
    )


def _open_sqlite(url: str, setting: str) -> Store:
    from antiphon.stores.sqlite import SQLiteStore

    path, _, query = url.partition(":")[2].partition("?")
    options: dict[str, Any] = dict(part.partition("=")[::2] for part in query.split("&") if part)
    try:
        if path.startswith("//") and not path.startswith("///"):
            raise InvalidInput(
                f"the SQLite URL {url!r} has two slashes.",
                hint="Use sqlite:///x.db for a relative path, sqlite:////folder/x.db for an absolute one.",
            )
        for name in options.keys() - {"synchronous", "busy_timeout"}:
            raise InvalidInput(f"a SQLite URL has no option {name!r}.", hint="Known: synchronous, busy_timeout.")
        if "busy_timeout" in options:
            if not options["busy_timeout"].replace(".", "", 1).isdecimal():
                raise InvalidInput("busy_timeout must be a number of seconds.")
            options["busy_timeout"] = float(options["busy_timeout"])
        return SQLiteStore(Path(in_home(path.removeprefix("///"))), **options)
    except InvalidInput as error:
        raise ConfigError(f"{setting}: {error.message}", hint=error.hint, path=setting) from None


def compose(claims: Store, log: Store) -> Store:
    """Claims in one store, the run log in another (they may be the same)."""
    if claims is log or claims.url == log.url:
        return claims
    from antiphon.stores.composed import ComposedStore

    return ComposedStore(claims=claims, log=log)


def store_of(config: Config) -> Store:
    """The configured store; SQLite in the state folder by default."""
    section = config.store

    def part(name: str) -> Store:
        url = getattr(section, name)
        if url:
            return open_store(url, setting=f"[store] {name}")
        return open_store(section.url, setting="[store] url") if section.url else _project_store(config)

    if not claims_are_shared(config):
        _warn_of_local_claims(home() / DATABASE)
    if section.claims or section.log:
        return compose(part("claims"), part("log"))
    if not section.url and test_stores.active and not os.environ.get("ANTIPHON_HOME"):
        from antiphon.stores.memory import MemoryStore

        store = MemoryStore()
        test_stores.add(store)
        return store
    return part("url")


def _project_store(config: Config) -> Store:
    """SQLite in the state folder, which is created when the store is first used."""
    from antiphon.stores.sqlite import SQLiteStore

    place = state_place()
    prepare = functools.partial(ensure_home, place)
    return SQLiteStore(place.folder / DATABASE, config.store.synchronous, prepare=prepare)


def keeps_runs(config: Config) -> bool:
    """Whether runs can be stored without creating a place first: a configured store, or a writable state folder."""
    section = config.store
    if section.url or section.claims or section.log:
        return True
    try:
        return os.access(home(), os.W_OK)
    except ConfigError:  # no project
        return False


CLAIMS_NOT_SHARED = "the run log is on a server, but claims are in a file of this machine: a fleet makes calls twice"
SHARE_CLAIMS = "Name the server as [store] url instead of log, or name one for claims as [store] claims."


def claims_are_shared(config: Config) -> bool:
    """False if the run log is on a server, but no store is configured for claims."""
    section = config.store
    return bool(section.claims or section.url) or not _is_server(section.log)


def _warn_of_local_claims(file: Path) -> None:
    notice = f"claims in {file}"
    if notice not in _warned:
        _warned.add(notice)
        log.warning("%s (%s). %s", CLAIMS_NOT_SHARED, file.absolute(), SHARE_CLAIMS)


def _is_server(url: str | None) -> bool:
    return url is not None and not url.startswith(("sqlite", "memory"))


def rules_of(config: Config) -> Rules:
    """The redaction rules: built-in and user-defined."""
    from antiphon.redact import Rule, Rules

    own = tuple(
        Rule(name=rule.name, pattern=rule.pattern or "", field=rule.field or "") for rule in config.redact.rules
    )
    fields = tuple(Rule(name="field", field=name) for name in config.redact.fields)
    return Rules(personal=config.redact.personal_data, user=(*own, *fields))


# -- blobs -----------------------------------------------------------------------------------------------------------


def bucket_of(section: ArtifactsSection, given: Mapping[str, str] | None = None, folder: str = "") -> Bucket:
    """Where exported runs go; *folder* is a subfolder below the configured prefix."""
    from antiphon.blobs.s3 import bucket_from

    if section.backend == "local":
        raise ConfigError(
            "No bucket is configured: [artifacts] backend is 'local'.",
            hint='Set backend = "s3" and bucket in antiphon.toml, or KURRAL_STORAGE_BACKEND=r2 and R2_BUCKET_NAME.',
            path="[artifacts]",
        )
    env = dict(process_environment() if given is None else given)
    if section.backend == "s3" and env.get("AWS_ACCESS_KEY_ID"):
        env.pop("R2_ACCESS_KEY_ID", None)
    found = bucket_from(
        env,
        bucket=section.bucket,
        endpoint=section.endpoint_url,
        region=section.region,
        prefix="/".join(part for part in (section.prefix.strip("/"), folder) if part),
    )
    if found.region == "auto" and str(urlsplit(found.endpoint).hostname or "").endswith("amazonaws.com"):
        found = found._replace(region=env.get("AWS_REGION") or "us-east-1")
    return found


def objects_of(section: ArtifactsSection, folder: str = "") -> S3Objects:
    """The objects of the configured bucket."""
    from antiphon.blobs.s3 import S3Objects

    return S3Objects(bucket_of(section, folder=folder), timeout=section.timeout_s, retries=1)


def payloads_in_bucket(config: Config) -> bool:
    """Whether large payloads go to the bucket: on request, or if the run log is shared but the disk is not."""
    section = config.artifacts
    if section.payloads != "auto" or section.backend == "local":
        return section.payloads == "bucket"
    return _is_server(config.store.log or config.store.url)


PAYLOADS = "outbox/payloads"
"""In the state folder: payloads that have not reached the bucket yet."""
_taken_up: set[Path] = set()


def take_up_payloads(config: Config, blobs: Callable[[], Blobs | None]) -> None:
    """Start sending payloads that an earlier process left; once per process that makes calls or records."""
    if payloads_in_bucket(config):
        from antiphon.blobs.outbox import OutboxBlobs

        folder = home() / PAYLOADS
        new = folder not in _taken_up and folder.exists()
        _taken_up.add(folder)
        if new and isinstance(found := blobs(), OutboxBlobs):
            found.outbox.take_up()


def blobs_of(config: Config, store: Store) -> Blobs:
    """Where large payloads go: a local folder, or the bucket, with a local copy until they have arrived."""
    if payloads_in_bucket(config):
        from antiphon.blobs.outbox import OutboxBlobs

        remote = objects_of(config.artifacts, "payloads")
        named = _named(store, lambda path: f"{socket.gethostname()}:{path}")
        return OutboxBlobs(ensure_home() / PAYLOADS, remote, store=named)
    from antiphon.blobs.local import LocalBlobs

    folder = ensure_home()
    return LocalBlobs(folder / "blobs", _named(store, lambda path: os.path.relpath(path, folder.resolve())))


def _named(store: Any, place: Callable[[Path], str]) -> str:
    """A name that is unique to the store; *place* formats the path of a file."""
    parts = [store.claims, store.log] if hasattr(store, "claims") else [store]
    paths = [getattr(part, "path", None) for part in parts]
    return " + ".join(
        part.url if path is None else f"sqlite:{place(Path(path).resolve())}"
        for part, path in zip(parts, paths, strict=True)
    )


def seal_key_file(config: Config, store: Store) -> Path | None:
    """The path of the seal key: the configured file, or one next to the SQLite database; ``None`` if there is none."""
    path = getattr(store, "path", None)
    if config.store.seal_key_file is not None:
        return Path(config.store.seal_key_file).absolute()
    return None if path is None else Path(f"{path}.seal-key")


def sealer_of(config: Config, store: Store) -> Callable[[], Any]:
    """The key that seals secrets in claim records: a configured one, or a file next to the SQLite database (R14)."""
    file = seal_key_file(config, store)
    given = getattr(store, "seal_key", None)

    @functools.cache
    def sealer() -> Any:
        if given is None and file is None:
            return None
        from antiphon._seal import Sealer

        if given is None:
            return Sealer.from_key_file(file)  # type: ignore[arg-type]
        return Sealer.from_text(given) if isinstance(given, str) else Sealer(given)

    return sealer


def fingerprints_of(config: Config, store: Store) -> Fingerprints:
    """Names claims in results, logs and spans, using a key derived from the store's seal key."""
    from antiphon._gateway.ids import Fingerprints

    @functools.cache
    def secrets() -> Callable[[], tuple[bytes, ...]]:
        from antiphon._seal import FingerprintKeys

        return FingerprintKeys(getattr(store, "seal_key", None), seal_key_file(config, store))

    return Fingerprints(lambda: secrets()(), in_process=store.in_process)


REPLAY_KEY = "ANTIPHON_REPLAY_KEY"
"""Comma-separated keys that unseal the originals of recordings made elsewhere."""


def key_ring_of(config: Config, store: Store) -> KeyRing:
    """The keys that wrap run keys: derived from the store's seal key, or given for another store's recordings."""
    from antiphon._recording.seals import KeyRing

    sealer = sealer_of(config, store)
    in_process = store.in_process
    configured = seal_key_file(config, store)

    @functools.cache
    def wrapping() -> Sealer | None:
        if in_process:  # exports must stay readable: use the project's key, created if there is none
            if not opening():
                from antiphon._seal import Sealer

                Sealer.from_key_file(configured or ensure_home() / "antiphon.db.seal-key")
                opening.cache_clear()
            return opening()[0]
        own = sealer()
        return None if own is None else own.for_replay()

    @functools.cache
    def given() -> tuple[Sealer, ...]:
        from antiphon._seal import Sealer

        texts = process_environment().get(REPLAY_KEY, "").split(",")
        return tuple(Sealer.from_text(text) for text in texts if text.strip())

    @functools.cache
    def opening() -> tuple[Sealer, ...]:
        from antiphon._seal import Sealer

        # in memory: that of the project's store, if it has one
        file = home() / "antiphon.db.seal-key" if configured is None and in_process else configured
        own: list[Sealer] = []
        if getattr(store, "seal_key", None) is not None:
            own.append(sealer())
        elif file is not None and file.exists():
            own.append(Sealer.from_key_file(file))
        return (*given(), *(found.for_replay() for found in own))

    return KeyRing(wrapping, opening, in_process=in_process)


_shared: dict[tuple[str, bool], Metrics] | None = None


def share_metrics() -> None:
    """Make all gateways created in this process from now on count together, like those of a host and its agents."""
    global _shared
    _shared = {}


def metrics_of(config: Config) -> Metrics:
    """The registry that counts calls: one per gateway, or one for the process."""
    from antiphon.telemetry import metrics

    prefix, prometheus = config.telemetry.prefix, config.telemetry.prometheus
    if _shared is not None and (prefix, prometheus) in _shared:
        return _shared[prefix, prometheus]
    made = metrics(prefix=prefix, prometheus=prometheus, rules=lambda: rules_of(config))
    if _shared is not None:
        _shared[prefix, prometheus] = made
    return made


def listeners_of(config: Config) -> tuple[Listener, ...]:
    """Logs and spans."""
    from antiphon.telemetry import listeners

    wanted = config.telemetry
    return listeners(logs=wanted.logs, otel=wanted.otel, prefix=wanted.prefix, rules=lambda: rules_of(config))


def store_from(store: Store | str | None, config: Config) -> Store:
    """The given store, as an object or by its URL, else the configured one."""
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
    from antiphon._gateway.plan import Dependencies
    from antiphon._gateway.report import Reporter

    loaded = resolve(config)
    settings = config if isinstance(config, Settings) else settings_of(loaded.config)
    given = {name: value for name, value in (("tenant", tenant), ("workspace", workspace)) if value is not None}
    if given:
        settings = msgspec.structs.replace(settings, **given)
    found = store_from(store, loaded.config)
    in_process = found.in_process

    @functools.cache
    def blobs() -> Blobs | None:
        return None if in_process else blobs_of(loaded.config, found)

    take_up_payloads(loaded.config, blobs)
    redactor = LateRedactor(lambda: rules_of(loaded.config))
    return Dependencies(
        store=found,
        settings=settings,
        clock=clock or Clock(),
        reporter=Reporter(metrics_of(loaded.config), (*listeners_of(loaded.config), *listeners)),
        redactor=None if in_process else redactor,
        masks=redactor,
        sealer=sealer_of(loaded.config, found),
        fingerprints=fingerprints_of(loaded.config, found),
        blobs=blobs,
        reload=_reloader(loaded, given),
    )


def _reloader(loaded: Loaded, given: Mapping[str, str]) -> Callable[[], Settings | None]:
    def reload() -> Settings | None:
        nonlocal loaded
        if not changed(loaded):
            return None
        loaded = load(loaded.file)
        return msgspec.structs.replace(settings_of(loaded.config), **given)

    return reload
