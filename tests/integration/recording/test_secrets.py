"""R14, D21: planted secrets of all common kinds pass through a run everywhere, and are found nowhere on the way."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import antiphon
from antiphon import Antiphon
from antiphon.cli import main
from antiphon.ops.artifacts import export_run
from antiphon.ops.runs import find_run
from tests.integration.recording.kit import stored
from tests.unit.redact.corpus import Forge, named, tokens

AGENT = """
import antiphon
import plant
from plant import SECRETS, NAMED, events, seen

app = antiphon.Antiphon()
gateway = app.gateway


@gateway.tool(idempotent=False)
def argument(text: str, headers: dict, nested: list) -> str:
    return "ok"


@gateway.tool(idempotent=False)
def result(n: int) -> dict:
    text = f"it is {SECRETS[n]} now"
    return {"text": text, "headers": {"Authorization": f"Bearer {SECRETS[n]}"}, "list": [SECRETS[n]]}


@gateway.tool(idempotent=True)
def failing(n: int) -> str:
    raise ValueError(f"cannot sign in with {SECRETS[n]} here")


@gateway.tool(idempotent=True)
def pieces(n: int):
    text = f"the key {SECRETS[n]} end\\n"
    yield from (text[at : at + 8] for at in range(0, len(text), 8))


@gateway.tool(idempotent=False)
def fields(values: dict) -> dict:
    return {"seen": values}


def answer(request):
    return {"choices": [{"index": 0, "message": {"role": "assistant", "content": request["messages"][0]["content"]}}]}


def deltas(request):
    text = request["messages"][0]["content"]
    for at in range(0, len(text), 8):
        yield {"choices": [{"index": 0, "delta": {"content": text[at : at + 8]}}]}


def refused(request):
    raise RuntimeError("401 for " + request["messages"][0]["content"])


@antiphon.agent
def main(question):
    run = antiphon.current_run()
    for n, secret in enumerate(SECRETS):
        argument(f"use {secret} please", {"Authorization": f"Bearer {secret}"}, [{"deep": [secret]}])
        seen(result(n)["list"] == [secret])
        try:
            failing(n)
        except ValueError as error:
            seen(secret in str(error))
        seen("".join(pieces(n)) == f"the key {secret} end\\n")
        run.prompt(f"prompt {n}", "say {word}", {"word": secret})
        ask = {"model": "m", "messages": [{"role": "user", "content": f"my key is {secret} ok"}]}
        seen(secret in run.llm(ask, answer)["choices"][0]["message"]["content"])
        said = "".join(d["choices"][0]["delta"]["content"] for d in run.llm({**ask, "stream": True}, deltas))
        seen(secret in said)
        seen(secret.replace("\\n", "\\\\n") in "".join(events(run, n)))
        try:
            run.llm({**ask, "temperature": 1}, refused)
        except RuntimeError as error:
            seen(secret in str(error))
        with run.interaction(f"mine is {secret}") as exchange:
            exchange.finish(f"yours is {secret}")
    for name, value in NAMED:
        seen(fields({name: value}) == {"seen": {name: value}})
    run.describe(tags={"note": f"key {SECRETS[0]}"}, llm_config={"api_key": SECRETS[1], "model_name": "m"})
    return f"{question} and {SECRETS[3]}"
"""

PLANT = '''
import json
import os
from pathlib import Path

LIVE = "REPLAYED" not in os.environ
SECRETS, NAMED = json.loads(Path(__file__).with_name("plant.json").read_text())


def seen(holds):
    """The live agent works with the real secrets; a replay gives it what stands for them."""
    assert holds or not LIVE


def events(run, n):
    """A provider's stream of events, cut into pieces that mind no border."""
    text = f"again {SECRETS[n]} end"

    def send(request):
        lines = "".join(
            "data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text[at : at + 8]}}]}) + "\\n\\n"
            for at in range(0, len(text), 8)
        )
        yield from (lines[at : at + 50] for at in range(0, len(lines), 50))

    got = "".join(run.llm({"model": "m", "stream": True, "messages": [{"role": "user", "content": f"sse {n}"}]}, send))
    for line in got.splitlines():
        if line.startswith("data: {"):
            yield json.dumps(json.loads(line[6:])["choices"][0]["delta"]["content"])[1:-1]
