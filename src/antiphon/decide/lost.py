"""Which answers of calls without identity were lost, and which new call counts as a redelivery of such a call.

A client that gives its calls ids needs none of this. For one that does not, Antiphon can only guess: a call that equals
one whose answer was lost counts as the same call, once. The table shows the states of an answer, and what the next
equal call does:

| the answer of a call                          | leaves a credit | the next equal call in the window     |
|-----------------------------------------------|-----------------|---------------------------------------|
| is not there yet, its client waits            | no              | runs; a proxy lets it wait for that   |
| is not there yet, its client has left         | one             | waits for that answer                 |
| was *lost*: the connection ended before its   | one             | gets that answer                      |
| last byte was written                         |                 |                                       |
| was *handed over*: its last byte was written  | no, or one with | runs, or gets that answer             |
|                                               | *handed_over*   |                                       |
| was *confirmed*: a later request came over    | no              | runs                                  |
| the same connection                           |                 |                                       |

The window begins with the later of loss and settlement. A credit is valid for one call: the one after that runs. If the
answer to that one is lost, too, that leaves a credit again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal, NamedTuple

State = Literal["waiting", "lost", "handed_over", "confirmed"]


class _Credit(NamedTuple):
    """An answer that may not have arrived."""

    key: str
    since: float | None
    """The later of loss and settlement; ``None`` while the call runs."""
    connection: object
    """The connection over which it was handed over; ``None`` for one that was lost."""


class LostAnswers:
    """The credits of calls without identity; *place* is everything that makes two calls equal, arguments included."""

    __slots__ = ("_credits", "_handed_over", "_most", "_running", "_window")

    def __init__(self, window_s: float, *, handed_over: bool = False, most: int = 10_000) -> None:
        """With *handed_over* an answer that was written but not confirmed leaves a credit, too."""
        self._window = window_s
        self._handed_over = handed_over
        self._most = most
        self._running: set[str] = set()
        """Keys of calls that are not settled."""
        self._credits: OrderedDict[str, list[_Credit]] = OrderedDict()

    def begin(self, place: str, now: float, fresh: str) -> str:
        """The key of a call at *place*: that of a lost answer, whose credit is spent, else *fresh*."""
        left = [credit for credit in self._credits.pop(place, ()) if self._good(credit, now)]
        if not left:
            self._running.add(fresh)
            return fresh
        spent = left.pop(0)
        if left:
            self._credits[place] = left
        return spent.key

    def settled(self, place: str, key: str, now: float) -> None:
        """The call has an outcome, whether or not anybody waits for it."""
        self._running.discard(key)
        known = self._credits.get(place)
        if known:
            self._credits[place] = [c._replace(since=now) if c.key == key and c.since is None else c for c in known]

    def failed(self, place: str, key: str) -> None:
        """The call certainly had no effect: there is no answer to return again."""
        self._running.discard(key)
        kept = [credit for credit in self._credits.pop(place, ()) if credit.key != key]
        if kept:
            self._credits[place] = kept

    def lost(self, place: str, key: str, now: float) -> None:
        """The connection ended before the last byte of the answer was written."""
        self._add(place, _Credit(key, None if key in self._running else now, None))

    def handed_over(self, place: str, key: str, connection: object, now: float) -> None:
        """The last byte of the answer was written to *connection*."""
        if self._handed_over:
            self._add(place, _Credit(key, now, connection))

    def confirmed(self, connection: object) -> None:
        """A later request came over *connection*: its client received what was handed over before."""
        if not self._handed_over or connection is None:
            return
        for place, known in tuple(self._credits.items()):
            kept = [credit for credit in known if credit.connection != connection]
            if kept:
                self._credits[place] = kept
            else:
                del self._credits[place]

    def _good(self, credit: _Credit, now: float) -> bool:
        return self._window > 0 if credit.since is None else now - credit.since <= self._window

    def _add(self, place: str, credit: _Credit) -> None:
        self._credits.setdefault(place, []).append(credit)
        self._credits.move_to_end(place)
        while len(self._credits) > self._most:
            self._credits.popitem(last=False)
