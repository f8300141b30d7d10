"""An agent whose behaviour is kept in golden recordings."""

import antiphon

app = antiphon.Antiphon()


@app.gateway.tool(idempotent=True, effect="read")
def price(item: str) -> float:
    """The price of an item."""
    return {"tea": 2.5, "cake": 4.0}[item]


@app.gateway.tool(idempotent=False, effect="write")
def order(item: str, count: int) -> str:
    """Order items; the only thing here that must not happen in a test."""
    with open("orders.txt", "a") as file:
        file.write(f"{count} {item}\n")
    return f"ordered {count} {item}"


def main(item: str) -> str:
    """Order two."""
    return f"{order(item=item, count=2)} for {price(item=item) * 2}"
