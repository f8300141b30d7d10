"""A slot of a Redis Cluster that moves: an error about this slot says nothing of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import redis
from redis.exceptions import AskError, ClusterError, TryAgainError

from antiphon._drive import drive
from antiphon._gateway.store_breaker import is_outage
from antiphon.errors import StoreUnavailable
from antiphon.stores.redis.client import BlockingClient, Words
from antiphon.stores.redis.url import parse

TRY_AGAIN = TryAgainError("Multiple keys request during rehashing of slot", status_code="TRYAGAIN")
ASK = AskError("3408 127.0.0.1:7001", status_code="ASK")
EXHAUSTED = ClusterError("TTL exhausted.")
LOST = redis.ConnectionError("reset by peer")


class Scripted(BlockingClient):
    """Answers with what it was given."""

    def __init__(self, *replies: Exception) -> None:
        super().__init__(parse("redis://127.0.0.1"), retry_timeout_s=0.0)
        self._replies = iter(replies)

    async def _exchange(self, commands: Sequence[Words], *, dedicated: bool = False) -> list[Any]:
        return [next(self._replies)] * len(commands)

    async def _follow(self, words: Words, **options: Any) -> Any:
        return next(self._replies)


def _error_of(*replies: Exception, wait: bool = False) -> StoreUnavailable:
    client, words = Scripted(*replies), ("GET", "k")
    with pytest.raises(StoreUnavailable) as caught:
        drive(client.execute_and_wait(words, 1, 1) if wait else client.execute(words))
    return caught.value


@pytest.mark.parametrize("replies", [(TRY_AGAIN,), (ASK, TRY_AGAIN), (ASK,) * 6, (ASK, EXHAUSTED)])
def test_a_slot_that_moves_is_no_sick_store(replies: tuple[Exception, ...]) -> None:
    error = _error_of(*replies)
    assert "is a Cluster that is moving a slot" in str(error)
    assert not is_outage(error)


def test_a_slot_that_moves_is_no_sick_store_for_a_claim_with_wait() -> None:
    assert not is_outage(_error_of(TRY_AGAIN, wait=True))


@pytest.mark.parametrize("wait", [False, True])
def test_what_may_have_been_executed_before_the_slot_moved_is_not_certain(wait: bool) -> None:
    assert is_outage(_error_of(LOST, TRY_AGAIN, wait=wait))
