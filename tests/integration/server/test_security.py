"""Keys, roles, tenants: every endpoint, one by one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from starlette.routing import Route

from antiphon.errors import StoreUnavailable
from antiphon.host.api_keys import HOST_TENANT, KeyRing
from antiphon.host.http.app import create, routes
from tests.integration.server.harness import Client, application, in_process


class Call(NamedTuple):
    method: str
    path: str
    role: str
    body: dict[str, Any] | None = None


HOOK = {"url": "http://127.0.0.1:9/hook", "events": ["run.paused"]}
SEAM = "/v1/host/sample/test"
OPEN = {"/.well-known/openwop", "/v1/openapi.json", "/livez", "/healthz", "/readyz", "/metrics"}
"""What is answered without a key. Everything else says which role it needs."""
SIGNED = {"/approve"}
"""What the token of a signed link opens, and nothing else; the corpus of attacks on approvals has its cases."""
BODIES: dict[str, dict[str, Any]] = {
    "/v1/runs": {"workflowId": "conformance-noop"},
    "/v1/runs/{run}:fork": {"mode": "replay"},
    "/v1/webhooks": HOOK,
    "/v1/approvals/{approval}": {"decision": "approve"},
    "/v1/approvals/{approval}/links": {"to": "ada", "url": "https://desk.example.com/approve"},
    "/v1/golden/{test}": {"run": "none"},
    "/debug/tool-reliability": {"action": "status"},
    "/v1/admin/tool-reliability": {"action": "status"},
    f"{SEAM}/llm-cache-key": {"model": "m", "provider": "p", "messages": []},
    f"{SEAM}/mock-ai/program": {"nodeId": "n", "program": []},
    f"{SEAM}/idempotency/concurrent-claim": {"executors": 1},
}
"""A body that works, where an empty one does not."""


def calls_of(table: list[Route]) -> list[Call]:
    """One request for each method of each route, made from the table that the host serves."""
    found = []
    for route in table:
        if route.path in OPEN | SIGNED:
            continue
        role = getattr(route.endpoint, "role", None)
        assert role is not None, f"{route.path} needs a role: requires_role(role, handler)"
        path = route.path.replace("{webhook_id}", "{hook}")
        path = path.replace("{run_id}", "{run}").replace("{other_id}", "{run}")
        assert "_id}" not in path, f"say here what {path} names"
        for method in sorted((route.methods or set()) - {"HEAD"}):
            body = None if method in ("GET", "DELETE") else BODIES.get(path, {})
            found.append(Call(method, path, role, body))
    return found


CALLS = calls_of(routes(test_seams=True))
IDS = [f"{call.method} {call.path}" for call in CALLS]


def test_a_route_without_a_check_is_found() -> None:
    async def careless(request: Any) -> Any:
        return None

    with pytest.raises(AssertionError, match="needs a role"):
        calls_of([*routes(test_seams=True), Route("/v1/secrets", careless)])


def test_what_changes_something_needs_more_than_reading() -> None:
    for call in CALLS:
        if "/admin/" in call.path or call.path.startswith("/debug"):
            assert call.role == "admin", call
        elif call.method != "GET":
            assert call.role in ("run", "admin"), call


@pytest.fixture
async def hooked(tmp_path: Path, folder: Path) -> Any:
    async with in_process(application(tmp_path, folder, webhooks=True, webhooks_loopback=True)) as client:
        yield client


async def _send(client: Client, call: Call, token: str | None, **names: str) -> int:
    path = call.path.replace("{run}", names.get("run", "none")).replace("{hook}", names.get("hook", "none"))
    headers = {"Authorization": "" if token is None else f"Bearer {token}", "Accept": "application/json"}
    answer = await client.request(call.method, path, json=call.body, headers=headers)
    if answer.status_code >= 400:
        assert set(answer.json()) <= {"error", "message", "details"}
    return answer.status_code


@pytest.mark.parametrize("call", CALLS, ids=IDS)
async def test_without_a_valid_key_nothing_is_answered(hooked: Client, call: Call) -> None:
    run = (await hooked.run("conformance-noop"))["runId"]
    path = call.path.replace("{run}", run).replace("{hook}", "none")
    for token in (None, "", "wrong", "wrong\x00", "ä"):
        headers: Any = {b"authorization": b"" if token is None else b"Bearer " + token.encode()}
        answer = await hooked.request(call.method, path, json=call.body, headers=headers)
        assert (answer.status_code, answer.json()["error"]) == (401, "unauthenticated")
        assert answer.headers["www-authenticate"] == "Bearer"
    basic = await hooked.request(call.method, path, json=call.body, headers={"Authorization": "Basic dGVzdDp0ZXN0"})
    assert basic.status_code == 401


@pytest.mark.parametrize("call", CALLS, ids=IDS)
async def test_a_role_is_enough_or_not(hooked: Client, call: Call) -> None:
    ring: KeyRing = hooked.host.keys
    run = (await hooked.run("conformance-noop"))["runId"]
    order = ["read", "run", "admin"]
    for role in order:
        token, _ = await ring.create(role=role, tenant="default")
        status = await _send(hooked, call, token, run=run)
        if order.index(role) < order.index(call.role):
            assert status == 403
        else:
            assert status not in (401, 403)


@pytest.mark.parametrize("call", CALLS, ids=IDS)
async def test_another_tenant_sees_and_changes_nothing(hooked: Client, call: Call) -> None:
    ring: KeyRing = hooked.host.keys
    stranger, _ = await ring.create(role="admin", tenant="stranger")
    run = await hooked.start("conformance-cancellable", {"delayMs": 30_000})
    hook = (await hooked.post("/v1/webhooks", json=HOOK)).json()["webhookId"]
    await hooked.post("/v1/admin/tool-reliability", json={"action": "force_open", "tool": "conformance/side-effect"})
    path = call.path.replace("{run}", run).replace("{hook}", hook)
    headers = {"Authorization": f"Bearer {stranger}", "Accept": "application/json"}
    answer = await hooked.request(call.method, path, json=call.body, headers=headers)
    if "{run}" in call.path or "{hook}" in call.path:
        assert answer.status_code == 404
    else:
        assert run not in answer.text
        assert hook not in answer.text
    assert "FORCED_OPEN" not in answer.text
    assert (await hooked.get(f"/v1/runs/{run}")).json()["status"] == "running"
    assert len((await hooked.get("/v1/webhooks")).json()["webhooks"]) == 1
    await hooked.post(f"/v1/runs/{run}/cancel")


async def test_the_tenant_comes_from_the_credential_only(client: Client) -> None:
    ring: KeyRing = client.host.keys
    token, _ = await ring.create(role="run", tenant="acme")
    headers = {"Authorization": f"Bearer {token}", "X-Tenant": "default", "tenantId": "default"}
    body = {"workflowId": "conformance-noop", "tenantId": "default", "tenant": "default", "metadata": {"tenant": "d"}}
    run = (await client.post("/v1/runs?tenant=default", json=body, headers=headers)).json()["runId"]
    manifest = await client.host.journal.manifest(run)
    assert manifest is not None
    assert manifest.tenant == "acme"
    assert (await client.get(f"/v1/runs/{run}")).status_code == 404
    assert (await client.get(f"/v1/runs/{run}", headers={"Authorization": f"Bearer {token}"})).status_code == 200


async def test_mock_programs_belong_to_their_tenant(client: Client) -> None:
    ring: KeyRing = client.host.keys
    token, _ = await ring.create(role="run", tenant="acme")
    body = {"nodeId": "structured-call", "program": [{"content": "no", "stopReason": "safety"}]}
    await client.post(f"{SEAM}/mock-ai/program", json=body, headers={"Authorization": f"Bearer {token}"})
    assert (await client.run("conformance-phase4-replay-divergence"))["status"] == "completed"


async def test_a_revoked_key_is_refused(client: Client) -> None:
    ring: KeyRing = client.host.keys
    token, key = await ring.create(role="read", tenant="default")
    headers = {"Authorization": f"Bearer {token}"}
    assert (await client.get("/v1/runs", headers=headers)).status_code == 200
    assert (await client.get("/v1/runs", headers={"Authorization": "", "X-API-Key": token})).status_code in (200, 401)
    await ring.revoke(key.id)
    assert (await client.get("/v1/runs", headers=headers)).status_code == 401


async def test_a_revocation_is_not_lost_if_the_store_fails_while_it_is_read(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, key = await client.host.keys.create(role="read", tenant="default")
    journal, clock = client.host.journal, client.host.app.clock
    other = KeyRing(journal, clock, default_tenant="default")  # of another process
    assert await other.find(token) is not None
    await client.host.keys.revoke(key.id)
    read, done = journal.events, []

    async def fails_after_the_first_read(*wanted: Any, **more: Any) -> Any:
        done.append(wanted)
        if len(done) == 2:
            raise StoreUnavailable("connection lost")
        return await read(*wanted, **more)

    monkeypatch.setattr(journal, "events", fails_after_the_first_read)
    with pytest.raises(StoreUnavailable):
        await other.refresh(0.0)
    await other.refresh(0.0)
    assert await other.find(token) is None


async def test_a_header_for_those_who_cannot_send_bearer(client: Client) -> None:
    del client.headers["authorization"]
    assert (await client.get("/v1/runs")).status_code == 401
    assert (await client.get("/v1/runs", headers={"X-API-Key": "test-key-with-all-rights"})).status_code == 200


async def test_only_digests_of_keys_are_kept(client: Client, tmp_path: Path) -> None:
    token, _ = await client.host.keys.create(role="run", tenant="default", name="ci")
    await client.get("/v1/runs", headers={"Authorization": f"Bearer {token}"})
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert token.encode() not in file.read_bytes()


async def test_the_hosts_own_tenant_cannot_be_had(client: Client) -> None:
    from antiphon.errors import InvalidInput

    for tenant in (HOST_TENANT, ""):
        with pytest.raises(InvalidInput):
            await client.host.keys.create(role="admin", tenant=tenant)
    with pytest.raises(InvalidInput):
        await client.host.keys.create(role="owner", tenant="x")


async def test_without_auth_only_this_machine_under_its_own_name(tmp_path: Path, folder: Path) -> None:
    async with in_process(application(tmp_path, folder, auth=False), key="") as client:
        assert (await client.get("/v1/runs")).status_code == 200
        assert (await client.get("/v1/runs", headers={"Host": "evil.example:8321"})).status_code == 401
        assert (await client.get("/v1/runs", headers={"Host": "localhost"})).status_code == 200
        assert (await client.get("/v1/runs", headers={"Authorization": "Bearer wrong"})).status_code == 401


async def test_seams_do_not_exist_unless_switched_on(tmp_path: Path, folder: Path) -> None:
    async with in_process(application(tmp_path, folder, test_seams=False)) as client:
        for call in CALLS:
            if call.path.startswith(SEAM):
                assert (await client.post(call.path, json=call.body)).status_code == 404
        paths = (await client.get("/v1/openapi.json")).json()["paths"]
        assert not [path for path in paths if path.startswith(SEAM)]


async def test_metrics_need_a_key_on_a_public_address(tmp_path: Path, folder: Path) -> None:
    public = application(tmp_path, folder)
    public.state.bind = "0.0.0.0"
    async with in_process(public) as client:
        assert (await client.get("/metrics")).status_code == 200
        assert (await client.get("/metrics", headers={"Authorization": ""})).status_code == 401


async def test_metrics_need_a_key_under_a_foreign_host_name(client: Client) -> None:
    foreign = {"Host": "evil.example:8321"}
    assert (await client.get("/metrics", headers=foreign)).status_code == 200
    assert (await client.get("/metrics", headers={**foreign, "Authorization": ""})).status_code == 401
    assert (await client.get("/metrics", headers={"Host": "localhost", "Authorization": ""})).status_code == 200


def _serve(tmp_path: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from antiphon.cli import main; raise SystemExit(main())", "serve", *words]
    env = {"PATH": "/usr/bin:/bin", "ANTIPHON_HOME": str(tmp_path / "state"), **environment}
    return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)


def test_a_public_address_is_refused_without_a_key(tmp_path: Path) -> None:
    done = _serve(tmp_path, "--host", "0.0.0.0", "--port", "0")
    assert done.returncode == 2
    assert "before there is a key" in done.stderr
    done = _serve(tmp_path, "--host", "::", "--port", "0", ANTIPHON_API_KEY="k", ANTIPHON_HOST_AUTH="false")
    assert done.returncode == 2
    assert "without keys" in done.stderr


async def test_errors_do_not_tell_secrets(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from antiphon.host import runs

    async def breaks(*arguments: Any) -> dict[str, Any]:
        raise RuntimeError("password=hunter2 at /home/me")

    monkeypatch.setattr(runs, "start_run", breaks)
    answer = await client.post("/v1/runs", json={"workflowId": "conformance-noop"})
    assert (answer.status_code, answer.json()["error"]) == (500, "internal_error")
    assert "hunter2" not in answer.text


async def test_originals_are_shown_to_admins_only_and_the_audit_log_says_so(hooked: Client) -> None:
    ring: KeyRing = hooked.host.keys
    run = (await hooked.run("conformance-identity", {"payload": {"mail": "ada.lovelace@example.org"}}))["runId"]
    path = f"/v1/runs/{run}/events"
    headers = {"Accept": "application/json"}
    assert "ada.lovelace" not in (await hooked.get(path, headers=headers)).text
    for role in ("read", "run"):
        token, _ = await ring.create(role=role, tenant="default")
        refused = await hooked.get(f"{path}?reveal=true", headers={**headers, "Authorization": f"Bearer {token}"})
        assert (refused.status_code, refused.json()["error"]) == (403, "forbidden")
        assert "ada.lovelace" not in refused.text
    assert "reveal" not in (await hooked.get("/v1/admin/audit")).text
    token, key = await ring.create(role="admin", tenant="default")
    shown = await hooked.get(f"{path}?reveal=true", headers={**headers, "Authorization": f"Bearer {token}"})
    assert "ada.lovelace@example.org" in shown.text
    act = (await hooked.get("/v1/admin/audit")).json()["acts"][0]
    assert (act["act"], act["run"], act["by"]) == ("reveal", run, key.id)
    assert (await hooked.get(f"{path}?reveal=true", headers={"Accept": "text/event-stream"})).status_code == 400
    assert (await hooked.get(f"{path}?reveal=yes", headers=headers)).status_code == 400
    stranger, _ = await ring.create(role="admin", tenant="stranger")
    other = await hooked.get(f"{path}?reveal=true", headers={**headers, "Authorization": f"Bearer {stranger}"})
    assert other.status_code == 404


async def test_originals_that_are_not_kept_cannot_be_shown(tmp_path: Path, folder: Path) -> None:
    settings = {"workflows": str(folder), "test_seams": True}
    store = {"url": f"sqlite:///{tmp_path}/host.db"}
    async with in_process(create({"store": store, "host": settings, "redact": {"keep_sealed": False}})) as client:
        run = (await client.run("conformance-identity", {"payload": {"mail": "ada.lovelace@example.org"}}))["runId"]
        answer = await client.get(f"/v1/runs/{run}/events?reveal=true", headers={"Accept": "application/json"})
        assert (answer.status_code, answer.json()["error"]) == (409, "originals_unavailable")
