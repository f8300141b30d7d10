"""Reads ``antiphon.toml``, the environment and ``.env``, and remembers where each value came from (D32, K7)."""

from __future__ import annotations

import difflib
import logging
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import msgspec

from antiphon.config.model import Config
from antiphon.config.place import FILE_NAME, in_home, project_file, test_stores
from antiphon.contract._base import Section
from antiphon.errors import ConfigError

log: logging.Logger = logging.getLogger("antiphon.config")
_AT = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"unknown field `(?P<name>[^`]+)`")
_HEAD = re.compile(r"\s*\[+\s*([^\]]+?)\s*\]+")
_KEY = re.compile(r"\s*([^=#\[]+?)\s*=")
_READ = re.compile(r"(?:KURRAL|R2|AWS)_[A-Z0-9_]+")
"""Only the bucket and its credentials are read from the file; everything else in it is ignored."""


class Loaded(NamedTuple):
    """The settings, and the source of every value that is not a default."""

    config: Config
    sources: Mapping[str, str]
    file: Path | None
    stamp: tuple[int, int] | None
    """Modification time and size of the file just before it was read."""


def process_environment() -> dict[str, str]:
    """``os.environ``, with the storage settings of a ``.env`` file in the working folder as defaults."""
    try:
        lines = Path(".env").read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    below = {}
    for line in lines:
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if equals and _READ.fullmatch(name.strip()):
            below[name.strip()] = _unquoted(value.strip())
    return {**below, **os.environ}


def _unquoted(value: str) -> str:
    """Quotes and comments are removed, nothing is expanded."""
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value.partition(" #")[0].rstrip()


def load(source: str | Path | Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None) -> Loaded:
    """Settings from a file (or a mapping of the same shape), overridden by the environment.

    >>> load({"gateway": {"tenant": "acme"}}, {}).config.gateway.tenant
    'acme'
    """
    env = process_environment() if environment is None else environment
    if environment is None:
        _warn_of_unknown(env)
    if isinstance(source, Mapping):
        return _build(dict(source), "given mapping", None, env, "")
    path = Path(source if source is not None else in_home(env.get("ANTIPHON_CONFIG") or FILE_NAME))
    found = source is None and not env.get("ANTIPHON_CONFIG")
    if found and not path.is_file():
        project = project_file()
        if project is None:
            return _build({}, "", None, env, "")
        path = project
    stamp = _stamp(path)  # first: what is written while it is read is then seen as a change
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors write a byte order mark
        table = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"The configuration {path} cannot be read: {error.strerror}.", path=str(path)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.", path=str(path)) from None
    if isinstance(store := table.get("store"), dict):
        table["store"] = _placed(store, path.parent)
        if found and test_stores.active:  # a test chooses its store itself
            table["store"] = {name: value for name, value in store.items() if name not in _STORES}
    return _build(table, str(path), path.absolute(), env, text, stamp)


_STORES = ("url", "claims", "log")
_PATHS = {"store": ("seal_key_file",), "artifacts": ("folder",), "host": ("workflows", "agents", "tools")}


