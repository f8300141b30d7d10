"""Runs recorded elsewhere: ATIF trajectories and OpenTelemetry traces, imported with what they tell and no secret."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from antiphon import Antiphon
from antiphon.cli import main
from antiphon.errors import AntiphonError, InvalidInput
from antiphon.ops.artifacts import export_run, import_all, import_artifact, open_run
from antiphon.ops.next_step import in_all, next_steps
from antiphon.ops.runs import context_of, find_run, list_runs, timeline
from antiphon.stores import MemoryStore
from tests.integration.recording.kit import application, stored

SECRET = "AKIAQ3EGUZ7WN4HXKPLA"

ATIF: dict[str, Any] = json.loads((Path(__file__).parents[2] / "data" / "foreign" / "trajectory.json").read_bytes())


def attributes(**values: Any) -> list[dict[str, Any]]:
    """Attributes as OTLP writes them; ``__`` is a dot."""

    def wire(value: Any) -> dict[str, Any]:
        if isinstance(value, bool):
            return {"boolValue": value}
        if isinstance(value, int):
            return {"intValue": str(value)}
        if isinstance(value, float):
            return {"doubleValue": value}
        if isinstance(value, list):
            return {"arrayValue": {"values": [wire(one) for one in value]}}
        if isinstance(value, dict):
            return {"kvlistValue": {"values": [{"key": name, "value": wire(one)} for name, one in value.items()]}}
        return {"stringValue": value}

    return [{"key": name.replace("__", "."), "value": wire(value)} for name, value in values.items()]


def span(name: str, start: int, end: int, *, trace: str = "4bf92f3577b34da6a3ce929d0e0e4736", **values: Any) -> Any:
    return {
        "traceId": trace,
        "spanId": f"{start:016x}",
        "parentSpanId": values.pop("parent", ""),
        "name": name,
        "startTimeUnixNano": str((1_770_000_000_000 + start) * 1_000_000),
        "endTimeUnixNano": str((1_770_000_000_000 + end) * 1_000_000),
        "attributes": attributes(**values),
        "status": {},
    }


def otlp(*spans: Any) -> dict[str, Any]:
    return {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"spans": list(spans)}]}]}


ASKED = [{"role": "user", "parts": [{"type": "text", "content": "Weather in Lyon?"}]}]
CALLED = {
    "role": "assistant",
    "parts": [{"type": "tool_call", "id": "t1", "name": "weather", "arguments": {"city": "Lyon"}}],
    "finish_reason": "tool_call",
}
REPLIED = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "t1", "response": "rain"}]}
SAID = {"role": "assistant", "parts": [{"type": "text", "content": "It rains."}], "finish_reason": "stop"}
MODEL: dict[str, Any] = {
    "gen_ai__operation__name": "chat",
    "gen_ai__provider__name": "openai",
    "gen_ai__request__model": "model-a",
    "gen_ai__request__temperature": 0.5,
    "gen_ai__usage__input_tokens": 10,
    "gen_ai__usage__output_tokens": 4,
}


def trace_spans(trace: str = "4bf92f3577b34da6a3ce929d0e0e4736") -> list[Any]:
    """An agent that asks for the weather; its first model call has JSON text, the second one structured values."""
    head = span("invoke_agent", 0, 90, trace=trace, gen_ai__operation__name="invoke_agent", gen_ai__agent__name="meteo")
    first = span(
        "chat model-a",
        10,
        20,
        trace=trace,
        parent=head["spanId"],
        gen_ai__input__messages=json.dumps(ASKED),
        gen_ai__output__messages=json.dumps([CALLED]),
        gen_ai__tool__definitions=json.dumps([{"type": "function", "name": "weather"}]),
        **MODEL,
    )
    tool = span(
        "execute_tool weather",
        30,
        40,
        trace=trace,
        parent=head["spanId"],
        gen_ai__operation__name="execute_tool",
        gen_ai__tool__name="weather",
        gen_ai__tool__call__arguments=json.dumps({"city": "Lyon"}),
        gen_ai__tool__call__result="rain",
    )
    last = span(
        "chat model-a",
        50,
        60,
        trace=trace,
        parent=head["spanId"],
        gen_ai__input__messages=[*ASKED, CALLED, REPLIED],
        gen_ai__output__messages=[SAID],
        **MODEL,
    )
    return [last, tool, head, first]  # exporters write a span when it ends, or in any other order


def imported(app: Antiphon, document: Any, name: str = "run.json") -> Any:
    Path(name).write_text(json.dumps(document))
    return import_artifact(app, Path(name))


def completeness(app: Antiphon, run: str) -> dict[str, Any]:
    return dict(next(event for event in stored(app, run) if event.type == "import").payload["completeness"])


# -- trajectories ------------------------------------------------------------------------------------------------------


def test_a_trajectory_becomes_a_run_with_all_that_it_tells(home: Path) -> None:
    app = application()
    made = imported(app, ATIF)
    assert (made.id, made.name, made.llm_config["model_name"]) == ("trial-1", "shell-agent", "model-a")
    shown = timeline(app, find_run(app, made.id))
    assert (shown["counts"]["calls"], shown["counts"]["models"]) == (2, 2)
    assert (shown["tokens"], shown["output"]) == ({"input": 50, "output": 8}, "Three files.")
    events = stored(app, made.id)
    ends = [event.payload.get("value") for event in events if event.type == "call.finished"]
    assert ends[1] == "a b c"
    assert len(ends) == 3  # the second tool call has no result, and none is made up
    text = json.dumps([event.payload for event in events])
    assert all(word in text for word in ("kept beside", "-0.5", '"timeout": 9', "total_cost_usd", "ls will do"))
    assert made.finished_at_ms - made.started_at_ms == 5000


def test_how_complete_a_trajectory_is_and_what_it_lacks(home: Path) -> None:
    app = application()
    told = completeness(app, imported(app, ATIF).id)
    assert told["fields"]["tool results"] == {"present": 1, "of": 2}
    assert told["fields"]["model requests"] == {"present": 0, "of": 2}
    assert told["fields"]["cost"] == {"present": 1, "of": 2}
    assert told["fields"]["timestamps"] == {"present": 4, "of": 4}
    assert told["overall"] == pytest.approx((8 + 2 * 0.5 + 0) / 11, abs=1e-4)
    assert any("step 3: no result of bash is told" in gap for gap in told["gaps"])
    assert any("model requests" in gap for gap in told["gaps"])


def test_the_same_trajectory_is_the_same_run_and_another_of_that_session_is_not(home: Path) -> None:
    app = application()
    first = imported(app, ATIF)
    assert imported(app, ATIF, "again.json").id == first.id
    other = copy.deepcopy(ATIF)
    other["steps"][3]["message"] = "Four files."
    assert imported(app, other, "other.json").id.startswith("trial-1-")
    assert len(list_runs(app, limit=10)) == 2


def test_agents_that_were_delegated_to_are_runs_of_their_own(home: Path) -> None:
    document = copy.deepcopy(ATIF)
    inner = {**copy.deepcopy(ATIF), "trajectory_id": "helper-1", "session_id": None}
    document["subagent_trajectories"] = [inner]
    document["steps"][2]["observation"]["results"].append(
        {"source_call_id": "c2", "subagent_trajectory_ref": [{"trajectory_id": "helper-1"}]}
    )
    Path("both.json").write_text(json.dumps(document))
    app = application()
    with pytest.raises(InvalidInput, match="2 runs"):
        import_artifact(app, Path("both.json"))
    done = import_all(app, ["both.json"])
    assert [one["run"] for one in done.runs] == ["trial-1", "helper-1"]
    assert find_run(app, "helper-1").tags["parentRun"] == "trial-1"
    told = done.runs[0]["completeness"]["fields"]
    assert told["delegated trajectories"] == {"present": 1, "of": 1}
    assert told["tool results"] == {"present": 2, "of": 2}


def test_one_result_of_several_calls_is_given_to_none_of_them(home: Path) -> None:
    document = copy.deepcopy(ATIF)
    document["steps"][2]["observation"]["results"] = [{"content": "one screen"}]
    app = application()
    made = imported(app, document)
    assert completeness(app, made.id)["fields"]["tool results"] == {"present": 0, "of": 2}
    last = [event for event in stored(app, made.id) if event.payload.get("kind") == "llm"][-1]
    assert {"role": "user", "content": "one screen"} in context_of(app, made.id, last.seq)["request"]["messages"]


def step_of(calls: list[tuple[str, str]], results: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A trajectory whose model makes these calls, by id and path, in one step."""
    made = [{"tool_call_id": id_, "function_name": "read", "arguments": {"path": path}} for id_, path in calls]
    return {
        "schema_version": "ATIF-v1.4",
        "session_id": "paired",
        "agent": {"name": "shell", "version": "1", "model_name": "m"},
        "steps": [
            {"step_id": 1, "source": "user", "message": "hi"},
            {"step_id": 2, "source": "agent", "message": "", "tool_calls": made, "observation": {"results": results}}
            | more,
            {"step_id": 3, "source": "agent", "message": "done"},
        ],
    }


