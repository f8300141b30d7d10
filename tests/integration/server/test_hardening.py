"""Addresses, origins, streams of revoked keys, large numbers, reasons: what an attacker or an accident tries."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from antiphon.host.addresses import AddressRefused, Lookup, Target, is_public
from antiphon.host.http.app import post
from tests.integration.server.harness import Client, application, in_process

SPECIAL = """
0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 100.127.255.255 127.0.0.1 127.1.2.3 169.254.169.254 168.63.129.16 172.16.0.1
172.31.255.255 192.0.0.1 192.0.0.9 192.0.0.192 192.0.2.1 192.88.99.1 192.168.0.1 198.18.0.1 198.19.255.255 198.51.100.7
203.0.113.9 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
:: ::1 ::127.0.0.1 ::a9fe:a9fe ::ffff:127.0.0.1 ::ffff:8.8.8.8 ::ffff:0:127.0.0.1 64:ff9b::a9fe:a9fe 64:ff9b::808:808
64:ff9b:1::1 100::1 2001::1 2001:0:1234::1 2001:2::1 2001:10::1 2001:20::1 2001:db8::1 2002:7f00:1:: 2002:a9fe:a9fe::1
2002:808:808::1 3fff::1 5f00::1 fc00::1 fd00::1 fd00:ec2::254 fe80::1 fec0::1 ff02::1 ff0e::1
""".split()
PUBLIC = (
    "8.8.8.8 1.1.1.1 93.184.216.34 172.32.0.1 100.128.0.1 192.0.1.1 2606:4700::1111 2a00:1450::1 2620:fe::fe".split()
)


@pytest.mark.parametrize("address", SPECIAL)
def test_special_addresses_are_refused(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_not(address: str) -> None:
    assert is_public(address)


def _names(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """A name server that gives these answers in turn."""
    asked: list[str] = []
    given = list(answers)

    def look(host: str, port: int, **more: Any) -> list[Any]:
        asked.append(host)
        found = given.pop(0) if len(given) > 1 else given[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", look)
    return asked


async def test_every_address_of_a_name_has_to_be_public(monkeypatch: pytest.MonkeyPatch) -> None:
    lookup = Lookup(loopback=False)
    _names(monkeypatch, ["8.8.8.8", "64:ff9b::a9fe:a9fe"])
    with pytest.raises(AddressRefused):
        await lookup.target("acme", "https://hooks.example/x")
    _names(monkeypatch, ["8.8.8.8"])
    assert await lookup.target("acme", "https://hooks.example/x") == Target("https://hooks.example/x", "8.8.8.8")
    with pytest.raises(AddressRefused):
        await lookup.target("acme", "http://hooks.example/x")


async def test_a_name_that_changes_its_address_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection goes to the address that was checked, and the name stays the one of Host."""
    got: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    status, _ = await post(f"http://rebound.example:{port}/x", b"{}", {}, 5.0, address="127.0.0.1")
    assert status == 204
    assert f"host: rebound.example:{port}".encode() in got[0].lower()
    server.close()
    lookup = Lookup(loopback=True)
    asked = _names(monkeypatch, ["127.0.0.1"], ["10.0.0.1"])
    assert (await lookup.target("acme", "http://rebound.example/x")).address == "127.0.0.1"
    with pytest.raises(AddressRefused):
        await lookup.target("acme", "http://rebound.example/x")
    assert len(asked) == 2, "each delivery looks once and uses what it found"


async def test_a_name_server_that_hangs_keeps_its_own_tenant_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    wake = threading.Event()

    def look(host: str, port: int, **more: Any) -> list[Any]:
        if host == "slow.example":
            wake.wait(30)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("8.8.8.8", port))]

    monkeypatch.setattr(socket, "getaddrinfo", look)
    monkeypatch.setattr("antiphon.host.addresses._LOOKUP_S", 0.2)
    lookup = Lookup(loopback=False)
    waiting = [asyncio.create_task(lookup.target("bad", "https://slow.example/")) for _ in range(20)]
    try:
        assert (await lookup.target("good", "https://fast.example/")).address == "8.8.8.8"
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(one, (AddressRefused, TimeoutError)) for one in found)
        assert sum(thread.name == "antiphon-lookup" for thread in threading.enumerate()) <= 4
    finally:
        wake.set()


