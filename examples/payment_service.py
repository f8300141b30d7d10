"""A payment service: one charge per ``Idempotency-Key``, whatever clients, workers and the provider do.

    python examples/payment_service.py                                   # loses an answer and settles it, offline
    PROVIDER_URL=http://127.0.0.1:9000 uvicorn examples.payment_service:app   # serve it

Two guards work together. The middleware answers a request that is sent again. The charge has a key of its own, so a
request that ended without an answer can be processed again: ``reconcile`` asks the provider whether it was charged.
``python -m tests.campaigns.payments`` attacks this service with 5,000 requests while its workers are killed.
"""

import json
import os
from typing import Annotated, Any

import httpx
from fastapi import FastAPI, Header
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient
from pydantic import BaseModel

import antiphon
from antiphon.adapters.web import IdempotencyKey

PROVIDER = os.environ.get("PROVIDER_URL", "http://provider.test")
LEASE_MS = int(os.environ.get("LEASE_MS", "120000"))
gateway = antiphon.AsyncGateway(
    store=os.environ.get("PAYMENTS_STORE", "memory:"),  # in production: one that all workers share
    config={"ttl": {"lease_ms": LEASE_MS}, "retry": {"max_attempts": 1}},
)
provider = httpx.AsyncClient(base_url=PROVIDER, timeout=10)


async def was_it_charged(params: dict[str, Any]) -> Any:
    """Ask the provider: it knows."""
    answer = await provider.get("/charges", params={"key": f"{params['principal']}:{params['key']}"})
    answer.raise_for_status()
    return antiphon.Happened(answer.json()) if answer.json() else antiphon.DidNotHappen()


@gateway.tool(
    idempotent=False,
    effect="write",
    key=lambda principal, key, **_: (principal, key),
    reconcile=was_it_charged,
    breaker={"consecutive": 1_000_000, "rate": 1.0, "min_calls": 1_000_000},
)
async def charge(principal: str, key: str, order: str, cents: int) -> dict[str, Any]:
    body = {"key": f"{principal}:{key}", "order": order, "cents": cents}
    answer = await provider.post("/charges", json=body)
    answer.raise_for_status()
    return dict(answer.json())


class Order(BaseModel):
    order: str
    cents: int


app = FastAPI()
STATUS = {"idempotency_conflict": 422, "in_flight": 409, "outcome_unknown": 500}


@app.post("/charges")
async def create_charge(
    body: Order,
    idempotency_key: Annotated[str, Header()],
    user: Annotated[str, Header()],
    session: Annotated[str, Header()] = "web",
) -> JSONResponse:
    turn = gateway.session(session, actor=user).turn()
    params = {"principal": user, "key": idempotency_key, "order": body.order, "cents": body.cents}
    result = await turn.call("charge", params)
    if result.ok:
        return JSONResponse(result.content, status_code=201)
    return JSONResponse({"code": result.code}, status_code=STATUS.get(result.code, 503))


app.add_middleware(
    IdempotencyKey,
    principal=lambda scope: dict(scope["headers"]).get(b"user", b"").decode(),  # yours checks a token
    gateway=gateway,
    release=(409, 422, 503),  # nothing happened in this request: the key stays free for the one that was first
    reconcile=lambda request: antiphon.DidNotHappen(),  # the charge has a key of its own: process the request again
)


def main() -> None:
    global provider
    charged: dict[str, Any] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json=charged.get(request.url.params["key"]))
        body = json.loads(request.content)
        charged[body["key"]] = {"charge": f"ch_{len(charged) + 1}", "cents": body["cents"]}
        raise httpx.ReadError("the answer was lost")

    provider = httpx.AsyncClient(base_url=PROVIDER, transport=httpx.MockTransport(answer))
    client = TestClient(app)
    headers = {"Idempotency-Key": "8e03978e-40d5", "User": "ada"}
    order = {"order": "1042", "cents": 4990}
    codes = [client.post("/charges", json=order, headers=headers).status_code for _ in range(3)]
    codes.append(client.post("/charges", json={**order, "cents": 1}, headers=headers).status_code)
    print(f"{len(charged)} charge, answers {codes}")


if __name__ == "__main__":
    main()
