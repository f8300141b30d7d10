"""Keep secrets and personal data out of everything that is written (R14, D36).

>>> redactor = Redactor(Rules(), salt="4f1c")
>>> redactor.redact({"user": "ada", "pin": "4821", "note": "mail bob@example.org"})
{'user': 'ada', 'pin': '[pin:35e9]', 'note': 'mail [email:014d]'}

Run logs and artifacts hold pseudonyms of the same shape under the run's own key (:meth:`Redactor.for_run`); logs,
spans, webhooks and views hold masks such as these. Equal values have equal masks under one key.
"""

from __future__ import annotations

from antiphon.redact._quotes import secrets_in, without_values
from antiphon.redact._redactor import EqualityPattern, Mask, Redactor, same_after_redaction
from antiphon.redact._rules import Rule, Rules
from antiphon.redact._scan import Finding, files_below, scan_path
from antiphon.redact._stream import StreamRedactor

__all__ = [
    "EqualityPattern",
    "Finding",
    "Mask",
    "Redactor",
    "Rule",
    "Rules",
    "StreamRedactor",
    "files_below",
    "same_after_redaction",
    "scan_path",
    "secrets_in",
    "without_values",
]
