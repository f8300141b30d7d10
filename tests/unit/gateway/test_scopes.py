"""R-6: tenant and workspace of an envelope are two things, and each pair of them is a scope of its own."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from antiphon._gateway.gateway import _scope_of
from antiphon._gateway.settings import Settings
from antiphon.contract._base import UNSET
from antiphon.contract.envelope import Target
from antiphon.keys import idempotency_key, params_digests, store_key
from antiphon.ports import Claimed, ClaimTemplate, Settlement, StaticClaimRequest
from tests.unit.gateway.kit import Rig

TEXTS = (None, "a", "b", "c", "a/b", "b/c", "a/b/c", "a/", "/", "%", "a%2Fb", "a%", "%2F", "default", "own", "own/a")


def scope(tenant: str | None, workspace: str | None, settings: Settings) -> str | None:
    target = Target(session_key="s", actor_id="a", tenant_id=tenant or UNSET, workspace_id=workspace or UNSET)
    return _scope_of(target, settings)[0] or settings.workspace


@pytest.mark.parametrize("workspace", ["default", "a/b", "own/a", "a%2Fb"])
def test_no_two_scopes_share_a_name(workspace: str) -> None:
    settings = Settings(tenant="own", workspace=workspace)
    meant: dict[str | None, set[tuple[str | None, str | None]]] = {}
    for tenant in TEXTS:
        for space in TEXTS:
            who = None if tenant == "own" else tenant
            of = space or (workspace if who is None else None)
            meant.setdefault(scope(tenant, space, settings), set()).add((who, of))
    assert all(len(scopes) == 1 for scopes in meant.values()), meant


def test_each_scope_runs_for_itself() -> None:
    rig = Rig()
    script = rig.tool(idempotent=True)
    places: tuple[dict[str, Any], ...] = (
        {"tenantId": "a/b", "workspaceId": "c"},
        {"tenantId": "a", "workspaceId": "b/c"},
        {"workspaceId": "a/b/c"},
    )
    for one, two in combinations(places, 2):
        assert one != two
    for place in places:
        rig.execute(key="k", **place)
        assert rig.execute(key="k", **place).from_cache
    assert len(script) == 3


@pytest.mark.parametrize("space", [{}, {"workspaceId": "w"}, {"workspaceId": "w/x"}, {"workspaceId": "default"}])
def test_the_gateways_own_tenant_says_nothing(space: dict[str, str]) -> None:
    rig = Rig()
    script = rig.tool(idempotent=True)
    rig.execute(key="k", **space)
    assert rig.execute(key="k", tenantId="default", **space).from_cache
    assert len(script) == 1


def kept_by_0_1_0(rig: Rig, workspace: str, key: str | None, params: dict[str, Any], **who: Any) -> None:
    """A result under the key that release 0.1.0 gave a call: tenant and workspace with a stroke between them."""
    place: dict[str, Any] = {"namespace": "tools", "tool": "send", "session": "s1", "actor": "a1"}
    named = key or idempotency_key(params=params, **place)
    stored = store_key(idempotency_key=named, tenant="default", workspace=workspace, **place)
    template = ClaimTemplate(
        tool="tools/send", session="s1", actor="a1", ttl_ms=60_000, lease_ms=1000, owner="o", workspace=workspace
    )
    digest, exact, _ = params_digests(params)
    identity = stored if key else who["call_id"]
    request = StaticClaimRequest(stored, identity, template, named, (digest, exact), token="t", **who)
    journal = rig.store.open_sync()
    held = journal.begin(request)
    assert isinstance(held, Claimed)
    journal.settle(stored, held.version, Settlement("done", 60_000, b'"by 0.1.0"'))


@pytest.mark.parametrize("key", [None, "order-7"])
@pytest.mark.parametrize(
    ("workspace", "target"),
    [
        ("default/", {"tenantId": "default"}),
        ("default/w", {"tenantId": "default", "workspaceId": "w"}),
        ("t2/w", {"tenantId": "t2", "workspaceId": "w"}),
        ("a/b/c", {"tenantId": "a", "workspaceId": "b/c"}),
        ("a/b", {"workspaceId": "a/b"}),
    ],
)
def test_a_call_that_0_1_0_made_is_answered_from_its_record(
    workspace: str, target: dict[str, str], key: str | None
) -> None:
    rig = Rig()
    script = rig.tool("sent again", idempotent=False)
    kept_by_0_1_0(rig, workspace, key, {"to": "ada"}, request_id="r-1", call_id="c1")
    again = rig.execute(key=key, call_id="c1", **target)
    assert (again.content, again.from_cache, len(script)) == ("by 0.1.0", True, 0)


def test_but_not_another_call_of_a_scope_that_had_the_same_name() -> None:
    rig = Rig()
    script = rig.tool("sent", idempotent=False)
    kept_by_0_1_0(rig, "a/b/c", "order-7", {"to": "ada"}, request_id="r-1", call_id="c1")
    answer = rig.execute(key="order-7", call_id="c2", tenantId="a", workspaceId="b/c")
    assert (answer.content, answer.from_cache, len(script)) == ("sent", False, 1)
