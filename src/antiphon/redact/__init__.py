"""Keep secrets and personal data out of whatever is written (R14, D21).

>>> redactor = Redactor(Rules(), salt="4f1c")
>>> redactor.redact({"user": "ada", "pin": "4821", "note": "mail bob@example.org"})
{'user': 'ada', 'pin': '[secret:pin]', 'note': 'mail [secret:email:014d08f89dbfaa6d]'}

A placeholder is a keyed digest: equal secrets stay equal within a run, and any machine that has the
run's salt computes the same one. A secret that could be guessed from its digest gets a constant instead.
"""

from __future__ import annotations

from antiphon.redact._compare import EqualityPattern, same_after_redaction
from antiphon.redact._redactor import Redactor
from antiphon.redact._rules import Rule, Rules
from antiphon.redact._scan import Finding, scan_path
from antiphon.redact._stream import StreamRedactor

__all__ = [
    "EqualityPattern",
    "Finding",
    "Redactor",
    "Rule",
    "Rules",
    "StreamRedactor",
    "same_after_redaction",
    "scan_path",
]