def _placed(store: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A relative SQLite path is relative to the configuration's folder, wherever the program is started."""
    placed = dict(store)
    for name in _STORES:
        url = store.get(name)
        if isinstance(url, str) and url.startswith("sqlite:///") and url[10:11] not in ("/", ":", ""):
            placed[name] = f"sqlite:///{folder.absolute() / in_home(url.removeprefix('sqlite:///'))}"
    return placed


def changed(loaded: Loaded) -> bool:
    """Whether the file has changed since it was read."""
    return loaded.file is not None and _stamp(loaded.file) != loaded.stamp


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _build(
    table: dict[str, Any],
    name: str,
    path: Path | None,
    env: Mapping[str, str],
    text: str,
    stamp: tuple[int, int] | None = None,
) -> Loaded:
    sources = {key: name for key, value in leaves(table) if not isinstance(value, Mapping)}
    try:
        config = msgspec.convert(table, Config)
    except msgspec.ValidationError as error:
        raise _explain(str(error), name, text, table) from None
    except UnicodeEncodeError as error:
        raise ConfigError(f"{name}: a text is not valid Unicode ({error.reason}).", path=name) from None
    for variable, (key, kind) in _variables().items():
        if not env.get(variable):
            continue
        value = _given(env[variable], kind)
        section, _, leaf = key.partition(".")
        merged = {**table.get(section, {}), leaf: value}
        table = {**table, section: merged}
        try:
            str(value).encode()  # an invalid UTF-8 byte appears as a lone surrogate
            config = msgspec.convert(table, Config, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(
                f"{variable}={value!r} is not valid for {key}: {_plainly(str(error))}.", path=variable
            ) from None
        except UnicodeError:
            raise ConfigError(f"{variable} is not valid UTF-8.", path=variable) from None
        sources[key] = f"environment {variable}"
    return Loaded(_in_home(config), sources, path, stamp)


def _in_home(config: Config) -> Config:
    """The configuration with the home folder in place of ``~`` in its paths; store URLs are read when they are used."""
    for section, names in _PATHS.items():
        values = getattr(config, section)
        paths = {name: _path(getattr(values, name)) for name in names}
        config = msgspec.structs.replace(config, **{section: msgspec.structs.replace(values, **paths)})
    return config


def _path(value: str | tuple[str, ...] | None) -> Any:
    if isinstance(value, tuple):
        return tuple(map(in_home, value))
    return value and in_home(value)


@cache
def _variables() -> dict[str, tuple[str, Any]]:
    """``ANTIPHON_<SECTION>_<KEY>`` for every plain setting, then the short names: the setting and its type."""
    found: dict[str, tuple[str, Any]] = {}
    for section, kind in get_type_hints(Config).items():
        for candidate in (kind, *getattr(kind, "__args__", ())):
            if isinstance(candidate, type) and issubclass(candidate, Section):
                for field in msgspec.structs.fields(candidate):
                    if settable(field.type):
                        found[f"ANTIPHON_{section}_{field.name}".upper()] = (f"{section}.{field.name}", field.type)
    kinds = dict(found.values())
    return found | {variable: (key, kinds[key]) for variable, key in _SHORT.items()}


def unknown_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Variables that look like settings but are not, each with the name that was probably meant (or ``""``)."""
    known = {*_variables(), *_OTHER}
    strange = [name for name in env if name.startswith("ANTIPHON_") and name not in known and not _OWN.match(name)]
    return {name: next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.8)), "") for name in strange}


_warned: set[str] = set()


def _warn_of_unknown(env: Mapping[str, str]) -> None:
    """Warn once per variable: a misspelt setting has no effect, and nothing else reports it."""
    for name, meant in unknown_variables(env).items():
        if name not in _warned:
            _warned.add(name)
            hint = f"Did you mean {meant}?" if meant else "List the settings with: antiphon config show"
            log.warning("%s is not a setting and has no effect. %s", name, hint)


def settable(kind: Any) -> bool:
    """Whether a variable can hold a setting of this type: not a table, nor a list of tables."""
    inner = [part for part in getattr(kind, "__args__", ()) if isinstance(part, type) and issubclass(part, Section)]
    return getattr(kind, "__origin__", kind) is not dict and not inner


_SHORT = {
    "ANTIPHON_STORE": "store.url",
    "ANTIPHON_TENANT": "gateway.tenant",
    "ANTIPHON_WORKFLOWS": "host.workflows",
    "ANTIPHON_TEST_SEAMS": "host.test_seams",
    "KURRAL_STORAGE_BACKEND": "artifacts.backend",
    "R2_BUCKET_NAME": "artifacts.bucket",
    "R2_ENDPOINT_URL": "artifacts.endpoint_url",
}


_OTHER = (
    "ANTIPHON_HOME",
    "ANTIPHON_MODELS",
    "ANTIPHON_CONFIG",
    "ANTIPHON_API_KEY",
    "ANTIPHON_SHADOW",
    "ANTIPHON_REPLAY_KEY",
)
_OWN = re.compile(r"ANTIPHON_(?:TEST|BENCH|EXEC)")
"""Variables of our tests, our benchmarks and of programs that ``antiphon exec`` starts."""


_BOOLEANS = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}


def _given(value: str, kind: Any) -> Any:
    if getattr(kind, "__origin__", None) is tuple:
        return [part.strip() for part in value.split(",") if part.strip()]
    if bool in (kind, *getattr(kind, "__args__", ())):
        return _BOOLEANS.get(value.strip().lower(), value)
    return value


def leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings in a table, by their whole names; an empty table stands for itself."""
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _settings() -> list[str]:
    """The tables, and the settings in them."""
    inside = {key for key, _ in _variables().values()}
    return sorted(inside | {field.name for field in msgspec.structs.fields(Config)})


def _explain(message: str, name: str, text: str, table: Mapping[str, Any]) -> ConfigError:
    """The error with its line number."""
    at = _AT.search(message)
    path = _named(at["path"], table) if at else ""
    unknown = _UNKNOWN.search(message)
    setting = ".".join(part for part in (path, unknown["name"] if unknown else "") if part)
    line = _line_of(text, re.sub(r"(\[\d+\])", r".\1", setting))
    where = f"{name}, line {line}" if line else name
    problem = f"there is no setting {setting}" if unknown else f"{_plainly(message)} ({setting})"
    near = difflib.get_close_matches(setting, _settings(), 1) if unknown else []
    hint = f"Did you mean {near[0]}?" if near else "See: antiphon config show" if unknown else ""
    return ConfigError(f"{where}: {problem}.", hint=hint, path=f"{name}:{line}" if line else name, setting=setting)


_TYPES = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false", "null": "nothing"}
_TYPES |= {"array": "a list", "object": "a table"}


def _plainly(message: str) -> str:
    """The validation message, with TOML types in words."""

    def words(found: re.Match[str]) -> str:
        wanted = [_TYPES.get(kind, kind) for kind in found[1].split(" | ") if kind != "null"]
        return f"must be {' or '.join(wanted)}, is {_TYPES.get(found[2], found[2])}"

    return re.sub(r"^Expected `([\w |]+)`, got `(\w+)`", words, _AT.sub("", message))


def _named(path: str, table: Mapping[str, Any]) -> str:
    """*path* with the table's name in place of ``[...]``, as in ``tools.send.retry``."""
    head, anonymous, rest = path.partition("[...]")
    if not anonymous:
        return path
    outer = head.split(".")
    tables: Any = table
    for part in outer:
        tables = tables[part]
    for name, entry in tables.items():
        alone: dict[str, Any] = {name: entry}
        for part in reversed(outer):
            alone = {part: alone}
        try:
            msgspec.convert(alone, Config)
        except msgspec.ValidationError:
            return f"{head}.{name}{rest}"
    return path


def _line_of(text: str, setting: str) -> int:
    """The line that sets *setting*, else the innermost table or key around it."""
    section, line_found, length = "", 0, 0
    counts: Counter[str] = Counter()
    for number, line in enumerate(text.splitlines(), 1):
        if head := _HEAD.match(line):
            section = whole = re.sub(r"[\"']", "", head[1])
            if line.lstrip().startswith("[["):  # one of several tables
                counts[section] += 1
                section = whole = f"{section}.[{counts[section] - 1}]"
        elif key := _KEY.match(line):
            whole = re.sub(r"[\"']", "", f"{section}.{key[1]}".lstrip("."))
        else:
            continue
        if f"{setting}.".startswith(f"{whole}.") and len(whole) > length:
            line_found, length = number, len(whole)
    return line_found