def told_of(app: Antiphon, run: str) -> tuple[list[Any], list[Any]]:
    """The results of the tool calls of a run, and what its model was told of them."""
    events = stored(app, run)
    tools = {event.call for event in events if event.type == "call.started" and event.payload["kind"] == "tool"}
    values = [event.payload["value"] for event in events if event.type == "call.finished" and event.call in tools]
    last = [event for event in events if event.payload.get("kind") == "llm"][-1]
    messages = context_of(app, run, last.seq)["request"]["messages"]
    return values, [one["content"] for one in messages if one["role"] in ("tool", "user")][1:]


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("same", ["", "c1"])
def test_calls_with_one_id_get_their_results_in_order(same: str, copied: bool, home: Path) -> None:
    results = [{"source_call_id": same, "content": f"of {name}"} for name in "ABC"]
    document = step_of([(same, "/a"), (same, "/b")], results, is_copied_context=copied)
    app = application()
    made = imported(app, document)
    rest = [{"type": "text", "text": "of B"}, {"type": "text", "text": "of C"}]
    assert told_of(app, made.id) == ([] if copied else ["of A", rest], ["of A", rest])
    gaps = completeness(app, made.id)["gaps"]
    assert f"step 2: 2 calls have the id {same!r}: each gets the next result" in gaps
    assert "step 2: 2 results of read are told as one" in gaps


