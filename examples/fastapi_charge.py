"""A web handler that charges a card once per ``Idempotency-Key``, whoever repeats the request.

    python examples/fastapi_charge.py                 # sends the same request three times, offline
    uvicorn examples.fastapi_charge:app               # serve it

The key names the intent: the same key is answered from its record, also after a crash or on another process.
"""

import uuid
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import BaseModel

from antiphon.adapters.web import IdempotencyKey

charged: list[str] = []


class Order(BaseModel):
    order: str
    cents: int


app = FastAPI()


@app.post("/charges", status_code=201)
def create_charge(order: Order) -> dict[str, str]:
    """Stands for a handler that asks a payment provider."""
    charged.append(order.order)
    return {"order": order.order, "charge": f"ch_{uuid.uuid4().hex[:12]}"}


def principal(scope: dict[str, Any]) -> str:
    """Who sends the request. Yours checks a token; this one believes the header ``User``."""
    return dict(scope["headers"]).get(b"user", b"").decode()


app.add_middleware(IdempotencyKey, principal=principal)


def main() -> None:
    client = TestClient(app)
    headers = {"Idempotency-Key": str(uuid.uuid4()), "User": "ada"}  # a client makes one key per intent
    body = {"order": "1042", "cents": 4990}
    answers = [client.post("/charges", json=body, headers=headers) for _ in range(3)]
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["charge"] for answer in answers}) == 1
    repeated = ["idempotency-replayed" in answer.headers for answer in answers]
    print(f"3 requests, {len(charged)} charge, repeated: {repeated}")
    other = client.post("/charges", json={**body, "cents": 1}, headers=headers)
    print(f"another amount under the same key: {other.status_code} {other.json()['code']}")


if __name__ == "__main__":
    main()
