"""A payment service under attack: retries, duplicates, other amounts under one key, killed workers, lost answers.

    python -m tests.campaigns.payments [--store sqlite|redis|postgres] [--requests 5000] [--seed N]

Two processes serve ``examples/payment_service.py`` on one store. Clients of two sessions send every key several times,
at once and again, to either worker; some change the amount; some give up. A killer ends workers with SIGKILL at random
moments and starts them again. The provider is a process of its own that charges whatever it is asked, counts in a file
and loses some answers.

Prints how far it is on standard error, and one line of JSON per store. Wanted: ``doubles``, ``missing``,
``wrongAmount``, ``unlisted`` and ``withoutArguments`` 0, ``charges`` = ``acknowledged`` = ``keys``, every conflict
answered with 422, ``unknownAfter`` 0. ``unknownListed`` are the charges that an operator is shown as unknown, each with
its arguments; ``workerLost`` of them are claims of a killed worker that nobody has asked for since.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from tests.servers import Postgres, Valkey, free_port

ROOT = Path(__file__).resolve().parents[2]
LEASE_MS = 3000
PATIENCE_S = 240.0
CLIENTS = 12


class Process:
    """A server of the campaign that can be killed and started again on its port."""

    def __init__(self, words: list[str], url: str, env: dict[str, str], log: Path) -> None:
        self._words, self.url, self._env, self._log = words, url, env, log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._words, cwd=ROOT, env=self._env, stdout=log, stderr=log)

    async def ready(self) -> None:
        until = time.monotonic() + PATIENCE_S
        async with httpx.AsyncClient() as client:
            while time.monotonic() < until:
                with contextlib.suppress(httpx.HTTPError):
                    await client.get(self.url)
                    return
                await asyncio.sleep(0.05)
        raise AssertionError(f"{self._words} does not answer:\n{self._log.read_text()[-2000:]}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()


class Attack:
    """Requests of many clients, and what came of them."""

    def __init__(self, workers: list[Process], seed: int, requests: int) -> None:
        self.workers = workers
        self.random = random.Random(seed)
        self.answers: Counter[str] = Counter()
        self.acknowledged: dict[str, dict[str, Any]] = {}
        self.disagree: list[str] = []
        self.kills = 0
        self.plan = self._planned(requests)

    def _planned(self, requests: int) -> list[tuple[str, int, bool]]:
        """Key, amount and whether the client goes on until it has an answer; equal keys lie near each other."""
        plan: list[tuple[float, str, int, bool]] = []
        number = 0
        while len(plan) < requests:
            number += 1
            left_alone = self.random.random() < 0.2  # its only client gives up at once
            lost = left_alone and self.random.random() < 0.5  # and the provider's answer to it is lost
            key, cents = f"{'lost' if lost else 'key'}-{number:05}", 100 + number
            for repeat in range(1 if left_alone else self.random.choice((2, 2, 3, 5))):
                other = repeat > 0 and self.random.random() < 0.15
                stays = not left_alone and self.random.random() < 0.8
                at = number + self.random.random() * 6
                plan.append((at, key, cents + 1_000_000 if other else cents, stays))
        plan.sort()
        return [(key, cents, stays) for _, key, cents, stays in plan[:requests]]

    @property
    def keys(self) -> set[str]:
        return {key for key, _, _ in self.plan}

    async def send(self, client: httpx.AsyncClient, key: str, cents: int, stays: bool) -> int:
        """Send one request until it is answered, or until the client gives up."""
        headers = {"Idempotency-Key": key, "User": "ada", "Session": self.random.choice(("web", "phone"))}
        body = {"order": f"order-{key}", "cents": cents}
        until = time.monotonic() + PATIENCE_S
        while True:
            worker = self.random.choice(self.workers)
            try:
                answer = await client.post(f"{worker.url}/charges", json=body, headers=headers)
            except httpx.HTTPError:
                self.answers["no answer"] += 1
                status = 0
            else:
                status = answer.status_code
                self.answers[str(status)] += 1
                if status == 201:
                    self._acknowledge(key, cents, answer.json())
                if status in (201, 422):
                    return status
                if status not in (409, 500, 503):
                    raise AssertionError(f"{key}: {status} {answer.text}")
            if not stays or time.monotonic() > until:
                return status
            await asyncio.sleep(0.05 + self.random.random() * 0.2)

    def _acknowledge(self, key: str, cents: int, charge: dict[str, Any]) -> None:
        if charge["cents"] != cents or self.acknowledged.setdefault(key, charge) != charge:
            self.disagree.append(key)

    async def run(self, killed_every: int, progress: bool = False) -> None:
        queue = list(reversed(self.plan))

        async def client() -> None:
            async with httpx.AsyncClient(timeout=30) as http:
                while queue:
                    await self.send(http, *queue.pop())

        beside = [asyncio.create_task(self._kill(queue, killed_every))]
        if progress:
            beside.append(asyncio.create_task(self._tell(queue)))
        try:
            await asyncio.gather(*(client() for _ in range(CLIENTS)))
        finally:
            for task in beside:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def _tell(self, queue: list[Any]) -> None:
        """How far it is, now and then."""
        while True:
            await asyncio.sleep(10)
            done = len(self.plan) - len(queue)
            print(f"{done} of {len(self.plan)} requests, {self.kills} kills, {dict(self.answers)}", file=sys.stderr)

    async def _kill(self, queue: list[Any], every: int) -> None:
        """Kill a worker now and then, counted in requests: how fast they are answered differs."""
        while True:
            left = len(queue) - int(every * (0.3 + self.random.random()))
            while len(queue) > left:
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.05)  # in the midst of what has just been sent
            worker = self.random.choice(self.workers)
            worker.kill()
            self.kills += 1
            worker.start()
            await worker.ready()

    async def settle(self) -> None:
        """Send every key that nobody has an answer for once more: ``reconcile`` settles it."""
        amounts: dict[str, int] = {}
        for key, cents, _ in self.plan:
            amounts.setdefault(key, cents)
        async with httpx.AsyncClient(timeout=30) as http:
            for key in sorted(self.keys - self.acknowledged.keys()):
                if await self.send(http, key, amounts[key], True) == 422:  # the other amount was first
                    await self.send(http, key, amounts[key] + 1_000_000 * (-1 if amounts[key] > 1_000_000 else 1), True)


def claims(store: str, state: str) -> list[dict[str, Any]]:
    """What an operator sees."""
    words = [sys.executable, "-m", "antiphon.cli", "claims", "list", "--state", state, "--limit", "100000"]
    done = subprocess.run(
        [*words, "--store", store, "--json"], cwd=ROOT, capture_output=True, text=True, check=False, env=_env()
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout)["claims"])


def _env(**more: str) -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON")}, **more}


def _charged(file: Path) -> Counter[tuple[str, int]]:
    lines = file.read_text().splitlines() if file.exists() else []
    return Counter((key.partition(":")[2], cents) for key, cents in map(json.loads, lines))


async def attack(
    store: str, folder: Path, requests: int, seed: int, killed_every: int, progress: bool = False
) -> dict[str, Any]:
    """The numbers of one attack on the service over *store*, an address."""
    file, ports = folder / "ledger.txt", [free_port() for _ in range(3)]
    ledger_url = f"http://127.0.0.1:{ports[0]}"
    words = [sys.executable, "-m", "tests.campaigns.ledger", str(ports[0]), str(file), "0.1"]
    ledger = Process(words, f"{ledger_url}/charges", _env(), folder / "ledger.log")
    env = _env(
        PROVIDER_URL=ledger_url, PAYMENTS_STORE=store, LEASE_MS=str(LEASE_MS), ANTIPHON_HOME=str(folder / "home")
    )
    serve = [sys.executable, "-m", "uvicorn", "examples.payment_service:app", "--log-level", "warning", "--port"]
    workers = [
        Process([*serve, str(port)], f"http://127.0.0.1:{port}", env, folder / f"worker-{port}.log")
        for port in ports[1:]
    ]
    attacked = Attack(workers, seed, requests)
    try:
        for process in (ledger, *workers):
            process.start()
        for process in (ledger, *workers):
            await process.ready()
        began = time.monotonic()
        await attacked.run(killed_every, progress)
        took = time.monotonic() - began
        conflicts = attacked.answers["422"]
        for worker in workers:  # calls under way become what an operator has to settle
            worker.kill()
        listed = [claim for claim in claims(store, "unknown") if claim["tool"] == "tools/charge"]
        known = {key for key in map(_listed_key, listed) if key}
        done = sum(claim["tool"] == "tools/charge" for claim in claims(store, "done"))
        answer_lost = done - len(attacked.acknowledged)  # recorded, and killed before anybody was told: nothing unknown
        for worker in workers:
            worker.start()
            await worker.ready()
        unsure = {key for key, _ in _charged(file)} - attacked.acknowledged.keys()
        await attacked.settle()
        left = [claim for claim in claims(store, "unknown") if claim["tool"] == "tools/charge"]
    finally:
        for process in (*workers, ledger):
            process.kill()
    charged = _charged(file)
    per_key = Counter(key for key, _ in charged.elements())
    return {
        "requests": len(attacked.plan),
        "sent": sum(attacked.answers.values()),
        "keys": len(attacked.keys),
        "charges": sum(charged.values()),
        "acknowledged": len(attacked.acknowledged),
        "doubles": sum(count > 1 for count in per_key.values()),
        "missing": len(attacked.acknowledged.keys() - per_key.keys()),
        "wrongAmount": len(attacked.disagree)
        + sum(charged[key, charge["cents"]] != 1 for key, charge in attacked.acknowledged.items()),
        "conflicts": conflicts,
        "kills": attacked.kills,
        "unknownListed": len(listed),
        "workerLost": sum(claim["lost"] for claim in listed),
        "withoutArguments": sum(not _listed_key(claim) for claim in listed),
        "chargedWithoutAnswer": len(unsure),
        "answerLost": answer_lost,
        "unlisted": abs(len(unsure - known) - answer_lost),
        "unknownAfter": len(left),
        "seconds": round(took, 1),
        "answers": dict(attacked.answers),
    }


def _listed_key(claim: dict[str, Any]) -> str:
    """The key in the arguments that the list shows, if they name the order and the amount, too."""
    arguments = json.loads(claim["arguments"] or "{}")
    return str(arguments["key"]) if {"principal", "key", "order", "cents"} <= arguments.keys() else ""


def right(found: dict[str, Any]) -> bool:
    """Whether the numbers are the wanted ones."""
    wrong = ("doubles", "missing", "wrongAmount", "unlisted", "withoutArguments", "unknownAfter")
    return (
        not any(found[name] for name in wrong)
        and found["charges"] == found["acknowledged"] == found["keys"]
        and found["conflicts"] > 0
    )


def run(store: str, requests: int, seed: int, killed_every: int = 100) -> dict[str, Any]:
    """One attack on a new store of that kind."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="antiphon-payments-")))
        if store == "sqlite":
            url = f"sqlite:///{folder}/payments.db"
        else:
            url = stack.enter_context(Valkey() if store == "redis" else Postgres()).url
        return asyncio.run(attack(url, folder, requests, seed, killed_every, progress=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", choices=("sqlite", "redis", "postgres"), action="append")
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    code = 0
    for store in arguments.store or ("sqlite", "redis", "postgres"):
        found = run(store, arguments.requests, arguments.seed)
        code |= not right(found)
        print(json.dumps({"store": store, "right": right(found), **found}), flush=True)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
