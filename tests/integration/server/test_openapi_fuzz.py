"""schemathesis over the published document, and a fuzz of headers and raw bodies: no 5xx, no undocumented status."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis.core.result import Ok
from schemathesis.specs.openapi import checks as conformance

from tests.integration.server import workflows
from tests.integration.server.harness import KEY, Served, serving

REQUESTS = 2_000
EACH = int(os.environ.get("ANTIPHON_TEST_CASES", "12"))
"""Right and wrong cases of each operation (``make fuzz``: 60); to generate one costs more than to send it."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("fuzz")
    environment = {"ANTIPHON_HOST_WEBHOOKS": "true", "ANTIPHON_HOST_MAX_BODY_BYTES": "65536"}
    with serving(folder, workflows.write(folder / "flows"), **environment) as found:
        yield found
        assert found.process is not None
        assert found.process.poll() is None, f"the host ended with code {found.process.returncode}: {found.log()}"
        assert httpx.get(f"{found.url}/readyz").status_code == 200, "the host is alive after all that"
        assert "internal_error" not in found.log()
        assert "Traceback" not in found.log()


def _documented(document: dict[str, Any], path: str, method: str) -> set[int]:
    return {int(status) for status in document["paths"][path][method.lower()]["responses"]}


def test_generated_requests_get_documented_answers(served: Served) -> None:
    document = httpx.get(f"{served.url}/v1/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    operations = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
    counts: Counter[int] = Counter()
    client = httpx.Client(base_url=served.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=20)
    run = client.post("/v1/runs", json={"workflowId": "conformance-multi-node"}).json()["runId"]
    session = requests.Session()  # one connection: a session for each request costs as much as the request
    session.trust_env = False
    session.headers["Accept"] = "application/json"

    def send(case: Any, key: dict[str, str]) -> None:
        headers = {name: str(value) for name, value in (case.headers or {}).items() if str(value).isprintable()}
        case.headers = {**headers, "Accept": "application/json", **key}
        answer = case.call(base_url=served.url, session=session)
        counts[answer.status_code] += 1
        allowed = _documented(document, case.operation.path, case.method)
        assert answer.status_code in allowed, (case.method, case.path, answer.status_code, answer.text[:300])
        assert answer.status_code < 500 or answer.status_code == 501, answer.text
        case.validate_response(
            answer,
            checks=[
                schemathesis.checks.not_a_server_error,
                conformance.status_code_conformance,
                conformance.content_type_conformance,
                conformance.response_schema_conformance,
            ],
        )

    def check(case: Any) -> None:
        """Send it as generated, then about a run or workflow that exists or, if it names none, without a key."""
        key = {"Authorization": f"Bearer {KEY}"}
        if case.path.endswith("poll"):
            case.query = {**(case.query or {}), "timeout": 1}
        send(case, key)
        if "runId" in (case.path_parameters or {}):
            case.path_parameters["runId"] = run
            send(case, key)
        elif case.path == "/v1/runs" and isinstance(case.body, dict):
            for workflow in ("conformance-noop", "conformance-failure", "conformance-identity"):
                case.body["workflowId"] = workflow
                send(case, key)
        else:
            send(case, {"Authorization": ""})

    for operation in operations:
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
            strategy = operation.as_strategy(generation_mode=mode)
            test = given(case=strategy)(check)
            with contextlib.suppress(Unsatisfiable):  # nothing about this operation can be wrong
                settings(
                    max_examples=EACH,
                    deadline=None,
                    database=None,
                    derandomize=True,
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                )(test)()
    session.close()
    client.close()
    print(f"{sum(counts.values())} requests: {dict(counts)}")
    assert sum(counts.values()) >= REQUESTS
    assert counts[201] > 20
    assert counts[200] > 100
    assert counts[400] > 100
    assert not [status for status in counts if status >= 500 and status != 501], counts


HEADER_NAMES = st.sampled_from(
    [
        "Authorization",
        "Idempotency-Key",
        "Last-Event-ID",
        "Accept",
        "Content-Type",
        "If-None-Match",
        "X-API-Key",
        "Host",
    ]
)
HEADER_VALUES = st.binary(max_size=60).map(
    lambda value: bytes(byte for byte in value if byte >= 32 and byte != 127).strip()
)
PATHS = st.sampled_from(
    [
        "/v1/runs",
        "/v1/runs/x",
        "/v1/runs/x:fork",
        "/v1/runs/x/events",
        "/v1/runs/x/events/poll",
        "/v1/runs/x/cancel",
        "/v1/webhooks",
        "/v1/admin/tool-reliability",
        "/v1/host/sample/test/llm-cache-key",
        "/v1/host/sample/test/mock-ai/program",
        "/.well-known/openwop",
        "/metrics",
        "/v1/runs/%2e%2e%2f",
        "/v1/runs/%ff%fe",
        "//",
    ]
)


def test_raw_headers_and_bodies_never_break_the_host(served: Served) -> None:
    seen: Counter[int] = Counter()
    key = {"Authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=served.url, timeout=20) as client:

        @settings(max_examples=600, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(
            method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"]),
            path=PATHS,
            headers=st.dictionaries(HEADER_NAMES, HEADER_VALUES, max_size=3),
            body=st.one_of(
                st.binary(max_size=200), st.text(max_size=100).map(str.encode), st.just(b'{"mode":"replay"}')
            ),
            authenticated=st.booleans(),
        )
        def fuzz(method: str, path: str, headers: dict[str, bytes], body: bytes, authenticated: bool) -> None:
            given_headers: dict[Any, Any] = {"Content-Type": "application/json", **(key if authenticated else {})}
            answer = client.request(method, path, content=body, headers={**given_headers, **headers})
            seen[answer.status_code] += 1
            assert answer.status_code < 500, (method, path, headers, body, answer.text)
            if answer.status_code >= 400 and method != "HEAD" and "json" in answer.headers.get("content-type", ""):
                assert set(answer.json()) <= {"error", "message", "details"}

        fuzz()
    assert sum(seen.values()) >= 600
