"""The peer: tenacity's plain @retry."""

import itertools
import json
from pathlib import Path

from tenacity import retry

_serial = itertools.count(1)


def sync_call(file):
    params = json.loads(Path(file).read_bytes())

    @retry
    def send(params, n):
        return n

    def run(n):
        for _ in range(n):
            send(params, next(_serial))

    return run


def async_call(file):
    params = json.loads(Path(file).read_bytes())

    @retry
    async def send(params, n):
        return n

    async def run(n):
        for _ in range(n):
            await send(params, next(_serial))

    return run
