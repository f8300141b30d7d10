"""A model that refuses where it had answered, or answers where it had refused: never passed over (L4, D28)."""

from __future__ import annotations

from typing import Any, NamedTuple

from antiphon._replay.tape import RecordedCall, Tape
from antiphon.errors import Divergence

EVENT = "replay.divergedAtRefusal"
CODE = "replay_diverged_at_refusal"


class RefusalFound(NamedTuple):
    """The event to append to the replay's run, and the error that ends it."""

    payload: dict[str, Any]
    error: Divergence


def refusal_divergence(tape: Tape, call: RecordedCall, outcome: str, reason: str | None) -> RefusalFound | None:
    """Compare the kind of a fresh answer with the recorded one; ``None`` if they agree or one of them is no answer."""
    if call.finished is None or outcome not in ("ok", "refusal"):
        return None
    finished = tape.event(call.finished)
    before = str(finished.payload.get("outcome"))
    if before not in ("ok", "refusal") or before == outcome:
        return None
    kinds = {"ok": "valid", "refusal": "refusal"}
    run = tape.manifest.id
    said = reason if outcome == "refusal" else finished.meta.get("refusalReason")
    payload = {
        "sourceRunId": run,
        "atSequence": finished.seq,
        "originalEnvelopeKind": kinds[before],
        "replayEnvelopeKind": kinds[outcome],
        "originalEventId": f"{run}:{finished.seq}",
        "nodeId": call.call,
    }
    if said:
        payload["refusalReason"] = str(said)
    words = {"ok": "answered", "refusal": "refused"}
    message = f"The model {words[outcome]} where it had {words[before]} (event {finished.seq} of run {run})."
    error = Divergence(message, hint=f"Recorded: antiphon show {run} --event {finished.seq}", code=CODE, **payload)
    return RefusalFound(payload, error)
