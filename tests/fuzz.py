"""Fuzzing of everything that is read from outside: whatever comes in, the answer is a value or one of our errors.

    make fuzz                                     two minutes, with counts
    python -m tests.fuzz --seconds 600 --only sse,toml

The corpora are the vectors and samples of the other tests; Hypothesis changes them a little, or makes up something new.
``tests/unit/test_fuzz.py`` runs a few examples of each target in the suite.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st

from antiphon import AsyncGateway, Gateway
from antiphon._recording import atif, kurral, otel
from antiphon._recording.artifact import BadJson, read_artifact, strict_loads
from antiphon._recording.foreign import conversation
from antiphon.adapters import _wire
from antiphon.adapters.web import IdempotencyKey
from antiphon.canonical import canonical_json
from antiphon.config.load import load
from antiphon.contract.envelope import ToolCallEnvelope
from antiphon.contract.result import ToolResultEnvelope
from antiphon.contract.spec import ToolSpec
from antiphon.errors import AntiphonError, ConfigError
from antiphon.llm.request import DIALECTS, canonical_request
from antiphon.llm.response import summarise
from antiphon.llm.stream import assemble_response, assemble_stream, sse_events
from antiphon.ops import side_effects

TESTS = Path(__file__).parent


class Target(NamedTuple):
    """Something that reads what comes from outside."""

    strategy: st.SearchStrategy[Any]
    check: Callable[[Any], None]
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    """What the examples of one seed share; its end may find something, too."""


# -- what comes in -----------------------------------------------------------------------------------------------------

words = st.sampled_from(
    [
        "",
        "a",
        "type",
        "data",
        "id",
        "role",
        "content",
        "text",
        "name",
        "index",
        "delta",
        "usage",
        "message",
        "0",
        "é",
        "\ud800",
    ]
)
texts = words | st.text(max_size=12)
numbers = st.integers() | st.floats() | st.sampled_from([0, -1, 2**53, 2**64, 1e308, 10**400])
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def _places(document: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    entries = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for name, value in entries:
        yield from _places(value, (*at, name))


def _with(document: Any, place: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    if not place:
        return change(document)
    first, *rest = place
    if isinstance(document, dict):
        return {**document, first: _with(document[first], tuple(rest), change)}
    return [_with(value, tuple(rest), change) if n == first else value for n, value in enumerate(document)]


def _instead(new: Any, old: Any) -> Any:
    return new


@st.composite
def changed(draw: st.DrawFn, documents: st.SearchStrategy[Any]) -> Any:
    """A document of the corpus in which a few places hold something else, or hold it twice, or nothing."""
    document = draw(documents)
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.sampled_from(list(_places(document))))
        new = draw(values)
        kind = draw(st.sampled_from(("replace", "wrap", "empty")))
        changes: dict[str, Callable[[Any], Any]] = {
            "replace": partial(_instead, new),
            "wrap": lambda old: [old, old],
            "empty": lambda old: {},
        }
        document = _with(document, place, changes[kind])
    return document


@st.composite
def damaged(draw: st.DrawFn, corpus: list[bytes]) -> bytes:
    """Bytes of the corpus, cut, repeated or with other bytes in between."""
    data = draw(st.sampled_from(corpus) | st.binary(max_size=40))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        end = draw(st.integers(at, min(len(data), at + 40)))
        data = data[:at] + draw(st.binary(max_size=6) | st.just(data[at:end] * 2)) + data[end:]
    return data


def _vectors(name: str, part: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((TESTS / "vectors" / f"{name}.json").read_text())[part]
    return found


REQUESTS, RESPONSES, STREAMS = (
    _vectors("requests", "requests"),
    _vectors("responses", "responses"),
    _vectors("responses", "streams"),
)
ENVELOPE = {
    "contractVersion": "1.1",
    "requestId": "r1",
    "toolCallId": "c1",
    "toolName": "act",
    "toolNamespace": "tools",
    "target": {"sessionKey": "s", "actorId": "a", "workspaceId": "w", "correlationId": "x"},
    "payload": {"version": "1.0", "params": {"what": "x"}, "idempotencyKey": "k", "callHints": {"timeoutMs": 5}},
    "transport": {"dedupeMode": "enforced", "retryBudget": {"maxAttempts": 1, "maxElapsedMs": 1_000}},
    "control": {"deadlineAtMs": 9_999_999_999_999, "requestTags": ["t"]},
    "trace": {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
}
RESULT = {
    "contractVersion": "1.1",
    "requestId": "r1",
    "toolName": "act",
    "status": "success",
    "output": {"content": {"x": 1}, "metadata": {}},
    "retries": {"attempts": 1},
}
SPEC = {"name": "act", "idempotent": True, "retry": {"maxAttempts": 3}, "ttl": {"doneMs": 5}, "volatile": ["a.b"]}
TOML = [
    b'[gateway]\ntenant = "acme"\nenabled = true\n[store]\nurl = "memory:"\n',
    b"[tools.act]\nidempotent = true\ntimeout = 2.5\n[tools.act.retry]\nmax_attempts = 3\n[breaker]\nconsecutive = 5\n",
    b"[store]\nurl = 'sqlite:///x.db'\nwait_replicas = 1\n[record]\nstdin = false\n",
]
YAML = [
    b"tools:\n  send: true\n  look: false\ndone: true\n",
    b"tools: {a: yes, b: 'no'}\n",
    b"- a\n- &x {y: *x}\n",
    b"!!python/x a",
]


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="antiphon-fuzz-"))


def _file(name: str, data: bytes) -> Path:
    path = _folder() / name
    path.write_bytes(data)
    return path


# -- what is checked ---------------------------------------------------------------------------------------------------


@cache
def _gateway() -> Gateway:
    gateway = Gateway(store="memory:")
    gateway.register(lambda what: {"what": what}, ToolSpec(name="act", idempotent=True))
    return gateway


def envelope(document: Any) -> None:
    """Refused with a sentence, or read and written again without a change; a gateway always answers."""
    with contextlib.suppress(AntiphonError):
        read = ToolCallEnvelope.from_wire(document)
        assert ToolCallEnvelope.from_wire(read.to_wire()) == read
    for kind in (ToolResultEnvelope, ToolSpec):
        with contextlib.suppress(AntiphonError):
            kind.from_wire(document)
    assert isinstance(_gateway().execute(document), ToolResultEnvelope)


def canonical(document: Any) -> None:
    """The canonical form is JSON of an equal document, and its own canonical form."""
    try:
        data = canonical_json(document)
    except AntiphonError:
        return
    again = json.loads(data, parse_int=lambda digits: int(digits) if abs(int(digits)) < 2**53 else float(digits))
    assert canonical_json(again) == data
    assert _equal(again, document), "another document"


def _equal(left: Any, right: Any) -> bool:
    if isinstance(right, dict):
        return isinstance(left, dict) and left.keys() == right.keys() and all(_equal(left[n], right[n]) for n in right)
    if isinstance(right, (list, tuple)):
        return isinstance(left, list) and len(left) == len(right) and all(map(_equal, left, right))
    if isinstance(right, float) and isinstance(left, (int, float)):
        return math.isclose(left, right, rel_tol=0, abs_tol=0)
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)


def request(given: tuple[str, Any]) -> None:
    """A request body has a canonical form, or is refused."""
    provider, body = given
    with contextlib.suppress(AntiphonError):
        first = canonical_request(body, provider=provider)  # type: ignore[arg-type]
        assert canonical_request(body, provider=provider) == first  # type: ignore[arg-type]
    _wire.body_of(json.dumps(body, default=str).encode("utf-8", "replace"))


def response(given: tuple[str, Any]) -> None:
    """An answer of a model never raises, whatever is in it."""
    provider, body = given
    for named in (provider, None):
        assert {"kind", "text", "toolCalls", "usage", "stopReason", "refusal"} <= summarise(body, named).keys()


def stream(given: tuple[str, list[Any]]) -> None:
    """Nor do its events, in whatever order."""
    provider, events = given
    assert "complete" in assemble_stream(events, provider)
    assert isinstance(assemble_response(events, provider), dict)


def sse(given: tuple[bytes, list[int]]) -> None:
    """An event stream says the same wherever it is cut, as bytes and as text."""
    data, cuts = given
    whole = _shown(sse_events([data]))
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in pairwise(places)]
    assert _shown(sse_events(pieces)) == whole
    for provider in DIALECTS:
        assemble_stream([data], provider)


def _shown(events: Any) -> str:
    return repr(list(events))


def artifact(data: bytes) -> None:
    """Read to its end, or refused."""
    with contextlib.suppress(AntiphonError):
        document = read_artifact(_file("a.antiphon", data))
        assert sum(1 for _ in document.events()) == document.length


def kurral_document(document: Any) -> None:
    """Imported as a whole, or refused; as it comes from a file."""
    with contextlib.suppress(AntiphonError, BadJson):
        document = strict_loads(json.dumps(document).encode())
        manifest = kurral.manifest_of(document, tenant="t", workspace="w")
        events = list(kurral.events_of(document, manifest))
        assert events[0].type == "run.started"
        assert events[-1].type == "run.finished"
        kurral.to_kurral(manifest, events)


def foreign_document(document: Any) -> None:
    """A trajectory or a trace: read as a whole, or refused."""
    with contextlib.suppress(AntiphonError, BadJson):
        document = strict_loads(json.dumps(document).encode())
        if atif.is_atif(document):
            told = list(atif.runs_of(document, tenant="t", workspace="w"))
        elif otel.is_otlp(document):
            told = list(otel.runs_of([document], tenant="t", workspace="w"))
        else:
            return
        for one in told:
            assert one.events[0].type == "run.started"
            assert one.events[-1].type == "run.finished"
            json.dumps([event.to_wire() for event in one.events])
            conversation(one.events)


def toml(data: bytes) -> None:
    """Settings, or a configuration error."""
    with contextlib.suppress(ConfigError):
        load(_file("antiphon.toml", data), {})


def setting(document: Any) -> None:
    """The same for a mapping."""
    if isinstance(document, dict):
        with contextlib.suppress(ConfigError):
            load(document, {})


def yaml_file(data: bytes) -> None:
    """Names with true or false, or a configuration error."""
    with contextlib.suppress(ConfigError):
        side_effects.read(_file("side_effects.yaml", data))


def http(given: tuple[str, list[tuple[bytes, bytes]], bytes, bytes]) -> None:
    """A request to the middleware for idempotency keys is answered once, and not with a 500."""
    method, headers, query, body = given
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-a", b"b")]})
        await send({"type": "http.response.body", "body": (await receive()).get("body", b"")})

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    async def whole() -> None:
        async with AsyncGateway(store="memory:") as gateway:
            guarded = IdempotencyKey(app, principal=lambda scope: "ada", gateway=gateway)
            scope = {"type": "http", "method": method, "path": "/p", "query_string": query, "headers": headers}
            await guarded(scope, receive, send)

    asyncio.run(whole())
    assert [message["type"] for message in sent][:1] == ["http.response.start"]
    assert sent[0]["status"] < 500
    _wire.endpoint_of(method, query.decode("latin-1"))
    _wire.body_of(body)
    _wire.chunk_bytes(_wire.chunk_text(body))


def _of(vectors: list[dict[str, Any]], part: str) -> st.SearchStrategy[Any]:
    providers = st.sampled_from(sorted(DIALECTS))
    known = st.sampled_from([(vector["provider"], vector[part]) for vector in vectors])
    near = known.flatmap(lambda one: st.tuples(st.just(one[0]), changed(st.just(one[1]))))
    return near | st.tuples(providers, values)


_EVENTS = [
    b"".join(b"event: x\ndata: " + json.dumps(event).encode() + b"\n\n" for event in vector["events"])
    for vector in STREAMS
]
_HEADERS = st.lists(
    st.tuples(
        st.sampled_from([b"idempotency-key", b"content-type", b"content-length", b"x"]),
        st.sampled_from([b'"k"', b"k", b'"a b"', b"", b'"', b"application/json", b"7"]) | st.binary(max_size=12),
    ),
    max_size=4,
)
_GOLDEN = (TESTS / "data" / "golden" / "triage-1.0.antiphon").read_bytes()
_KURRAL = [json.loads(path.read_text()) for path in sorted((TESTS / "data" / "kurral").glob("*.kurral"))]
_FOREIGN = [json.loads(path.read_text()) for path in sorted((TESTS / "data" / "foreign").glob("*.json"))]
_SETTINGS = {
    "gateway": {"tenant": "a", "enabled": True},
    "store": {"url": "memory:"},
    "tools": {"act": {"timeout": 1.5, "retry": {"max_attempts": 2}}},
    "retry": {"base_ms": 5},
}

TARGETS: dict[str, Target] = {
    "envelope": Target(
        changed(st.sampled_from([ENVELOPE, RESULT, SPEC])) | values | damaged([json.dumps(ENVELOPE).encode()]), envelope
    ),
    "canonical": Target(values | changed(st.sampled_from([ENVELOPE, *(v["body"] for v in REQUESTS[:9])])), canonical),
    "request": Target(_of(REQUESTS, "body"), request),
    "response": Target(_of(RESPONSES, "response"), response),
    "stream": Target(_of(STREAMS, "events").filter(lambda one: isinstance(one[1], list)), stream),
    "sse": Target(st.tuples(damaged(_EVENTS), st.lists(st.integers(0, 400), max_size=6)), sse),
    "http": Target(
        st.tuples(
            st.sampled_from(["POST", "PATCH", "GET", "PÖST"]), _HEADERS, st.binary(max_size=9), st.binary(max_size=30)
        ),
        http,
    ),
    "artifact": Target(damaged([_GOLDEN]), artifact),
    "kurral": Target(changed(st.sampled_from(_KURRAL)) | values, kurral_document),
    "foreign": Target(changed(st.sampled_from(_FOREIGN)), foreign_document),
    "toml": Target(damaged(TOML), toml),
    "settings": Target(changed(st.just(_SETTINGS)), setting),
    "yaml": Target(damaged(YAML), yaml_file),
}
_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example, HealthCheck.filter_too_much]


def targets() -> dict[str, Target]:
    """All of them: those above, and the proxy, which needs servers."""
    from tests import fuzz_proxy

    return {**TARGETS, **fuzz_proxy.TARGETS}


def run(target: Target, examples: int, seed: int | None = None) -> int:
    """Check so many examples of a target; how many were made. Without a seed always the same."""
    made = 0

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=seed is None,
        suppress_health_check=_QUIET,
        phases=(Phase.generate, Phase.shrink),
    )
    @given(target.strategy)
    def check(example: Any) -> None:
        nonlocal made
        made += 1
        target.check(example)

    with target.around():
        (check if seed is None else with_seed(seed)(check))()
    return made


def main(arguments: list[str] | None = None) -> int:
    """Fuzz for some time and print the counts; 1 if something was found."""
    known = targets()
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="for all targets together (default: 120)")
    parser.add_argument("--only", default="", help=f"some targets, with commas between: {', '.join(known)}")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--examples", type=int, default=300, help="per target and seed (default: 300)")
    options = parser.parse_args(arguments)
    names = options.only.split(",") if options.only else list(known)
    counts, until, seed = dict.fromkeys(names, 0), time.monotonic() + options.seconds, options.seed
    found: list[str] = []
    while time.monotonic() < until and not found:
        for name in names:
            try:
                counts[name] += run(known[name], options.examples, seed)
            except Exception as error:
                for one in error.exceptions if isinstance(error, ExceptionGroup) else (error,):
                    notes = "\n".join(getattr(one, "__notes__", []))
                    print(f"FOUND by {name}: {type(one).__name__}: {one}\n{notes}", flush=True)
                again = f"python -m tests.fuzz --only {name} --seed {seed} --examples {options.examples} --seconds 1"
                print(f"  again with: {again}", flush=True)
                found.append(name)
        seed += 1
        left = max(0, until - time.monotonic())
        print(f"seed {seed - 1}: {sum(counts.values())} examples, {len(found)} found, {left:.0f} s left", flush=True)
    for name, number in counts.items():
        print(f"  {number:8d}  {name}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
