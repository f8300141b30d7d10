"""A client that leaves ends what is done for it, and nothing after that."""

from __future__ import annotations

import asyncio

import pytest

from antiphon._asgi import Disconnected
from antiphon.proxy.clients import abort_on_disconnect


def test_a_client_that_leaves_ends_the_block() -> None:
    async def served() -> None:
        disconnect: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(disconnect.set_result, None)
        async with abort_on_disconnect(disconnect):
            await asyncio.Event().wait()

    with pytest.raises(Disconnected):
        asyncio.run(served())


def test_one_that_leaves_at_the_end_of_the_block_does_not_end_what_follows() -> None:
    async def served() -> str:
        disconnect: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        async with abort_on_disconnect(disconnect):
            disconnect.set_result(None)
        await asyncio.sleep(0)  # the news comes now
        await asyncio.sleep(0)
        return "done"

    assert asyncio.run(served()) == "done"
