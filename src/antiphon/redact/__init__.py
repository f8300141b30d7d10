"""Keep secrets and personal data out of everything that is written (R14, D36).

>>> redactor = Redactor(Rules(), salt="4f1c")
>>> redactor.redact({"user": "ada", "pin": "4821", "note": "mail bob@example.org"})
{'user': 'ada', 'pin': '[pin:35e9]', 'note': 'mail [email:014d]'}

Run logs and artifacts hold pseudonyms of the same shape under the run's own key (:meth:`Redactor.for_run`); logs,
spans, webhooks and views hold masks such as these. Equal values have equal masks under one key.
"""

from __future__ import annotations

from typing import Any

from antiphon.redact._quotes import secrets_in, without_values
from antiphon.redact._redactor import Mask, Redactor
from antiphon.redact._rules import Rule, Rules
from antiphon.redact._scan import Finding, files_below, scan_path
from antiphon.redact._stream import StreamRedactor

__all__ = [
    "Finding",
    "Mask",
    "Redactor",
    "Rule",
    "Rules",
    "StreamRedactor",
    "files_below",
    "scan_path",
    "secrets_in",
    "without_values",
]


def __getattr__(name: str) -> Any:
    if name not in ("EqualityPattern", "same_after_redaction"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from warnings import warn

    from antiphon.redact import _compare

    warn(f"antiphon.redact.{name} is deprecated: replays compare masked values", DeprecationWarning, stacklevel=2)
    return getattr(_compare, name)
