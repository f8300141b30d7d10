"""Discovery: what is claimed, when, and how it is cached (L7, D24, D26)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from starlette.routing import Route

from antiphon.host import discovery
from antiphon.host.http.app import routes
from antiphon.host.http.handlers import openapi
from tests.integration.server.harness import Client, application, in_process


async def _document(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get("/.well-known/openwop", headers={"Authorization": ""})).json()
    return found


async def test_the_required_fields_and_the_claim(client: Client) -> None:
    found = await _document(client)
    assert isinstance(found["protocolVersion"], str)
    assert found["supportedEnvelopes"]
    assert all(isinstance(version, int) for version in found["schemaVersions"].values())
    assert all(isinstance(limit, int) and limit >= 0 for limit in found["limits"].values())
    assert {"clarificationRounds", "schemaRounds", "envelopesPerTurn"} <= set(found["limits"])
    assert len(found["fixtures"]) == len(set(found["fixtures"]))
    assert "conformance-noop" in found["fixtures"]
    model = found["multiAgent"]["executionModel"]
    assert (model["supported"], model["version"], model["tier"]) == (True, 4, "experimental")
    assert model["experimentalUntil"]
    assert model["replayDeterminism"] == {
        "supported": True,
        "llmCacheKeyRecipe": "spec-rfc-0041",
        "refusalDivergenceEmission": True,
    }
    assert found["replay"] == {
        "supported": True,
        "fork": True,
        "modes": ["replay", "branch"],
        "sideEffectSuppression": "recorded-outcome",
        "retention": {"windowSeconds": 14 * 86_400},
    }
    phases = found["x-host-antiphon-phases"]
    assert any("replay" in phase for phase in phases["honoured"])
    assert any("handoff" in phase for phase in phases["notHonoured"])
    assert phases["llmKeyRecipe"] == "rfc0041"
    assert found["capabilities"]["multiAgent"] == found["multiAgent"]


@pytest.mark.parametrize("broken", ["vector", "replay"])
async def test_without_the_self_test_the_host_claims_less(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    if broken == "vector":
        monkeypatch.setattr(discovery, "llm_cache_key", lambda request, recipe: "0" * 64)
    else:
        from antiphon.host.workflow.runner import Runner

        async def forgetful(self: Any, *arguments: Any) -> None:
            return None

        monkeypatch.setattr(Runner, "_verify", forgetful)
    async with in_process(application(tmp_path, folder)) as client:
        found = await _document(client)
    assert "multiAgent" not in found
    assert "multiAgent" not in found["capabilities"]
    assert found["x-host-antiphon-phases"]["honoured"] == []
    assert found["x-host-antiphon-phases"]["selfTest"] != "passed"


async def test_the_self_test_passes_for_both_recipes() -> None:
    assert await discovery.self_test("rfc0041") == []
    assert await discovery.self_test("semantic-request-v2") == []


async def test_the_recipe_and_the_window_follow_the_configuration(tmp_path: Path, folder: Path) -> None:
    settings = {"llm_key_recipe": "semantic-request-v2", "retention_seconds": 3600}
    async with in_process(application(tmp_path, folder, **settings)) as client:
        found = await _document(client)
        run = await client.run("conformance-phase4-replay-divergence")
    assert found["x-host-antiphon-phases"]["llmKeyRecipe"] == "openwop-semantic-request-v2"
    assert found["multiAgent"]["executionModel"]["replayDeterminism"]["llmCacheKeyRecipe"] == "spec-rfc-0041"
    assert found["replay"]["retention"]["windowSeconds"] == 3600
    assert run["semanticRequestRecipe"] == "openwop-semantic-request-v2"
    assert run["activityIdentityRecipe"] == "openwop:activity:v2"


@pytest.mark.parametrize("path", ["/.well-known/openwop", "/v1/openapi.json"])
async def test_documents_are_cached_by_tag(client: Client, path: str) -> None:
    first = await client.get(path)
    assert "max-age" in first.headers["cache-control"]
    tag = first.headers["etag"]
    again = await client.get(path, headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == tag
    assert (await client.get(path, headers={"If-None-Match": f'"other", W/{tag}'})).status_code == 304
    assert (await client.get(path, headers={"If-None-Match": '"other"'})).status_code == 200
    assert (await client.get(path)).headers["capabilities-etag"] == first.headers["capabilities-etag"]


def test_the_openapi_document_and_the_routes_agree() -> None:
    for seams in (True, False):
        served = set()
        for route in routes(test_seams=seams):
            assert isinstance(route, Route)
            path = re.sub(r"_([a-z])", lambda found: found[1].upper(), route.path)
            served |= {(path, method) for method in (route.methods or set()) - {"HEAD"}}
        document = openapi(seams=seams)
        written = {(path, method.upper()) for path, methods in document["paths"].items() for method in methods}
        assert written == served
        assert document["openapi"].startswith("3.1")


def test_every_schema_of_the_document_is_a_schema() -> None:
    document = openapi(seams=True)
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    names = [op["operationId"] for methods in document["paths"].values() for op in methods.values()]
    assert len(names) == len(set(names))


def test_the_reference_page_names_every_endpoint() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "http-api.md").read_text()
    for path, methods in openapi(seams=True)["paths"].items():
        for method in methods:
            assert f"`{method.upper()} {path}`" in page