def test_several_results_of_a_call_are_kept_with_all_that_stands_beside_them(home: Path) -> None:
    results: list[dict[str, Any]] = [
        {"source_call_id": "a", "content": "part ONE", "took": 1},
        {"source_call_id": "a", "content": [{"type": "text", "text": "part TWO"}]},
        {"source_call_id": "b", "content": "alone", "took": 2},
    ]
    app = application()
    made = imported(app, step_of([("a", "/a"), ("b", "/b")], results))
    both = [{"type": "text", "text": "part ONE"}, {"type": "text", "text": "part TWO"}]
    assert told_of(app, made.id) == ([both, "alone"], [both, "alone"])
    ends = [event for event in stored(app, made.id) if event.type == "call.finished"]
    assert [event.payload.get("imported") for event in ends[1:3]] == [{"results": [{"took": 1}, {}]}, {"took": 2}]


def test_the_conversation_before_a_model_call_is_rebuilt(home: Path) -> None:
    app = application()
    made = imported(app, ATIF)
    last = [event for event in stored(app, made.id) if event.payload.get("kind") == "llm"][-1]
    found = context_of(app, made.id, last.seq)
    assert found["rebuilt"]
    assert [one["role"] for one in found["request"]["messages"]] == ["system", "user", "assistant", "tool", "tool"]
    assert found["request"]["messages"][3]["content"] == "a b c"