TRICKY = [
    "https://[64:ff9b::a9fe:a9fe]/",
    "https://[2002:7f00:1::]/",
    "https://[::127.0.0.1]/",
    "https://[::ffff:7f00:1]/",
    "https://192.0.0.192/",
    "https://224.0.0.1/",
    "https://0x7f000001/",
    "https://2130706433/",
    "https://127.1/",
    "https://a\\@127.0.0.1/",
    "https://a b/",
    "https://a\n.example/",
    "//8.8.8.8/",
]


async def test_tricky_urls_are_refused(tmp_path: Path, folder: Path) -> None:
    async with in_process(application(tmp_path, folder, webhooks=True, test_seams=False)) as client:
        for url in TRICKY:
            answer = await client.post("/v1/webhooks", json={"url": url})
            assert (answer.status_code, answer.json()["error"]) == (400, "webhook_url_rejected"), url


# -- keys and origins ------------------------------------------------------------------------------------------------


async def test_a_revoked_key_ends_its_streams_and_polls(client: Client) -> None:
    token, key = await client.host.keys.create(role="read", tenant="default")
    run = await client.start("conformance-cancellable", {"delayMs": 60_000})
    headers = {"Authorization": f"Bearer {token}"}
    stream = asyncio.create_task(client.get(f"/v1/runs/{run}/events", headers=headers, timeout=30))
    poll = asyncio.create_task(
        client.get(f"/v1/runs/{run}/events/poll?lastSequence=9&timeout=30", headers=headers, timeout=40)
    )
    while client.host._open["default"] < 2:
        await asyncio.sleep(0.01)
    await client.host.keys.revoke(key.id)
    begun = time.monotonic()
    found = await stream
    assert "unauthenticated" in found.text
    assert (await poll).status_code == 401
    assert time.monotonic() - begun < 10, "two seconds are promised"
    await client.post(f"/v1/runs/{run}/cancel")


async def test_a_new_key_opens_every_worker_at_once(tmp_path: Path, folder: Path) -> None:
    async with in_process(application(tmp_path, folder)) as one, in_process(application(tmp_path, folder)) as other:
        for _ in range(3):
            token, _ = await one.host.keys.create(role="read", tenant="default")
            headers = {"Authorization": f"Bearer {token}"}
            assert (await other.get("/v1/runs", headers=headers)).status_code == 200


async def test_other_workers_hear_of_a_revocation(tmp_path: Path, folder: Path) -> None:
    async with in_process(application(tmp_path, folder)) as one, in_process(application(tmp_path, folder)) as other:
        token, key = await one.host.keys.create(role="read", tenant="default")
        run = await one.start("conformance-cancellable", {"delayMs": 60_000})
        headers = {"Authorization": f"Bearer {token}"}
        stream = asyncio.create_task(other.get(f"/v1/runs/{run}/events", headers=headers, timeout=30))
        while not other.host._open["default"]:
            await asyncio.sleep(0.01)
        await one.host.keys.revoke(key.id)
        assert "unauthenticated" in (await stream).text
        await one.post(f"/v1/runs/{run}/cancel")


async def test_a_slash_too_many_is_no_redirect(client: Client) -> None:
    for path in ("/v1/runs/", "/readyz/", "/v1/webhooks/"):
        answer = await client.get(path, headers={"Host": "evil.example"})
        assert answer.status_code == 404, path
        assert "location" not in answer.headers
        assert "evil" not in answer.text


FOREIGN: list[dict[str, str]] = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:9999"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Content-Type": "text/plain"},
    {"Content-Type": "application/x-www-form-urlencoded"},
    {"Content-Type": "multipart/form-data; boundary=x"},
]


