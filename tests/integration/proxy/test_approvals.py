"""MCP tools that a person must approve first, through the proxy and on stdio."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from antiphon import Antiphon
from antiphon.errors import InvalidInput
from antiphon.proxy.stdio import StdioProxy
from tests.integration.proxy.desk import Desk, served_desk
from tests.integration.proxy.harness import serving
from tests.integration.proxy.test_mcp import _post

_ASKS = ("desk/ch*:approve",)


@pytest.fixture
def desk() -> Iterator[Desk]:
    with served_desk() as found:
        yield found


def _asked(answer: dict[str, Any]) -> str:
    """The approval that an answer names."""
    result = answer["result"]
    assert result["isError"]
    assert result["_meta"]["dev.antiphon/outcome"] == "approval_required"
    question = result["_meta"]["antiphon/approval"]
    assert question["approvalId"] in result["content"][0]["text"]
    assert question["tool"] == "mcp.desk/charge"
    return str(question["approvalId"])


@pytest.mark.parametrize(("mode", "key"), [("record", None), ("live", None), ("record", "k1")])
def test_a_call_is_made_once_it_is_approved_and_once_only(
    app: Antiphon, desk: Desk, mode: str, key: str | None
) -> None:
    more: dict[str, Any] = {"headers": {} if key is None else {"idempotency-key": key}}
    with serving(app, mode, mcp=desk.url, tools=_ASKS) as served:
        approval = _asked(_post(served, "A1", **more))
        assert _asked(_post(served, "A1", **more)) == approval  # sent again, it is the same question
        assert dict(desk.charged) == {}
        app.approvals("grace").decide(approval, "approve")
        made = _post(served, "A1", id=3, **more)
        assert (made["id"], made["result"]["content"][0]["text"]) == (3, "charged A1, number 1")
        after = _post(served, "A1", id=4, **more)
        if key is None:
            assert _asked(after) != approval  # another call, another question
        else:
            assert after["result"] == made["result"]
        assert "charged" not in json.dumps(_post(served, "B2", headers={"idempotency-key": "k2"}))
        assert "slowly" in json.dumps(_post_slow(served, desk))  # other tools ask nobody
    assert dict(desk.charged) == {"A1": 1, "C3": 1}


def _post_slow(served: Any, desk: Desk) -> dict[str, Any]:
    desk.hold.set()
    return _post(served, "C3", tool="slow")


def test_a_denied_call_is_not_made_and_equal_ones_are_told_so(app: Antiphon, desk: Desk) -> None:
    with serving(app, mcp=desk.url, tools=_ASKS) as served:
        app.approvals("grace").decide(_asked(_post(served, "A1")), "deny", reason="too much")
        for _ in range(2):
            result = _post(served, "A1")["result"]
            assert result["_meta"]["dev.antiphon/outcome"] == "approval_denied"
            assert "too much" in result["content"][0]["text"]
    assert dict(desk.charged) == {}


def test_a_policy_of_the_file_decides_which_calls_need_a_person(app: Antiphon, desk: Desk) -> None:
    policies = {"shop": {"version": "1", "not_one_of": {"order": ["A1"]}}}
    ruled = Antiphon({"approvals": {"policies": policies}}, store=app.store)
    with serving(ruled, mcp=desk.url, tools=("desk/charge:approve=shop",)) as served:
        assert "number 1" in json.dumps(_post(served, "A1"))
        _asked(_post(served, "B2"))
    with (
        pytest.raises(InvalidInput, match="names no policy"),
        serving(ruled, mcp=desk.url, tools=("desk/charge:approve=no",)),
    ):
        pass


def test_a_recorded_question_and_its_answer_replay(app: Antiphon, desk: Desk) -> None:
    with serving(app, mcp=desk.url, tools=_ASKS) as served:
        asked = _post(served, "A1")
        app.approvals("grace").decide(_asked(asked), "approve")
        made = _post(served, "A1")
    with serving(app, "replay", mcp=desk.url, tools=_ASKS) as served:
        assert _post(served, "A1")["result"]["_meta"]["dev.antiphon/outcome"] == "approval_required"
        assert _post(served, "A1")["result"]["content"] == made["result"]["content"]
    assert dict(desk.charged) == {"A1": 1}


async def _told(server: Any, mode: Any) -> list[str]:
    """What an agent with the SDK for Python reads of two calls that have no result of the tool."""
    async with Client(server, mode=mode) as client:
        asked: Any = await client.call_tool("charge", {"order": "A1"})
        lost: Any = await client.call_tool("fall", {"order": "B2"})
    assert (asked.is_error, lost.is_error) == (True, True)
    return [asked.content[0].text, lost.content[0].text]


def check_told(app: Antiphon, told: list[str]) -> None:
    """An agent can name the approval, and knows that the other call may have run."""
    [waiting] = app.approvals("grace").list()
    assert waiting["id"] in told[0]
    assert told[1].startswith("It is not known whether the tool ran: ")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_an_agent_reads_why_there_is_no_result_in_every_revision(app: Antiphon, desk: Desk, mode: str) -> None:
    with serving(app, mcp=desk.url, tools=_ASKS) as served:
        check_told(app, asyncio.run(_told(f"{served.at('shop', 'desk')}/mcp", mode)))


FALLS = """
import os
from mcp.server.mcpserver import MCPServer

