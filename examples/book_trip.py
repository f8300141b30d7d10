"""A trip that is booked or not: the payment fails, so flight and hotel are cancelled, also if the process is killed.

    python examples/book_trip.py

Two trips. The first one fails, and its saga is undone on the spot. The process of the second one is killed with
SIGKILL in the middle of cancelling; ``antiphon runs undo`` does the rest, and cancels nothing twice.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import antiphon

WORLD = Path("world.txt")  # in place of airline, hotel and bank
gateway = antiphon.Gateway()


def happen(what: str, trip: str) -> None:
    with WORLD.open("a") as world:
        world.write(f"{what} {trip}\n")


def happened(trip: str) -> list[str]:
    lines = WORLD.read_text().splitlines() if WORLD.exists() else []
    return [line.removesuffix(f" {trip}") for line in lines if line.endswith(f" {trip}")]


def looks_up(what: str) -> Callable[[dict[str, str]], object]:
    """Asks airline or hotel: without this, an undo whose answer was lost would need a person."""

    def reconcile(arguments: dict[str, str]) -> object:
        return antiphon.Happened(None) if what in happened(arguments["trip"]) else antiphon.DidNotHappen()

    return reconcile


@gateway.tool(idempotent=False)
def book_flight(trip: str) -> dict[str, str]:
    happen("flight", trip)
    return {"ticket": f"T-{trip}"}


@book_flight.undo(reconcile=looks_up("cancel flight"))
def cancel_flight(result: dict[str, str], *, trip: str) -> None:
    assert result == {"ticket": f"T-{trip}"}
    happen("cancel flight", trip)


@gateway.tool(idempotent=False)
def book_hotel(trip: str, nights: int) -> str:
    happen("hotel", trip)
    return f"room for {nights} nights"


@book_hotel.undo(reconcile=looks_up("cancel hotel"))
def cancel_hotel(result: str, *, trip: str) -> None:
    happen("cancel hotel", trip)
    if "--crash" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)  # the hotel has cancelled, and nobody got to know


@gateway.tool(idempotent=False, key="trip")
def pay(trip: str, cents: int) -> str:
    raise antiphon.DidNotHappen("card declined")


def book(trip: str) -> None:
    """Flight, hotel, payment: all of them or none."""
    with antiphon.run(f"trip {trip}") as run, run.saga("trip"):
        book_flight(trip)
        book_hotel(trip, nights=2)
        pay(trip, 70_000)


def command(*words: str) -> str:
    """What an operator types."""
    print("$ antiphon", *words)
    done = subprocess.run([sys.executable, "-m", "antiphon.cli", *words], text=True, check=True, stdout=subprocess.PIPE)
    print(done.stdout)
    return done.stdout


def main() -> None:
    WORLD.unlink(missing_ok=True)
    try:
        book("Lisbon")
    except antiphon.DidNotHappen as error:
        print(f"Lisbon: {error} ({error.__notes__[-1]})\n")
    assert happened("Lisbon") == ["flight", "hotel", "cancel hotel", "cancel flight"]

    killed = subprocess.run([sys.executable, __file__, "--crash"], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert happened("Rome") == ["flight", "hotel", "cancel hotel"]
    assert "interrupted" in command("show", "latest")
    command("runs", "undo", "latest", "--entry", __file__)
    assert "no saga to undo" in command("runs", "undo", "latest")  # asked again, nothing happens again
    assert happened("Rome") == ["flight", "hotel", "cancel hotel", "cancel flight"]
    print("2 trips failed, one was killed while it was undone: every booking was cancelled once")


if __name__ == "__main__":
    book("Rome") if "--crash" in sys.argv else main()
