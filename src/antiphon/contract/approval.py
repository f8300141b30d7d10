"""An approval: what a person is asked about one call, and what was decided. It is kept in the claim of that call.

The record of a call that waits for a person is ``failed`` with one of these codes, as one of unknown outcome is. Its
payload is the :class:`Approval`; nothing was dispatched.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from antiphon.contract._base import UNSET, Millis, Value
from antiphon.contract.record import DedupeRecord, is_unsettled

REQUIRED: Final = "approval_required"
GRANTED: Final = "approval_granted"
DENIED: Final = "approval_denied"
WITHDRAWN: Final = "approval_withdrawn"
STATES: Final = {REQUIRED: "waiting", GRANTED: "approved", DENIED: "denied", WITHDRAWN: "withdrawn"}
"""The code of the record, and the state as people read it."""
ASKING: Final = "approval?"
"""Stands in place of the arguments of a claim in flight that only asks: whatever becomes of it, nothing was sent."""
_SPENT: Final = "approval!"


class Approval(Value, frozen=True):
    """One question to a person. ``digest`` binds it to the exact arguments; it is spent once."""

    id: str
    digest: str
    policy: str
    policy_version: str
    asker: str
    asked_at_ms: Millis
    expires_at_ms: Millis
    arguments: str = ""
    """Sealed, or masked, for whoever decides."""
    decided_by: str = ""
    decided_at_ms: Millis = 0
    decided_from: str = ""
    reason: str = ""
    shown_in: str = ""
    """The framework that showed the question to its own people; a decision made there counts for no other."""


class Kept(NamedTuple):
    """What a record says of its approval."""

    code: str
    approval: Approval

    def state(self, now_ms: int) -> str:
        """As people read it."""
        is_over = self.code in (REQUIRED, GRANTED) and now_ms >= self.approval.expires_at_ms
        return "expired" if is_over else STATES[self.code]


def approval_of(record: DedupeRecord) -> Kept | None:
    """The approval that a record keeps, if that is what it keeps."""
    error = record.error
    if record.state != "failed" or error is UNSET or error.code not in STATES or record.payload is UNSET:
        return None
    return Kept(error.code, read(bytes(record.payload)))


def read(data: bytes) -> Approval:
    """An approval as a record keeps it."""
    return Approval.from_wire(data)


def written(approval: Approval) -> bytes:
    """What a record keeps of an approval."""
    return msgspec.json.encode(approval)


def is_asking(record: DedupeRecord) -> bool:
    """Whether a claim in flight was made only to ask."""
    return record.arguments == ASKING


def note_spent(approval: Approval, arguments: str) -> str:
    """What a claim in flight keeps in place of its arguments when it has spent an approval."""
    return f"{_SPENT}{written(approval).decode()}\n{arguments}"


def split_note(text: str) -> tuple[Approval | None, str]:
    """The approval that a claim in flight has spent, if any, and its arguments."""
    if text == ASKING:
        return None, ""
    if not text.startswith(_SPENT):
        return None, text
    head, _, rest = text.removeprefix(_SPENT).partition("\n")
    return read(head.encode()), rest


def spent_by(record: DedupeRecord) -> Approval | None:
    """The approval that the call of this record has spent: one in flight, or one of unknown outcome."""
    if record.state == "inflight":
        return None if record.arguments is UNSET else split_note(record.arguments)[0]
    return read(bytes(record.payload)) if is_unsettled(record) and record.payload is not UNSET else None
