"""The examples of the pages on Redis run, and their tables say what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from antiphon.stores import RedisStore
from antiphon.stores.redis.schema import Names, head_of
from tests.integration.stores.redis_kit import request_for

DOCS = Path(__file__).parents[3] / "docs"
HOW_TO = DOCS / "how-to" / "run-a-fleet-redis.md"
REFERENCE = DOCS / "reference" / "redis.md"


def test_examples_run(valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    examples = re.findall(r"```python\n(.*?)```", HOW_TO.read_text(), re.DOTALL)
    assert len(examples) == 3
    for example in examples:
        exec(compile(example.replace("redis://localhost:6379/0", valkey_url), str(HOW_TO), "exec"), names)


def test_acl_of_the_page_is_enough(valkey_server: Any) -> None:
    import asyncio

    import redis

    from tests.integration.stores.redis_kit import command, in_face
    from tests.integration.stores.test_redis_places import everything

    server = valkey_server()
    (line,) = re.findall(r"ACL SETUSER .*", HOW_TO.read_text())
    with redis.Redis.from_url(server.url) as client:
        command(client, *line.split())
    store = RedisStore(server.url.replace("redis://", "redis://antiphon:secret@"))
    in_face("sync", store, everything)
    in_face("async", store, everything)
    assert asyncio.run(_ping(store))


async def _ping(store: RedisStore) -> Any:
    journal = store.open_async()
    try:
        return await journal.ping()
    finally:
        await journal.close()


def test_names_are_as_documented() -> None:
    text = REFERENCE.read_text()
    names = Names("antiphon")
    shard = names.shard("KEY")
    number = shard.channel.rpartition(":")[2]
    for name in (shard.record + "KEY", shard.history + "KEY", shard.entries + "TENANT", shard.channel):
        assert re.sub(rf"\b{number}\b", "SHARD", name) in text, name
    for name in (names.tenants, names.run("RUN")[0], names.runs("TENANT"), *names.breakers("TENANT")):
        assert f"`{name}`" in text, name


def test_options_are_as_documented() -> None:
    import inspect

    text = REFERENCE.read_text()
    for name, parameter in inspect.signature(RedisStore).parameters.items():
        if name not in ("url", "patience_s"):
            default = "" if parameter.default is None else str(parameter.default).removesuffix(".0")
            assert re.search(rf"\| `{name}` \| `?{re.escape(default)}`? ?\|", text), name


def test_the_head_is_as_documented() -> None:
    (fields,) = re.findall(r"`\[(idempotencyKey[^\]]*)\]`", REFERENCE.read_text())
    identity, tool, session, rest = head_of(request_for("k")._replace(shown="{}")).split(b"\n")
    import json

    assert [json.loads(line) for line in (identity, tool, session)] == ["call-1", "tools/send", "session-1"]
    assert len(json.loads(rest)) == len(fields.split(", "))
