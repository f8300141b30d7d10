"""Who may use the proxy, where it sends requests to, and what becomes of those whose client leaves."""

from __future__ import annotations

import http.client
import sys
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from antiphon import Antiphon
from antiphon._drive import drive
from antiphon.cli import main
from antiphon.errors import InvalidInput
from antiphon.host.api_keys import KeyRing
from antiphon.ports import Clock
from antiphon.proxy.upstreams import Upstream, end_to_end_headers, upstreams
from antiphon.stores._adapters import AsyncFromSync
from tests.fake_provider import FakeProvider, Reply
from tests.integration.proxy import web
from tests.integration.proxy.harness import serving

_ASKED: dict[str, Any] = {"model": "fake-1", "messages": [{"role": "user", "content": "hello"}]}


def _until(met: Callable[[], Any]) -> None:
    end = time.monotonic() + 30
    while not met():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_no_open_relay_no_foreign_page_no_foreign_name(app: Antiphon) -> None:
    with (
        FakeProvider(lambda _: Reply("x")) as provider,
        serving(app, models=provider.url, max_body_bytes=999) as served,
    ):
        ask = f"{served.at('safe')}/v1/chat/completions"
        assert web.post(ask, json=_ASKED, headers={"origin": "https://evil.example"}).status_code == 403
        assert web.post(ask, json=_ASKED, headers={"sec-fetch-site": "cross-site"}).status_code == 403
        assert web.post(ask, json=_ASKED, headers={"host": "evil.example"}).status_code == 403
        assert web.post(ask, json=_ASKED, headers={"antiphon-key": "guessed"}).status_code == 401
        assert web.post(f"{served.url}/run/safe/nowhere/v1/chat/completions", json=_ASKED).status_code == 404
        assert web.post(ask, content=b"x" * 1000).status_code == 413
        assert web.post(ask, content=iter([b"x" * 600, b"x" * 600])).status_code == 413
        assert provider.requests == 0
        for path in (
            "/openai/../v1/chat/completions",
            "/openai/v1/%2e%2e/chat/completions",
            "http://169.254.169.254/x",
        ):
            connection = http.client.HTTPConnection(urlsplit(served.url).netloc)
            connection.request("POST", path, body=b"{}", headers={"content-type": "application/json"})
            assert connection.getresponse().status in (400, 403, 404), path
            connection.close()
        for path in ("/healthz", "/openai/v1/chat/completions", "127.0.0.1:9"):
            assert web.request("CONNECT", f"{served.url}{path if path[0] == '/' else '/' + path}").status_code == 405
        assert provider.requests == 0


def test_with_keys_only_their_owners_are_served(app: Antiphon) -> None:
    ring = KeyRing(AsyncFromSync(app.journal), Clock(), default_tenant=app.tenant)
    token, key = drive(ring.create(role="run", tenant=app.tenant))
    other, _ = drive(ring.create(role="run", tenant="another"))
    with FakeProvider(lambda _: Reply("x")) as provider:
        with serving(app, models=provider.url, require_key=True) as served:
            ask = f"{served.at('keys')}/v1/chat/completions"
            assert web.post(ask, json=_ASKED).status_code == 401
            assert web.get(f"{served.url}/healthz").status_code == 200, "a probe has no key"
            assert web.post(ask, json=_ASKED, headers={"antiphon-key": other}).status_code == 401
            assert web.post(ask, json=_ASKED, headers={"antiphon-key": token}).status_code == 200
            assert served.proxy.runs.get(key.id, "keys") is not None
        assert provider.requests == 1
        assert token not in str(provider.sent_headers)


def test_a_client_that_leaves_ends_the_request_upstream_and_the_log_says_so(app: Antiphon) -> None:
    script = [Reply("one two three four " * 20, pause=0.05)]
    with FakeProvider(script) as provider, serving(app, models=provider.url) as served:
        url = f"{served.at('left')}/v1/chat/completions"
        with web.stream("POST", url, json={**_ASKED, "stream": True}) as response:
            next(response.iter_raw())
        [manifest] = app.journal.runs(tenant=app.tenant)

        def ends() -> list[Any]:
            return [event for event in app.journal.events(manifest.id) if event.type == "call.finished"]

        _until(ends)
        assert ends()[0].payload["outcome"] == "error"


def test_an_upstream_that_is_away_is_said_and_recorded(app: Antiphon) -> None:
    with serving(app) as served:
        answer = web.post(f"{served.at('away')}/v1/chat/completions", json=_ASKED)
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_unreachable")
    with serving(app, "replay") as served:
        again = web.post(f"{served.at('away')}/v1/chat/completions", json=_ASKED)
        assert (again.status_code, again.json()) == (502, answer.json())


def test_live_passes_on_and_records_nothing_and_retries_if_told_so(app: Antiphon) -> None:
    script = [Reply(status=500, headers=(("retry-after-ms", "1"),)), Reply("hi")]
    with FakeProvider(script) as provider, serving(app, "live", models=provider.url, retries=1) as served:
        answer = web.post(f"{served.at('none')}/v1/chat/completions", json=_ASKED)
        assert answer.json()["choices"][0]["message"]["content"] == "hi"
    assert provider.requests == 2
    assert app.journal.runs(tenant=app.tenant) == []


def test_the_list_of_upstreams_is_checked() -> None:
    assert upstreams(["local=http://127.0.0.1:11434/"], [])["local"].url == "http://127.0.0.1:11434"
    for twice in ((["x=http://a", "x=http://b"], []), (["x=http://a"], ["x=http://b"])):
        with pytest.raises(InvalidInput, match="x is given twice"):
            upstreams(*twice)
    for wrong in (
        "x",
        "x=http://a:99999",
        "x=http://[a",
        "x=ftp://a",
        "run=http://a",
        "x=http://user:pw@a",
        "..=http://a",
        "x=http://a?b=1",
    ):
        with pytest.raises(InvalidInput):
            upstreams([wrong], [])
    with pytest.raises(InvalidInput):
        Upstream("x", "http://a/b").at(b"/%2e%2E/c", b"")
    kept = end_to_end_headers(
        [(b"Connection", b"x-hop"), (b"X-Hop", b"1"), (b"Antiphon-Run", b"a"), (b"Accept", b"*/*")]
    )
    assert kept == [(b"accept", b"*/*")]


def test_another_address_needs_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["proxy", "--host", "0.0.0.0"]) == 2
    assert "--require-key" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["größe", "a b", "", "x" * 129])
def test_a_run_has_a_name_that_fits_a_path_also_on_stdio(
    app: Antiphon, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = "The name of a run must be 1 to 128 ASCII letters, digits and . _ ~ -"
    with serving(app) as served:
        answer = web.get(f"{served.url}/run/{name}/openai/v1/models")
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, rule)
    assert main(["mcp", "wrap", "--store", app.store.url, "--run", name, "--", sys.executable, "-V"]) == 2
    assert capsys.readouterr().err == f"antiphon: {rule}\n"


def test_a_rule_for_a_tool_on_stdio_is_refused_as_it_was_typed(
    app: Antiphon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mcp", "wrap", "--store", app.store.url, "--tool", "x:foo", "--", sys.executable, "-V"]) == 2
    assert capsys.readouterr().err == (
        "antiphon: --tool 'x:foo' cannot be read.\n          Write: --tool read_*:read or --tool charge:approve\n"
    )
