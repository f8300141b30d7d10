"""The payment service of the examples under attack: one charge per key, whatever is killed, lost or repeated."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.campaigns import payments


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_one_charge_per_key(store: str, tmp_path: Path, request: pytest.FixtureRequest, unique: str) -> None:
    """The short form of ``python -m tests.campaigns.payments``."""
    if store == "sqlite":
        url = f"sqlite:///{tmp_path}/payments.db"
    else:
        url = f"{request.getfixturevalue('valkey_url')}?antiphon_prefix={unique}"
    found = asyncio.run(payments.attack(url, tmp_path, requests=100, seed=7, killed_every=20))
    assert payments.right(found), found
    assert found["kills"] > 0, found
    assert found["unknownListed"] > 0, found


def test_the_campaign_sees_a_second_charge() -> None:
    """The planted bugs: each wrong number alone is enough."""
    good = {
        "doubles": 0,
        "missing": 0,
        "wrongAmount": 0,
        "unlisted": 0,
        "withoutArguments": 0,
        "unknownAfter": 0,
        "charges": 9,
        "acknowledged": 9,
        "keys": 9,
        "conflicts": 3,
    }
    assert payments.right(good)
    for name in good:
        assert not payments.right({**good, name: 0 if name == "conflicts" else good[name] + 1}), name
