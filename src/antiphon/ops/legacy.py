"""The keywords of the ``configure`` that users of ``.kurral`` files know (K7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from antiphon.config.load import load
from antiphon.config.wiring import ConfigLike, resolve
from antiphon.errors import ConfigError

_ARTIFACTS = {
    "storage_backend": "backend",
    "r2_bucket_name": "bucket",
    "r2_endpoint_url": "endpoint_url",
    "r2_region": "region",
    "storage_path": "folder",
}
_CREDENTIALS = {
    "r2_access_key_id": "R2_ACCESS_KEY_ID",
    "r2_secret_access_key": "R2_SECRET_ACCESS_KEY",
    "r2_account_id": "R2_ACCOUNT_ID",
}


def config_from_keywords(base: ConfigLike, given: Mapping[str, Any]) -> Any:
    """A configuration with the document's keywords; credentials go to the environment of this process only."""
    import os

    unknown = sorted(set(given) - set(_ARTIFACTS) - set(_CREDENTIALS))
    if unknown:
        known = ", ".join(sorted([*_ARTIFACTS, *_CREDENTIALS]))
        raise ConfigError(f"configure() does not know {', '.join(unknown)}.", hint=f"It knows: {known}.")
    for name, variable in _CREDENTIALS.items():
        if given.get(name) is not None:
            os.environ[variable] = str(given[name])
    section = {field: given[name] for name, field in _ARTIFACTS.items() if given.get(name) is not None}
    loaded = resolve(base)
    table = msgspec.to_builtins(loaded.config)
    table["artifacts"] = {**table["artifacts"], **section}
    return load(_without_none(table), {})


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_none(item) for name, item in value.items() if item is not None}
    return value
