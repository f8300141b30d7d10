"""A fleet: three processes work on the same orders at the same time, each order is charged once (asyncio, Redis).

    REDIS_URL=redis://localhost:6379/0 python examples/redis_fleet.py

Every process asks the store before it charges. Who comes second waits for the first one's result and shares it.
"""

import asyncio
import os
import subprocess
import sys
from collections import Counter

import redis.asyncio

import antiphon

URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")
ORDERS = 20


async def worker(run: str) -> None:
    gateway = antiphon.AsyncGateway(store=URL)
    ledger = redis.asyncio.Redis.from_url(URL)

    @gateway.tool(idempotent=False, effect="write")
    async def charge(order: str) -> str:
        await ledger.rpush(f"example:{run}", order)  # stands for the payment provider
        return f"charged {order}"

    async def one(number: int) -> str:
        turn = gateway.session(run, actor="fleet").turn()
        result = await turn.call("charge", {"order": str(number)}, call_id=f"order-{number}")
        return str(result.content)

    answers = await asyncio.gather(*(one(number) for number in range(ORDERS)))
    assert answers == [f"charged {number}" for number in range(ORDERS)]
    await ledger.aclose()
    await gateway.close()


async def main() -> None:
    run = f"fleet-{os.urandom(4).hex()}"
    workers = [subprocess.Popen([sys.executable, __file__, run]) for _ in range(3)]
    assert [process.wait() for process in workers] == [0, 0, 0]
    ledger = redis.asyncio.Redis.from_url(URL)
    charged = Counter(order.decode() for order in await ledger.lrange(f"example:{run}", 0, -1))
    await ledger.delete(f"example:{run}")
    await ledger.aclose()
    assert set(charged.values()) == {1} and len(charged) == ORDERS, charged
    print(f"3 processes, {3 * ORDERS} requests, {sum(charged.values())} charges")


if __name__ == "__main__":
    asyncio.run(worker(sys.argv[1]) if len(sys.argv) > 1 else main())
