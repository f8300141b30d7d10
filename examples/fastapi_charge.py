"""A web handler that charges a card once per ``Idempotency-Key``, whoever repeats the request.

    python examples/fastapi_charge.py                 # sends the same request three times, offline
    uvicorn examples.fastapi_charge:app               # serve it

The key names the intent: the same key is answered from its record, also after a crash or on another process.
"""

import uuid
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException
from fastapi.testclient import TestClient
from pydantic import BaseModel

import antiphon

gateway = antiphon.Gateway()
charged: list[str] = []


@gateway.tool(idempotent=False, effect="write", forward_key=True)
def charge_card(order: str, cents: int, ctx: antiphon.CallContext) -> dict[str, str]:
    """Stands for a payment provider; give it ``ctx.idempotency_key``, so that it recognises a repeat, too."""
    charged.append(order)
    return {"order": order, "charge": f"ch_{ctx.idempotency_key[:12]}"}


class Order(BaseModel):
    order: str
    cents: int


app = FastAPI()


@app.post("/charges")
def create_charge(order: Order, idempotency_key: Annotated[str, Header()], user: Annotated[str, Header()]) -> object:
    """One charge per user and key. A redelivery gets the first answer; an unknown outcome is a 409, never a retry."""
    turn = gateway.session("charges", actor=user).turn()
    result = turn.call("charge_card", order.model_dump(), call_id=idempotency_key)
    if result.ok:
        return {**result.content, "repeated": result.from_cache}
    if result.code in ("outcome_unknown", "idempotency_conflict", "in_flight"):
        raise HTTPException(409, detail={"code": result.code})
    raise HTTPException(502, detail={"code": result.code})


def main() -> None:
    client = TestClient(app)
    headers = {"Idempotency-Key": str(uuid.uuid4()), "User": "ada"}  # a client makes one key per intent
    body = {"order": "1042", "cents": 4990}
    answers = [client.post("/charges", json=body, headers=headers) for _ in range(3)]
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["charge"] for answer in answers}) == 1
    print(f"3 requests, {len(charged)} charge, repeated: {[answer.json()['repeated'] for answer in answers]}")


if __name__ == "__main__":
    main()
