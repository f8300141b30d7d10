"""What makes two MCP calls one: identity, scope, legs; and headers that must say what the body says."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.adapters import _mcp
from antiphon.contract.spec import DidNotHappen
from antiphon.proxy.clients import Refused, Request
from antiphon.proxy.mcp import CALL_ID, check_headers, identity_of, scope_of, value_of
from antiphon.proxy.upstreams import Upstream, headers_by_name


def _request(client: str = "c", run: str | None = "r", server: str = "s", **headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request("POST", Upstream(server, "http://s", True), b"/mcp", b"", [], named, b"", client, run, None)


def _asked(name: str = "charge", **params: Any) -> _mcp.Request:
    return _mcp.Request(1, "tools/call", {"name": name, "arguments": {}, **params})


def test_each_part_of_the_scope_tells_calls_apart_and_nothing_else_does() -> None:
    base = scope_of(_request(), _asked())
    others = [
        scope_of(_request(client="d"), _asked()),
        scope_of(_request(run="q"), _asked()),
        scope_of(_request(run=None, mcp_session_id="r"), _asked()),
        scope_of(_request(server="t"), _asked()),
        scope_of(_request(authorization="Bearer 1"), _asked()),
        scope_of(_request(x_api_key="Bearer 1"), _asked()),
        scope_of(_request(), _asked("refund")),
        scope_of(_request(), _asked(requestState="a")),
        scope_of(_request(), _asked(requestState="a", inputResponses={"x": 1})),
        scope_of(_request(), _asked(requestState="a", inputResponses={"x": 2})),
    ]
    assert len({base, *others}) == len(others) + 1
    same = _asked(_meta={"progressToken": 7, "traceparent": "00-1"})._replace(id=99)
    assert scope_of(_request(mcp_session_id="x", user_agent="y"), same) == base  # the run is named: no session


def test_identity_is_what_the_client_says_it_is() -> None:
    meta: Any = {CALL_ID: "k", "progressToken": 1}
    assert identity_of(None, _asked(_meta=meta)) == "k"
    assert identity_of("h", _asked(_meta=meta)) == "h"
    assert identity_of(None, _asked(_meta={"progressToken": 1})) is None
    for wrong in ({CALL_ID: 1}, {CALL_ID: ""}, {CALL_ID: "x" * 2000}):
        with pytest.raises(Refused):
            identity_of(None, _asked(_meta=wrong))


@pytest.mark.parametrize("code", [-32020, -32021, -32022])
def test_what_the_server_has_not_executed_may_be_repeated(code: int) -> None:
    with pytest.raises(DidNotHappen):
        value_of({"error": {"code": code, "message": "no"}})


@pytest.mark.parametrize("code", [-32000, -32019, -32602, -32603])
def test_other_errors_are_answers(code: int) -> None:
    error = {"code": code, "message": "no"}
    assert value_of({"error": error}) == {_mcp.ERROR: error}


@pytest.mark.parametrize(
    ("headers", "fits"),
    [
        ({"mcp-method": "tools/list"}, False),
        ({"mcp-name": "refund"}, False),
        ({"mcp-name": "=?base64?Y2hhcmdl?="}, True),
        ({"mcp-name": "=?base64?Y2hhcmd?="}, False),
        ({"mcp-method": "tools/call", "mcp-name": "charge"}, True),
    ],
)
def test_headers_of_the_newest_revision_fit_the_body(headers: dict[str, str], fits: bool) -> None:
    newest = {"mcp-protocol-version": "2026-07-28", **headers}
    check_headers(_sent({**newest, "mcp-protocol-version": "2025-11-25"}), _asked())
    if fits:
        check_headers(_sent(newest), _asked())
    else:
        _mismatch(_sent(newest), _asked())


def test_each_value_of_a_header_and_the_revision_fit_the_body() -> None:
    newest = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "charge"}
    asked = _asked(_meta={"io.modelcontextprotocol/protocolVersion": "2026-07-28"})
    check_headers(_sent({**newest, "mcp-method": "tools/call "}), asked)
    for name, value in (("mcp-name", "refund"), ("Mcp-Method", "tools/list"), ("mcp-protocol-version", "2027-01-01")):
        _mismatch(_sent(newest, (name, value)), asked)
    assert headers_by_name([(b"Idempotency-Key", b" k1\t")]) == {"idempotency-key": "k1"}
    for changed in ({"mcp-protocol-version": "2025-11-25"}, {"mcp-protocol-version": "2026-07-28x"}):
        _mismatch(_sent({**newest, **changed}), asked)
    _mismatch(_sent({"mcp-name": "refund"}), asked)  # the body alone says that it is the newest revision
    _mismatch(_sent(newest), _asked(_meta={"io.modelcontextprotocol/protocolVersion": "2025-11-25"}))


def _sent(headers: dict[str, str], *more: tuple[str, str]) -> Request:
    pairs = [(name.encode(), value.encode()) for name, value in (*headers.items(), *more)]
    return _request()._replace(headers=pairs, named=headers_by_name(pairs))


def _mismatch(request: Request, asked: _mcp.Request) -> None:
    with pytest.raises(Refused) as refused:
        check_headers(request, asked)
    assert refused.value.more["message"]["error"]["code"] == -32020