async def test_without_keys_other_sites_can_do_nothing(tmp_path: Path, folder: Path) -> None:
    async with in_process(application(tmp_path, folder, auth=False), key="") as client:
        run = await client.start("conformance-cancellable", {"delayMs": 60_000})
        for headers in FOREIGN:
            answer = await client.post(f"/v1/runs/{run}/cancel", headers=headers)
            assert (answer.status_code, answer.json()["error"]) == (403, "cross_site"), headers
        assert (await client.get(f"/v1/runs/{run}")).json()["status"] == "running"
        same = {"Origin": "http://127.0.0.1:8321", "Sec-Fetch-Site": "same-origin"}
        assert (await client.post(f"/v1/runs/{run}/cancel", headers=same)).status_code == 200


# -- numbers and reasons ---------------------------------------------------------------------------------------------

LARGE = 123456789012345678901234567890
NUMBERS: list[Any] = [
    LARGE,
    -LARGE,
    2**63,
    2**64 - 1,
    2**64,
    -(2**63) - 1,
    9007199254740993,
    10**399,
    -(10**4298),
    {"$int": "5"},
    {"$int": str(LARGE)},
    {"$int": ["5"]},
    {"$int": [LARGE]},
    {"$int": {"$int": "1"}},
    {"$int": "5", "more": 1},
    [LARGE, {"a": [{"b": LARGE}]}],
]


async def test_large_numbers_and_their_look_alikes_are_kept(client: Client) -> None:
    for place, number in enumerate(NUMBERS):
        await _is_kept(client, number, place)


@pytest.mark.parametrize(
    ("number", "why"), [("1" * 4301, "out of range"), ("1e400", "infinity"), ("1" * 20 + ",]", "malformed")]
)
async def test_a_body_that_cannot_be_read_says_why(client: Client, number: str, why: str) -> None:
    headers = {"Content-Type": "application/json"}
    answer = await client.post("/v1/runs", content=f'{{"workflowId":"w","inputs":{{"n":{number}}}}}', headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_json")
    assert why in answer.json()["message"]


async def _is_kept(client: Client, number: Any, place: int) -> None:
    payload = {"n": number, "list": [number, {"deep": number}]}
    run = await client.run("conformance-identity", {"payload": payload})
    assert run["outputs"] == {"identity": {"payload": payload}}
    assert run["variables"] == {"payload": payload}
    events = await client.events(run["runId"])
    assert events[0]["payload"]["inputs"] == {"payload": payload}
    assert events[2]["payload"]["outputs"] == {"payload": payload}
    fork = await client.fork(run["runId"])
    assert (await client.ended(fork))["outputs"] == run["outputs"]
    assert "replay.diverged" not in [event["type"] for event in await client.events(fork)]
    stream = (await client.get(f"/v1/runs/{run['runId']}/events")).text
    assert str(LARGE) in stream or str(LARGE) not in str(payload)
    body = {"workflowId": "conformance-identity", "inputs": {"payload": payload}}
    key = {"Idempotency-Key": f"large-numbers-{place}"}
    first, again = [(await client.post("/v1/runs", json=body, headers=key)).json() for _ in range(2)]
    assert first == again


async def test_reasons_hold_no_secret_and_no_markup(client: Client, tmp_path: Path) -> None:
    secret = "sk-ant-api03-" + "Ab3dEf6hIj" * 9
    reason = f"key {secret} leaked\n\x1b[31mred<script>"
    body = {"action": "force_open", "tool": "conformance/side-effect", "reason": reason}
    answer = await client.post("/v1/admin/tool-reliability", json=body)
    assert answer.status_code == 200
    seen = [answer.text, (await client.get("/v1/admin/audit")).text, (await client.get("/metrics")).text]
    for text in seen:
        assert secret not in text
        assert "\x1b" not in text
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert secret.encode() not in file.read_bytes(), file


async def test_request_ids_are_kept_or_made(client: Client) -> None:
    answer = await client.get("/v1/runs", headers={"X-Request-ID": "abc-123"})
    assert answer.headers["x-request-id"] == "abc-123"
    for bad in ("a b", "x" * 65, "a\tb", ""):
        made = (await client.get("/v1/runs", headers={"X-Request-ID": bad})).headers["x-request-id"]
        assert made != bad
        assert len(made) == 36
