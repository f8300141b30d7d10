"""The peer: idemkit's method surface on its memory backend."""

import json
from pathlib import Path

from idemkit import InMemoryBackend, MethodConfig, idempotent


def _guarded(file):
    params = json.loads(Path(file).read_bytes())

    @idempotent(backend=InMemoryBackend(), config=MethodConfig(key_fields=["params"], scope=lambda _: "session"))
    async def send(params):
        return {"ok": True}

    return send, params


async def reused(file):
    send, params = _guarded(file)
    await send(params=params)

    async def call():
        await send(params=params)

    yield call