# -- traces ------------------------------------------------------------------------------------------------------------


def test_a_trace_becomes_a_run_in_the_order_of_its_spans(home: Path) -> None:
    app = application()
    made = imported(app, otlp(*trace_spans()))
    assert (made.name, made.llm_config) == (
        "meteo",
        {"model_name": "model-a", "provider": "openai", "temperature": 0.5},
    )
    events = stored(app, made.id)
    started = [(event.payload["kind"], event.payload["name"]) for event in events if event.type == "call.started"]
    assert started == [("llm", "llm"), ("tool", "weather"), ("llm", "llm")]
    shown = timeline(app, made)
    assert (shown["output"], shown["tokens"]) == ("It rains.", {"input": 20, "output": 8})
    told = completeness(app, made.id)["fields"]
    assert told["model requests"] == told["model answers"] == {"present": 2, "of": 2}
    assert told["tool results"] == told["tool arguments"] == {"present": 1, "of": 1}
    last = [event for event in events if event.payload.get("kind") == "llm"][-1]
    roles = [one["role"] for one in last.payload["request"]["messages"]]
    assert roles == ["user", "assistant", "tool"]


def test_a_collector_writes_a_line_for_each_export_and_a_run_may_span_several(home: Path) -> None:
    one, two = trace_spans(), trace_spans("5bf92f3577b34da6a3ce929d0e0e4736")
    lines = [otlp(*one[:2]), otlp(*two), otlp(*one[2:])]
    Path("traces.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = import_all(application(), ["traces.jsonl"])
    assert [one["run"][:4] for one in done.runs] == ["4bf9", "5bf9"]
    assert {one["completeness"]["overall"] for one in done.runs} == {done.runs[0]["completeness"]["overall"]}


def test_a_trace_without_captured_content_says_so(home: Path) -> None:
    bare = [
        {**one, "attributes": [pair for pair in one["attributes"] if "messages" not in pair["key"]]}
        for one in trace_spans()
    ]
    app = application()
    made = imported(app, otlp(*bare))
    told = completeness(app, made.id)
    assert told["fields"]["model requests"] == told["fields"]["model answers"] == {"present": 0, "of": 2}
    assert any("gen_ai.input.messages" in gap for gap in told["gaps"])
    found = next_steps(app, made, lambda _: pytest.fail("there is nothing to ask"))
    assert (found["steps"], found["notCompared"]) == (0, 2)


def test_content_in_the_event_of_the_operation_is_read(home: Path) -> None:
    first = trace_spans()[3]
    moved = [pair for pair in first["attributes"] if "messages" in pair["key"]]
    first["attributes"] = [pair for pair in first["attributes"] if "messages" not in pair["key"]]
    first["events"] = [{"name": "gen_ai.client.inference.operation.details", "attributes": moved}]
    app = application()
    assert completeness(app, imported(app, otlp(first)).id)["fields"]["model requests"] == {"present": 1, "of": 1}


def test_a_text_beside_a_reply_is_kept_and_other_parts_are_named(home: Path) -> None:
    beside = {"role": "user", "parts": [*REPLIED["parts"], {"type": "text", "content": "and also do X"}]}
    picture = {"type": "uri", "modality": "image", "uri": "https://x.example/cat.png"}
    blob = {"type": "blob", "mime_type": "image/png", "content": "iVBORw0KGgo="}
    asked = [*ASKED, CALLED, beside, {"role": "user", "parts": [{"type": "text", "content": "look"}, picture, blob]}]
    call = span("chat", 1, 2, gen_ai__input__messages=json.dumps(asked), gen_ai__output__messages=[SAID], **MODEL)
    app = application()
    made = imported(app, otlp(call))
    started, finished = (event for event in stored(app, made.id) if event.call is not None)
    said = [(one["role"], one["content"]) for one in started.payload["request"]["messages"]]
    assert said[2:] == [("tool", "rain"), ("user", "and also do X"), ("user", "look")]
    told = completeness(app, made.id)
    assert told["fields"]["media"] == {"present": 0, "of": 2}
    assert [gap.split(" is kept")[0] for gap in told["gaps"] if "part of type" in gap] == [
        "chat: a part of type uri",
        "chat: a part of type blob",
    ]
    assert json.loads(finished.payload["imported"]["gen_ai.input.messages"]) == asked


def test_answers_behind_the_first_are_kept_beside_the_call(home: Path) -> None:
    call = span("chat", 1, 2, gen_ai__input__messages=ASKED, gen_ai__output__messages=[SAID, CALLED], **MODEL)
    app = application()
    made = imported(app, otlp(call))
    end = next(event for event in stored(app, made.id) if event.type == "call.finished")
    assert end.payload["imported"]["gen_ai.output.messages"] == [SAID, CALLED]
    assert any("2 answers" in gap for gap in completeness(app, made.id)["gaps"])


# -- secrets -----------------------------------------------------------------------------------------------------------


def test_no_secret_of_a_file_reaches_the_store_and_models_get_the_original(home: Path, tmp_path: Path) -> None:
    document = json.loads(json.dumps(ATIF).replace("Count the files.", f"Use {SECRET}.").replace("a b c", SECRET))
    document["session_id"] = f"run-{SECRET}"
    document["agent"]["name"] = f"agent {SECRET}"
    document["agent"]["extra"]["key"] = SECRET
    document["steps"][2]["tool_calls"][0] |= {"function_name": f"bash {SECRET}", "arguments": {"key": SECRET}}
    document["steps"][2]["extra"]["deep"] = [{"key": SECRET}]
    spans = json.loads(json.dumps(trace_spans()).replace("Lyon", SECRET))
    spans[1]["attributes"] += attributes(other=f"token {SECRET}")
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (outside / "a.json").write_text(json.dumps(document))
    (outside / "b.json").write_text(json.dumps(otlp(*spans)))
    app = application()
    done = import_all(app, [str(outside)])
    assert len(done.runs) == 2
    assert SECRET not in json.dumps(done.to_wire())
    seen: list[Any] = []

    def ask(request: dict[str, Any]) -> str:
        seen.append(request)
        return "ok"

    for one in done.runs:
        manifest = find_run(app, one["run"])
        export_run(app, manifest, Path(f"{manifest.id}.antiphon"))
        found = next_steps(app, manifest, ask)
        assert SECRET not in json.dumps(in_all([found]))
        assert SECRET not in json.dumps(timeline(app, manifest))
    assert SECRET in json.dumps(seen)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 2
    assert [path for path in written if SECRET.encode() in path.read_bytes()] == []


# -- bad files ---------------------------------------------------------------------------------------------------------


def changed(**values: Any) -> bytes:
    return json.dumps({**ATIF, **values}).encode()


BAD = {
    "cut": json.dumps(ATIF).encode()[:-40],
    "version": changed(schema_version="ATIF-v9.0"),
    "no-agent": changed(agent=None),
    "no-steps": changed(steps=[]),
    "source": changed(steps=[{"step_id": 1, "source": "robot", "message": ""}]),
    "arguments": changed(
        steps=[{"source": "agent", "message": "", "tool_calls": [{"tool_call_id": "1", "function_name": "f"}]}]
    ),
    "twice": b'{"schema_version": "ATIF-v1.7", "schema_version": "ATIF-v1.7"}',
    "otlp-list": json.dumps({"resourceSpans": 3}).encode(),
    "otlp-span": json.dumps(otlp({"name": "x"})).encode(),
    "otlp-plain": json.dumps(otlp(span("GET /", 0, 1))).encode(),
    "line": b'{"resourceSpans": []}\n{"resourceSpans": ',
    "inner": changed(subagent_trajectories=[{"agent": {"name": "x"}}]),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_with_a_reason_and_the_others_are_read(
    home: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.json").write_bytes(BAD[name])
    Path("good.json").write_text(json.dumps(ATIF))
    assert main(["import", "bad.json", "good.json"]) == 6
    out, err = capsys.readouterr()
    assert err.count("bad.json") == 1
    assert "Traceback" not in err
    assert "good.json  trial-1" in out
    assert len(list_runs(application(), limit=10)) == 1


def test_a_folder_is_searched_and_what_is_no_run_is_skipped(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("jobs/trial/agent")
    folder.mkdir(parents=True)
    (folder / "trajectory.json").write_text(json.dumps(ATIF))
    Path("jobs/result.json").write_text('{"reward": 1}')
    Path("jobs/notes.txt").write_text("ATIF-v1.7")
    assert main(["import", "jobs", "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (len(told["imported"]), told["skipped"], told["failed"]) == (1, ["jobs/result.json"], [])
    assert list_runs(application(), limit=10) == []
    assert main(["import", "jobs", "--gaps"]) == 0
    out = capsys.readouterr().out
    assert "step 3: no result of bash is told" in out
    assert "tool results" in out
    assert "1 of 2" in out
    assert "overall, 1 run" in out


@pytest.mark.parametrize(
    "odd",
    [
        {"gen_ai__input__messages": json.dumps([{"role": "user", "parts": [{"type": {"a": 1}, "content": "x"}]}])},
        {"gen_ai__input__messages": json.dumps([{"role": "user", "parts": [{"type": "text", "content": 2**70}]}])},
        {"gen_ai__input__messages": json.dumps([{"parts": [{"type": "tool_call_response", "response": 2**70}]}])},
        {"temperature": 2**70},
    ],
    ids=["type", "number in a text", "number in an answer", "number"],
)
def test_an_odd_value_does_not_stop_the_other_files(home: Path, odd: dict[str, Any]) -> None:
    Path("jobs").mkdir()
    asked = {"gen_ai__operation__name": "chat", "gen_ai__request__model": "m"}
    Path("jobs/a-odd.json").write_text(json.dumps(otlp(span("chat m", 0, 10, **asked, **odd))))
    good = span("chat m", 0, 10, trace="0" * 31 + "2", **asked)
    Path("jobs/b-good.json").write_text(json.dumps(otlp(good)))
    done = import_all(application(), ["jobs"])
    assert "jobs/b-good.json" in [run["file"] for run in done.runs]
    assert len(done.runs) + len(done.failed) == 2
    for _, error in done.failed:
        assert "cannot be read" in error.message


def test_a_run_of_another_format_is_shown_with_its_gaps(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("trajectory.json").write_text(json.dumps(ATIF))
    assert main(["show", "trajectory.json"]) == 0
    out = capsys.readouterr().out
    assert "imported from atif, 82% complete" in out
    assert "bash" in out
    assert "no outcome recorded" in out


def test_two_files_of_one_trace_are_one_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one.json", "two.json"):
        Path(name).write_text(json.dumps(otlp(*trace_spans())))
    assert main(["import", "one.json"]) == 0
    alone = capsys.readouterr().out
    assert main(["import", "one.json", "two.json"]) == 0
    assert capsys.readouterr().out.partition("\n\n")[2] == alone.partition("\n\n")[2]
    assert "overall, 1 run " in alone


@pytest.mark.parametrize("document", [ATIF, otlp(*trace_spans())], ids=["atif", "otel"])
def test_a_run_without_code_is_not_replayed(
    home: Path, capsys: pytest.CaptureFixture[str], document: dict[str, Any]
) -> None:
    Path("run.json").write_text(json.dumps(document))
    for words in (["--strict"], []):
        assert main(["replay", "run.json", *words]) == 5
        out, err = capsys.readouterr()
        assert (out, "has no code to replay" in err) == ("", True)
    assert main(["replay", "run.json", "--no-execute"]) == 0
    assert "No code ran" in capsys.readouterr().out


# -- next steps --------------------------------------------------------------------------------------------------------


def chat(text: str, *calls: tuple[str, Any]) -> dict[str, Any]:
    made = [
        {"id": "x", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
        for name, given in calls
    ]
    message = {"role": "assistant", "content": text, **({"tool_calls": made} if made else {})}
    return {"choices": [{"index": 0, "message": message}]}


RIGHT = [("bash", {"cmd": "ls"}), ("bash", {"cmd": "wc -l"})]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (chat("", *RIGHT), chat("Three  files."), {"same": 2}),
        (chat("", ("bash", {}), ("bash", {})), chat("Four."), {"same tools": 1, "other answer": 1}),
        (chat("", ("python", {})), chat("", ("bash", {})), {"other tools": 1, "calls instead": 1}),
        (chat("I will not."), {"unknown": 1}, {"answers instead": 1, "error": 1}),
    ],
)
def test_next_steps_are_compared_one_by_one(home: Path, first: Any, second: Any, expected: dict[str, int]) -> None:
    app = application(store=MemoryStore())
    made = imported(app, ATIF)
    asked: list[dict[str, Any]] = []

    def ask(request: dict[str, Any]) -> Any:
        asked.append(request)
        return first if len(asked) == 1 else second

    found = next_steps(app, made, ask, model="model-b")
    assert {name: count for name, count in found["verdicts"].items() if count} == expected
    assert [one["model"] for one in asked] == ["model-b", "model-b"]
    # the recorded step goes on, whatever the model said
    assert asked[1]["messages"][2]["tool_calls"][0]["function"]["name"] == "bash"
    assert asked[1]["tools"] == ATIF["agent"]["tool_definitions"]
    assert find_run(app, found["nextStepRun"]).status == "completed"


def test_a_model_that_fails_is_a_row_and_not_the_end(home: Path) -> None:
    app = application(store=MemoryStore())
    made = imported(app, ATIF)
    answers = iter([None, chat("Three files.")])

    def ask(request: dict[str, Any]) -> Any:
        answer = next(answers)
        if answer is None:
            raise TimeoutError("slow")
        return answer

    found = next_steps(app, made, ask)
    assert (found["verdicts"]["error"], found["verdicts"]["same"]) == (1, 1)
    assert "TimeoutError" in found["rows"][0]["why"]


def test_the_command_compares_many_runs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("model.py").write_text("def ask(request):\n    return 'Three files.'\n")
    Path("a.json").write_text(json.dumps(ATIF))
    Path("b.json").write_text(json.dumps(otlp(*trace_spans())))
    assert main(["import", "a.json", "b.json"]) == 0
    capsys.readouterr()
    assert main(["next-step", "trial-1", "4bf9", "--llm", "model.py:ask", "--details", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["steps"], told["sameShare"]) == (4, 0.25)
    assert main(["next-step", "trial-1", "gone", "--llm", "model.py:ask", "--details"]) == 1
    out, err = capsys.readouterr()
    assert "answers instead" in out
    assert "gone" in err
    Path("strange.py").write_text("def ask(request):\n    return {'foo': 1}\n")
    assert main(["next-step", "trial-1", "--llm", "strange.py:ask", "--details"]) == 1
    assert "the model function returned a dict that is not a model response" in capsys.readouterr().out


def test_our_own_runs_have_next_steps_too(home: Path) -> None:
    app = application(store=MemoryStore())
    with app.run("own") as run:
        request = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        run.llm(request, lambda _: chat("hello"))
    found = next_steps(app, open_run(app, run.id), lambda _: chat("hello"))
    assert found["verdicts"]["same"] == 1
    with app.run("none") as run:
        pass
    with pytest.raises(AntiphonError, match="no model call"):
        next_steps(app, open_run(app, run.id), lambda _: chat("hello"))
