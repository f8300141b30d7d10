"""The first calls of a gateway: many at once open one journal, and a fork at that moment leaves no child hanging."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import antiphon
from antiphon.stores import MemoryStore, PostgresStore
from tests.servers import Postgres

StartServer = Callable[..., Postgres]

THREADS = 60


class Counted(PostgresStore):
    """Counts the journals that were opened for threads."""

    opened = 0

    def open_sync(self) -> Any:
        self.opened += 1
        return super().open_sync()


def test_first_calls_of_many_threads_open_one_journal(postgres_server: StartServer) -> None:
    """Each journal has connections of its own: many would be more than the server gives."""
    server = postgres_server(settings={"max_connections": "20", "superuser_reserved_connections": "0"})
    store = Counted(server.url)
    store.migrate()
    gateway = antiphon.Gateway(store=store)
    together = threading.Barrier(THREADS)

    @gateway.tool(idempotent=False, key="order")
    def charge(order: str) -> str:
        return order

    def first(n: int) -> str:
        together.wait()
        return charge(str(n))

    with ThreadPoolExecutor(THREADS) as threads:
        assert list(threads.map(first, range(THREADS))) == [str(n) for n in range(THREADS)]
    assert store.opened <= 2  # the thread that renews leases may have one, too
    gateway.close()


def test_a_child_forked_while_a_thread_opens_the_journal_makes_its_calls() -> None:
    opening, go_on = threading.Event(), threading.Event()
    parent = os.getpid()

    class Slow(MemoryStore):
        def open_sync(self) -> Any:
            if os.getpid() == parent:
                opening.set()
                assert go_on.wait(30)
            return super().open_sync()

    gateway = antiphon.Gateway(store=Slow())

    @gateway.tool(idempotent=False, key="order")
    def charge(order: str) -> str:
        return order

    first = threading.Thread(target=charge, args=("a",))
    first.start()
    assert opening.wait(30)
    child = os.fork()
    if child == 0:
        timer = threading.Timer(20, os._exit, (2,))
        timer.daemon = True
        timer.start()
        os._exit(0 if charge("b") == "b" else 1)
    _, status = os.waitpid(child, 0)
    go_on.set()
    first.join()
    gateway.close()
    assert os.waitstatus_to_exitcode(status) == 0


IMPORTS = """
import sys, antiphon, antiphon.stores
assert not {{"psycopg", "psycopg_pool", "redis", "hiredis"}} & sys.modules.keys()
gateway = antiphon.Gateway(store=antiphon.stores.{store})

@gateway.tool(idempotent=False, key="order")
def charge(order: str) -> str:
    return order

before = set(sys.modules)
try:
    charge("a")
except antiphon.errors.StoreError:
    pass
ours = "psycopg", "redis", "hiredis", "antiphon.stores"
print(*[name for name in set(sys.modules) - before if name.startswith(ours)])
"""


@pytest.mark.parametrize(
    "store", ['PostgresStore("postgresql://x@127.0.0.1:1/x")', 'RedisStore("redis://127.0.0.1:1", retry_timeout_s=0)']
)
def test_the_driver_is_imported_with_the_store_and_not_with_the_first_call(store: str) -> None:
    """In a child that was forked while a thread imports, the same import never ends."""
    program = IMPORTS.format(store=store)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.split() == []


@pytest.mark.parametrize(
    ("missing", "store"),
    [
        ("psycopg", 'PostgresStore("postgresql://x@127.0.0.1/x")'),
        ("psycopg_pool", 'PostgresStore("postgresql://x@127.0.0.1/x")'),
        ("hiredis", 'RedisStore("redis://127.0.0.1")'),
    ],
)
def test_a_store_without_its_driver_says_what_to_install(missing: str, store: str) -> None:
    program = (
        f"import sys\nsys.modules[{missing!r}] = None\nimport antiphon, antiphon.stores\n"
        f"try:\n    antiphon.stores.{store}\nexcept antiphon.errors.MissingExtra as error:\n    print(error)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert "pip install 'antiphon[" in ended.stdout
