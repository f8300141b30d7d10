"""Whether the name of a field says that its value is a secret, personal, or an id that must stay.

A name is split into words (``clientSecret``, ``client-secret`` and ``CLIENT_SECRET`` are the same two), and the
words decide. The last word may turn a secret into a statement about one (``token_count``, ``passwordPolicy``).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from antiphon.redact._placeholder import PLACEHOLDER

_WORDS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_BLANKS = re.compile(r"[_.$ -]+")
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_.$ -]+")
_LONGEST_NAME = 100
_NO_NAME = re.compile(r"___|[_.$ -]{4}")
"""What no name of a field has in it."""


class Field(NamedTuple):
    """What a name says about its value."""

    kind: str
    mode: str
    """``secret`` (any text), ``digits`` (numbers and short codes), ``personal`` or ``keep``."""


KEEP = Field("", "keep")

_ANYWHERE = {
    "password": "password",
    "passwords": "password",
    "passwd": "password",
    "pwd": "password",
    "passphrase": "password",
    "passcode": "password",
    "secret": "secret",
    "secrets": "secret",
    "credential": "credential",
    "credentials": "credential",
    "cred": "credential",
    "creds": "credential",
    "cookie": "cookie",
    "cookies": "cookie",
    "authorization": "authorization",
    "authorisation": "authorization",
    "jwt": "jwt",
    "apikey": "api_key",
    "apikeys": "api_key",
}

_LAST = {"token": "token", "auth": "authorization", "pass": "password", "pw": "password"}

_DIGITS = {
    "pin": "pin",
    "pincode": "pin",
    "ssn": "ssn",
    "cvv": "cvv",
    "cvc": "cvv",
    "otp": "otp",
}

KEY_OF = frozenset(
    "api access account private encryption signing master shared auth subscription ssh license licence deploy"
    " service webhook hmac rsa aes storage admin server root seal functions".split()
)
"""What makes a ``key`` a secret; ``sessionKey``, ``primary_key`` and ``idempotencyKey`` are none."""

_NOT_TOKEN = frozenset(
    "next page pagination continuation sync cancel cancellation resume start end prev previous cursor stop"
    " pad eos bos unk mask sep cls special first last max min per".split()
)
TOKENS_OF = frozenset("access refresh auth api bearer session id secret".split())

_COMPACT = (
    ("password", "password"),
    ("passwd", "password"),
    ("passphrase", "password"),
    ("apikey", "api_key"),
    ("accesskey", "api_key"),
    ("secretkey", "secret"),
    ("privatekey", "private_key"),
    ("clientsecret", "secret"),
    ("accesstoken", "token"),
    ("refreshtoken", "token"),
    ("sessiontoken", "token"),
    ("authtoken", "token"),
    ("idtoken", "token"),
)

_STATEMENT = frozenset(
    "type types count counts limit limits length len name names arn url uri endpoint policy policies hint field fields"
    " expiry expires expiration ttl at in required enabled valid present rotation version usage budget max min total"
    " used format label path file files ref manager store provider method scheme mode strength changed updated created"
    " status state size index position consent banner settings expired exists ok age days length schema template"
    " description title prefix jar domain"
    " py pyi js mjs ts tsx jsx go rs java kt rb php cs cpp swift scala".split()  # a file of code
)
_ID = frozenset(
    "id ids uuid guid hash digest sha sha1 sha256 sha512 md5 etag checksum fingerprint signature cursor traceparent"
    " tracestate commit revision nonce".split()
)
_KEPT_PAIRS = frozenset({("encrypted", "content"), ("thought", "signature"), ("b64", "json")})


def words(name: str) -> tuple[str, ...]:
    """The words of a name, in lower case.

    >>> words("X-Api-Key"), words("dbPassword2")
    (('x', 'api', 'key'), ('db', 'password', '2'))
    """
    return tuple(word.lower() for word in _WORDS.findall(name))


def classify(name: str) -> Field | None:
    """What *name* says about its value, or ``None``."""
    if "[secret:" in name and PLACEHOLDER.search(name):  # what stands under it was looked at when the name was
        return KEEP
    name = next((part for part in reversed(_NOT_A_NAME.split(name[-_LONGEST_NAME:])) if part), "")
    parts = words(name)
    while len(parts) > 1 and parts[-1].isdigit():
        parts = parts[:-1]
    if not parts or _NO_NAME.search(name):
        return None
    last = parts[-1]
    if len(parts) > 1 and last in _STATEMENT:
        return None
    secret = _secret(parts, last, name)
    if secret is not None and not (last in _ID and secret.kind != "password"):
        return secret
    if last in _ID or parts[-2:] in _KEPT_PAIRS:
        return KEEP
    if last in ("phone", "phones") or parts[-2:] in (("phone", "number"), ("phone", "no")):
        return Field("phone", "personal")
    if parts[-2:] == ("card", "number"):
        return Field("card", "personal")
    return None


def _secret(parts: tuple[str, ...], last: str, name: str) -> Field | None:
    for part in parts:
        if part in _ANYWHERE:
            return Field(_ANYWHERE[part], "secret")
    before = parts[-2] if len(parts) > 1 else ""
    if last in ("key", "keys") and before in KEY_OF:
        return Field("private_key" if before == "private" else "api_key", "secret")
    if last == "tokens":
        return Field("token", "secret") if before in TOKENS_OF else None
    if last in ("value", "string", "raw", "plain") and before == "token":
        return Field("token", "secret")
    if last in _LAST:
        return None if last == "token" and before in _NOT_TOKEN else Field(_LAST[last], "secret")
    code = before if last in ("code", "number") else last
    if code in _DIGITS:
        return Field(_DIGITS[code], "digits")
    compact = _BLANKS.split(name)[-1].lower()
    for ending, kind in _COMPACT:
        if compact.endswith(ending):
            return Field(kind, "secret")
    return None
