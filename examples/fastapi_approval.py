"""A web application whose refunds a person approves, by a signed link in a mail.

    python examples/fastapi_approval.py               # asks, opens the link, approves, pays once; offline
    uvicorn examples.fastapi_approval:api             # serve it

Opening the link shows the exact call and a form. Only the form decides, so a mail scanner that follows the link does no
harm. What was approved runs once, with these arguments; another amount creates a new request.
"""

import asyncio
import html
import re

import httpx
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.routing import Route

import antiphon
from antiphon.errors import ApprovalRequired
from antiphon.ops.approval_page import ApprovalPage
from antiphon.stores import MemoryStore

DESK = "http://localhost:8000"
paid: list[str] = []
mails: list[str] = []

app = antiphon.Antiphon({"approvals": {"url": f"{DESK}/approve"}}, store=MemoryStore())


@app.gateway.tool(idempotent=False, approve=lambda cents, **_: cents > 10_000, approve_version="1", key="order")
def refund(order: str, cents: int) -> str:
    """Pay money back to the customer of an order."""
    paid.append(order)
    return f"refunded {cents / 100:.2f}"


class Order(BaseModel):
    order: str
    cents: int


api = FastAPI()
api.router.routes.append(Route("/approve", ApprovalPage(app)))


@api.post("/refunds")
def create_refund(order: Order) -> dict[str, str]:
    """What the agent calls. A refund that needs a person is not made yet; its key says what it is about."""
    try:
        return {"status": refund(order.order, order.cents)}
    except ApprovalRequired as needed:
        link = app.approvals("refund service").link(needed.approval_id, to="grace@example.com")
        mails.append(link["url"])  # stands for a mail
        return {"status": "waits for a person"}


async def main() -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url=DESK) as client:
        order = {"order": "1042", "cents": 49_900}
        print((await client.post("/refunds", json=order)).json()["status"])
        page = [await client.get(mails[0]) for _ in range(3)][-1]  # a scanner, a preview, and the person
        print(html.unescape(re.findall(r"<pre>(.*)</pre>", page.text)[0]), f"paid {len(paid)} times")
        token = re.findall(r'name="token" value="([^"]+)"', page.text)[0]
        decided = [await client.post("/approve", data={"token": token, "decision": "approve"}) for _ in range(2)]
        print("approved twice:", [answer.status_code for answer in decided])
        answers = [(await client.post("/refunds", json=order)).json()["status"] for _ in range(3)]
        print(f"3 requests, {len(paid)} refund: {answers[-1]}")


if __name__ == "__main__":
    asyncio.run(main())