'''

IDS = (
    "3f2504e0-4f89-41d3-9a0c-0305e82c3301",
    "call_Zx81kQ0vW3nP5tYb7Rm2Lc9D",
    "toolu_01A09q90qw90lq917835lq9",
    "chatcmpl-9xQm2Lc7Rb5tYnP3W0vQk81Zx",
    "0af7651916cd43dd8448eb211c80319c",
)


def needles(secret: str) -> list[bytes]:
    """Parts of a secret that nothing else contains: the whole, and the pieces a stream was cut into."""
    runs = re.findall(r"[A-Za-z0-9+/_~.=-]{12,}", secret)
    return [run.encode() for run in runs] + [run[at : at + 12].encode() for run in runs for at in (8, len(run) - 13)]


class World:
    """A recorded run full of secrets, and everything it left behind."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        forge = Forge(11)
        self.secrets = [planted.secret for planted in tokens(forge)]
        fields = [(name, value) for name, value, _ in named(forge) if len(value) > 12]
        (folder / "plant.json").write_text(json.dumps([self.secrets, fields]))
        (folder / "plant.py").write_text(PLANT)
        (folder / "planted.py").write_text(AGENT)
        (folder / "antiphon.toml").write_text("[telemetry]\nlogs = true\notel = true\n[loop]\nenabled = false\n")
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.setenv("ANTIPHON_HOME", str(folder / "state"))
        self.folder = folder
        self.named = [value for _, value in fields]
        self.spans = InMemorySpanExporter()
        provider = trace.get_tracer_provider()
        if not isinstance(provider, TracerProvider):
            provider = TracerProvider()
            trace.set_tracer_provider(provider)
        provider.add_span_processor(SimpleSpanProcessor(self.spans))
        self.logged = io.StringIO()
        handler = logging.StreamHandler(self.logged)
        loggers = [logging.getLogger(name) for name in ("antiphon", "")]
        for logger in loggers:
            logger.addHandler(handler)
        level = logging.getLogger("antiphon").level
        logging.getLogger("antiphon").setLevel(logging.DEBUG)
        try:
            antiphon.configure()
            question = json.dumps(f"what of {self.secrets[2]}")
            assert main(["run", "planted.py:main", "--input", question]) == 0
            self.app = Antiphon()
            self.manifest = find_run(self.app, None)
            for form in ("antiphon", "kurral"):
                export_run(self.app, self.manifest, folder / "state" / f"out.{form}")
            words = [sys.executable, "-m", "antiphon.cli", "replay", "--latest", "--strict"]
            replayed = {**os.environ, "REPLAYED": "1"}  # a process of its own: it gives up its network
            self.replayed = subprocess.run(words, env=replayed, check=False, capture_output=True).returncode
        finally:
            for logger in loggers:
                logger.removeHandler(handler)
            logging.getLogger("antiphon").setLevel(level)
        import planted  # type: ignore[import-not-found]

        self.metrics = str(planted.gateway._plans.reporter.metrics.render())

    def leaks(self, data: bytes) -> list[str]:
        known = [secret for secret in self.secrets if any(part in data for part in needles(secret))]
        return known + [value for value in self.named if value.encode() in data]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield World(tmp_path_factory.mktemp("world"), monkeypatch)
    for name in ("planted", "plant"):
        sys.modules.pop(name, None)


def test_nothing_of_them_is_on_disk(world: World) -> None:
    assert len(world.secrets) + len(world.named) >= 60
    files = [path for path in (world.folder / "state").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} >= {".db", ".antiphon", ".kurral"}
    leaks = {path.name: found for path in files if (found := world.leaks(path.read_bytes()))}
    assert leaks == {}


def test_the_search_would_find_them(world: World) -> None:
    plain = "\n".join(world.secrets + world.named).encode()
    assert len(world.leaks(plain)) == len(world.secrets) + len(world.named)


def test_nothing_of_them_is_in_logs_metrics_or_spans(world: World) -> None:
    logged = world.logged.getvalue()
    assert logged.count("tool_call_end") > 100
    assert world.leaks(logged.encode()) == []
    spans = world.spans.get_finished_spans()
    assert len(spans) > 100
    assert world.leaks("".join(span.to_json() for span in spans).encode()) == []
    assert "tool" in world.metrics
    assert world.leaks(world.metrics.encode()) == []


def test_pieces_of_streams_are_whole_in_number_and_joined_without_a_secret(world: World) -> None:
    joined: dict[str, str] = {}
    for event in stored(world.app, world.manifest.id):
        if event.type == "call.chunk":
            data = event.payload["data"]
            text = data if isinstance(data, str) else data["choices"][0]["delta"]["content"]
            joined[str(event.call)] = joined.get(str(event.call), "") + text
    assert len(joined) == 3 * len(world.secrets)
    assert world.leaks("\0".join(joined.values()).encode()) == []
    masked = {event.call for event in stored(world.app, world.manifest.id) if "masks" in event.meta}
    assert masked >= set(joined)


def test_the_manifest_is_clean(world: World) -> None:
    wire = json.dumps(find_run(world.app, world.manifest.id).to_wire())
    assert re.search(r"\[[a-z_]+:[0-9a-f]{4}\]", wire)
    assert world.leaks(wire.encode()) == []


def test_a_strict_replay_of_it_matches(world: World) -> None:
    assert world.replayed == 0


def test_equal_secrets_stay_equal(world: World) -> None:
    events = stored(world.app, world.manifest.id)
    shown = [event.payload["arguments"] for event in events if event.payload.get("name") == "argument"]
    for arguments in shown:
        header, nested = arguments["headers"]["Authorization"], arguments["nested"][0]["deep"][0]
        assert header == f"Bearer {nested}"
        assert arguments["text"] == f"use {nested} please"
    assert len({json.dumps(arguments) for arguments in shown}) == len(world.secrets)


def test_ids_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path))
    app = Antiphon({"telemetry": {"logs": False}})

    @app.gateway.tool(idempotent=True)
    def look(ids: list[str]) -> list[str]:
        return ids

    with app.run("ids") as run:
        look(list(IDS))
        drawn = run.uuid4()
    events = stored(app, run.id)
    assert events[1].payload["arguments"] == {"ids": list(IDS)}
    assert events[2].payload["value"] == list(IDS)
    assert events[3].payload["value"] == str(drawn)
    assert all("masks" not in event.meta for event in events)


def test_a_redactor_that_reads_each_piece_alone_would_be_caught(world: World) -> None:
    from antiphon.redact import Redactor

    redactor = Redactor()
    text = f"the key {world.secrets[3]} end"
    alone = "".join(redactor.redact_text(text[at : at + 8]) for at in range(0, len(text), 8))
    assert world.leaks(alone.encode())


def test_a_found_secret_is_not_printed_by_scan(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", str(world.folder / "state" / "out.antiphon")]) == 0
    capsys.readouterr()
    leaky = world.folder / "leaky.json"
    leaky.write_text(json.dumps({"text": world.secrets[:10]}))
    assert main(["scan", str(leaky), "--json"]) == 1
    out = capsys.readouterr().out
    found: list[dict[str, Any]] = json.loads(out)["findings"]
    assert len(found) == 10
    assert world.leaks(out.encode()) == []


def test_names_that_people_give_hold_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "state"))
    app, key = Antiphon(), tokens(Forge(31))[0].secret

    @app.gateway.tool(idempotent=True)
    def look_up(order: int) -> int:
        return order

    with app.run(f"triage for {key}", session="ada@example.org") as run:
        with antiphon.branch(f"customer {key}"):
            look_up(1)
        with antiphon.branch("left"):
            look_up(2)
        run.prompt(f"prompt of {key}", "Help", {})
        run.note("custom", dict.fromkeys(("n", "name", "key", "what", "kind", "provider"), f"it is {key}"))
    assert key not in repr(run.events())
    assert any("~left" in event.lane for event in run.events())
    assert find_run(app, run.id).session == "ada@example.org"  # what groups calls is left as it is in the store
    export_run(app, run.manifest, tmp_path / "run.antiphon")
    written = (tmp_path / "run.antiphon").read_text()
    assert key not in written
    assert "ada@example.org" not in written
    with app.run("other", session="order-1042") as other:
        pass
    export_run(app, other.manifest, tmp_path / "other.antiphon")
    assert json.loads((tmp_path / "other.antiphon").read_text())["manifest"]["session"] == "order-1042"


# -- credentials of the environment --------------------------------------------------------------------------------

CREDENTIAL = "correcthorse-Battery99"


def _gives(app: Antiphon, way: str) -> None:
    tool = app.gateway.tool

    @tool(idempotent=True, effect="read")
    def result(n: int) -> dict[str, Any]:
        return {"config": ["host=h", CREDENTIAL]}

    @tool(idempotent=True, effect="read")
    def failing(n: int) -> str:
        raise ValueError(f"cannot log in with {CREDENTIAL}")

    @tool(idempotent=True, effect="read")
    def stream(n: int) -> Iterator[str]:
        yield from ("a ", CREDENTIAL[:7], CREDENTIAL[7:], " b")

    if way == "result":
        assert result(1) == result(1) == {"config": ["host=h", CREDENTIAL]}
    elif way == "stream":
        assert "".join(stream(1)) == f"a {CREDENTIAL} b"
    elif way == "error":
        with pytest.raises(ValueError, match="cannot log in"):
            failing(1)
    else:
        request = {"model": "m", "messages": [{"role": "user", "content": f"use {CREDENTIAL}"}]}
        choice = {"index": 0, "message": {"role": "assistant", "content": CREDENTIAL}, "finish_reason": "stop"}
        antiphon.current_run().llm(request, lambda body: {"choices": [choice]})


@pytest.mark.parametrize("recorded", [True, False], ids=["in a run", "without a run"])
@pytest.mark.parametrize("way", ["result", "stream", "error", "model"])
def test_credentials_of_the_environment_are_nowhere(
    home: Path, monkeypatch: pytest.MonkeyPatch, way: str, recorded: bool
) -> None:
    monkeypatch.setenv("DB_PASSWORD", CREDENTIAL)
    app = Antiphon()
    if recorded:
        with app.run("main") as run:
            _gives(app, way)
        export_run(app, find_run(app, run.id), home / "run.antiphon")
    elif way != "model":  # which is a call of a run
        _gives(app, way)
    found = [path.name for path in home.rglob("*") if path.is_file() and b"Battery99" in path.read_bytes()]
    assert found == []


@pytest.mark.parametrize("word", ["name", "tags"])
def test_a_secret_may_be_a_word_that_names_a_field_of_the_manifest(home: Path, word: str) -> None:
    app = Antiphon()
    login = app.gateway.tool("login", idempotent=True)(lambda password: "in")
    with app.run("main") as run:
        login(word)
        run.describe(tags={"owner": "ada", "note": f"it is {word}"})
    manifest = find_run(app, run.id)
    assert (manifest.name, manifest.tags["owner"]) == ("main", "ada")
    assert word not in manifest.tags["note"]