server = MCPServer("desk")

@server.tool()
def charge(order: str) -> str:
    return "charged"

@server.tool()
def fall(order: str) -> str:
    os._exit(3)

server.run("stdio")
"""


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_an_agent_on_stdio_reads_why_there_is_no_result_in_every_revision(app: Antiphon, mode: str) -> None:
    wrap = ["-m", "antiphon.cli", "mcp", "wrap", "--store", app.store.url, "--server", "desk"]
    words = [*wrap, "--tool", "charge:approve", "--", sys.executable, "-c", FALLS]
    server = stdio_client(StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ)))
    check_told(app, asyncio.run(_told(server, mode)))


@pytest.mark.parametrize("mode", ["record", "live"])
def test_a_server_on_stdio_is_asked_once_a_person_has_agreed(app: Antiphon, tmp_path: Path, mode: Any) -> None:
    effects = tmp_path / "effects"
    program = (
        "import json, sys\n"
        "for line in sys.stdin:\n"
        f"    open({str(effects)!r}, 'a').write('x')\n"
        "    answer = {'jsonrpc': '2.0', 'id': json.loads(line)['id'], 'result': {'content': []}}\n"
        "    print(json.dumps(answer), flush=True)\n"
    )

    async def session() -> list[dict[str, Any]]:
        lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        wrapped = StdioProxy(
            app, "desk", mode=mode, tools=("charge:approve",), write=lambda line: told.put_nowait(json.loads(line))
        )
        serving = asyncio.ensure_future(wrapped.serve([sys.executable, "-c", program], lines))
        found = []
        for number in range(3):
            params = {"name": "charge", "arguments": {"order": "A1"}, "_meta": {"progressToken": number}}
            call = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
            lines.put_nowait(json.dumps(call).encode() + b"\n")
            found.append(await told.get())
            if number == 0:
                assert not effects.exists()
                await asyncio.to_thread(app.approvals("grace").decide, _asked(found[0]), "approve")
        lines.put_nowait(None)
        await serving
        return found

    _, made, after = asyncio.run(session())
    assert (made["id"], made["result"]) == (1, {"content": []})
    _asked(after)
    assert effects.read_text() == "x"


def test_one_approval_on_stdio_is_for_one_of_two_equal_calls(app: Antiphon, tmp_path: Path) -> None:
    """Also if both are under way at once."""
    effects = tmp_path / "effects"
    program = (
        "import json, sys, time\n"
        "for line in sys.stdin:\n"
        f"    open({str(effects)!r}, 'a').write('x')\n"
        "    time.sleep(0.5)\n"
        "    answer = {'jsonrpc': '2.0', 'id': json.loads(line)['id'], 'result': {'content': []}}\n"
        "    print(json.dumps(answer), flush=True)\n"
    )

    def call(number: int) -> bytes:
        params = {"name": "charge", "arguments": {"order": "A1"}}
        return json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).encode() + b"\n"

    async def session() -> None:
        lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        wrapped = StdioProxy(
            app, "desk", tools=("charge:approve",), write=lambda line: told.put_nowait(json.loads(line))
        )
        serving = asyncio.ensure_future(wrapped.serve([sys.executable, "-c", program], lines))
        approved = ""
        for number in (0, 2):
            lines.put_nowait(call(number))
            lines.put_nowait(call(number + 1))
            first, second = await told.get(), await told.get()
            if number:
                assert (first["id"], first["result"]) == (2, {"content": []})
                assert (second["id"], _asked(second) != approved) == (3, True)
            else:
                approved = _asked(first)
                assert _asked(second) == approved
                await asyncio.to_thread(app.approvals("grace").decide, approved, "approve")
        lines.put_nowait(None)
        await serving

    asyncio.run(session())
    assert effects.read_text() == "x"


def test_a_call_on_stdio_that_waits_for_an_equal_one_is_not_made_once_the_server_has_ended(app: Antiphon) -> None:
    policies = {"shop": {"version": "1", "not_one_of": {"order": ["A1"]}}}
    ruled = Antiphon({"approvals": {"policies": policies}}, store=app.store)
    told: list[dict[str, Any]] = []

    async def session() -> None:
        lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        for number in range(2):
            params = {"name": "charge", "arguments": {"order": "A1"}}
            call = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
            lines.put_nowait(json.dumps(call).encode() + b"\n")
        wrapped = StdioProxy(
            ruled, "desk", tools=("charge:approve=shop",), write=lambda line: told.append(json.loads(line))
        )
        await wrapped.serve([sys.executable, "-c", "import sys; sys.stdin.readline()"], lines)

    asyncio.run(session())
    assert [(one["id"], one["result"]["_meta"]["dev.antiphon/outcome"]) for one in told] == [
        (0, "outcome_unknown"),
        (1, "error"),
    ]
