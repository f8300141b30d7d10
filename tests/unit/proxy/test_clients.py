"""A client that leaves ends what is done for it, and nothing after that."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.proxy.clients import Gone, ended_by


def test_a_client_that_leaves_ends_the_block() -> None:
    async def served() -> None:
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(gone.set_result, None)
        async with ended_by(gone):
            await asyncio.Event().wait()

    with pytest.raises(Gone):
        asyncio.run(served())


def test_one_that_leaves_at_the_end_of_the_block_does_not_end_what_follows() -> None:
    async def served() -> str:
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        async with ended_by(gone):
            gone.set_result(None)
        await asyncio.sleep(0)  # the news comes now
        await asyncio.sleep(0)
        return "done"

    assert asyncio.run(served()) == "done"
