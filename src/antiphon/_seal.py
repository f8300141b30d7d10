"""Authenticated encryption for results that may not be written in the clear (R14): AES-256-GCM of ``cryptography``.

The key is derived from the configured secret with HKDF-SHA-256. Form and context are authenticated together with the
data, so a value that was moved from another record is refused. A sealed text is ``s2.KEYID.`` and the base64 of nonce,
ciphertext and tag. Values of release 0.1.0 (``s1.``) can still be read. See decision 0020.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import stat
import tempfile
from pathlib import Path

from antiphon.errors import ConfigError, StoreError

KEY_BYTES = 32
_NONCE_BYTES = 12
_TAG_BYTES = 16
_FILE_HEAD = "antiphon-seal-key-1 "


class Sealer:
    """Seals and unseals under one key.

    >>> sealer = Sealer(bytes(32))
    >>> sealer.unseal(sealer.seal(b"the result", context=b"record 1"), context=b"record 1")
    b'the result'
    """

    __slots__ = ("_cipher", "_old", "_prefix", "key_id")

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ConfigError(
                f"A seal key must have {KEY_BYTES} bytes; this one has {len(key)}.",
                hint='Create one with: python -c "import secrets; print(secrets.token_hex(32))"',
                path="seal_key",
            )
        # Imported here: only a process that seals or unseals something pays for it.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        derived = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=b"antiphon seal 2 encrypt").derive(key)
        self._cipher = AESGCM(derived)
        self._old = _FirstForm(key)
        self.key_id = hmac.digest(key, b"antiphon seal 1 id", "sha256")[:4].hex()
        """Names the key without giving it away; the same in both forms."""
        self._prefix = f"s2.{self.key_id}."

    @classmethod
    def from_text(cls, text: str) -> Sealer:
        """From a configured key: 64 hexadecimal digits, or base64 of 32 bytes."""
        text = text.strip()
        try:
            key = bytes.fromhex(text) if len(text) == 2 * KEY_BYTES else _from_base64(text)
        except (binascii.Error, ValueError):
            key = b""
        return cls(key)

    @classmethod
    def from_key_file(cls, path: str | os.PathLike[str]) -> Sealer:
        """From a key file, made on first need with mode 0600; of many processes that try at once, one makes it."""
        file = Path(path)
        try:
            key = _read_key(file)
            if key is None:
                _make_key_file(file)
                key = _read_key(file)
        except OSError as error:
            raise StoreError(
                f"The seal key {file} cannot be used: {error.strerror or error}.",
                hint="Make its folder readable and writable for this user, or configure a seal key.",
                code="seal_key",
            ) from error
        if key is None:
            raise StoreError(f"The seal key {file} was removed while it was read.", code="seal_key")
        return cls(key)

    def seal(self, data: bytes, context: bytes = b"") -> str:
        """Encrypt *data*; what is sealed with a *context* (the key of its record) is unsealed only with the same."""
        nonce = os.urandom(_NONCE_BYTES)
        sealed = self._cipher.encrypt(nonce, data, self._prefix.encode() + context)
        return self._prefix + base64.b64encode(nonce + sealed).decode("ascii")

    def unseal(self, text: str, context: bytes = b"") -> bytes:
        """Check and decrypt; anything that was changed by one bit is refused.

        A value of release 0.1.0 may have been sealed without a context, and is then accepted with any.
        """
        version, _, rest = text.partition(".")
        key_id, _, body = rest.partition(".")
        if version not in ("s1", "s2"):
            raise StoreError(
                "The sealed value has a form that this release does not know.",
                hint="It was written by a newer release, or damaged: use that release, or clear the record.",
                code="seal_version",
            )
        if not hmac.compare_digest(key_id.encode(), self.key_id.encode()):
            raise StoreError(
                f"The value was sealed with another key ({key_id[:8]!r}, ours is {self.key_id!r}).",
                hint="Restore the key file of the store, or clear the record.",
                code="seal_key",
            )
        raw = _strict_base64(body)
        data = self._open(raw, context) if version == "s2" else self._old.open(raw, context)
        if data is None:
            raise StoreError(
                "The sealed value is not what was written: it was modified, truncated, or moved from another record.",
                hint="Nothing was decrypted. Clear the record.",
                code="seal_broken",
            )
        return data

    def _open(self, raw: bytes, context: bytes) -> bytes | None:
        from cryptography.exceptions import InvalidTag

        if len(raw) < _NONCE_BYTES + _TAG_BYTES:
            return None
        try:
            return self._cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], self._prefix.encode() + context)
        except InvalidTag:
            return None


class _FirstForm:
    """Reads values of release 0.1.0: SHAKE-256 keystream, HMAC-SHA-256 tag (decision 0006). Nothing is written so."""

    __slots__ = ("_encrypt", "_sign")

    def __init__(self, key: bytes) -> None:
        self._encrypt = hmac.digest(key, b"antiphon seal 1 encrypt", "sha256")
        self._sign = hmac.digest(key, b"antiphon seal 1 sign", "sha256")

    def open(self, raw: bytes, context: bytes) -> bytes | None:
        """The data, or ``None`` if the tag fits neither with *context* nor without one (as claims were sealed)."""
        nonce, sealed, tag = raw[:24], raw[24:-32], raw[-32:]
        if len(raw) < 24 + 32:
            return None
        for head in (b"s1 %d " % len(context) + context, b"s1 0 "):
            if hmac.compare_digest(tag, hmac.digest(self._sign, head + nonce + sealed, "sha256")):
                stream = hashlib.shake_256(self._encrypt + nonce).digest(len(sealed))
                mixed = int.from_bytes(sealed, "little") ^ int.from_bytes(stream, "little")
                return mixed.to_bytes(len(sealed), "little")
        return None


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)


def _strict_base64(text: str) -> bytes:
    """The bytes if this is their one spelling (base64 has spare bits at its end), else nothing."""
    try:
        raw = binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        return b""
    return raw if binascii.b2a_base64(raw, newline=False).decode("ascii") == text else b""


def _read_key(file: Path) -> bytes | None:
    """The key in *file*, or ``None`` if there is no file."""
    try:
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as stream:
        mode = os.fstat(stream.fileno()).st_mode
        text = stream.read(4096).decode("ascii", "replace")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise StoreError(
            f"The seal key {file} can be read by other users (mode {stat.S_IMODE(mode):o}).",
            hint=f"Run: chmod 600 {file}",
            code="seal_key",
        )
    if text.startswith(_FILE_HEAD):
        try:
            key = _from_base64(text[len(_FILE_HEAD) :].strip())
        except (binascii.Error, ValueError):
            key = b""
        if len(key) == KEY_BYTES:
            return key
    raise StoreError(
        f"The file {file} is not a seal key.",
        hint="Restore it from a backup. Without it, results that were sealed with it cannot be read again.",
        code="seal_key",
    )


def _make_key_file(file: Path) -> None:
    """Make the key file whole or not at all: it is written under another name, and linking it never overwrites."""
    file.parent.mkdir(parents=True, exist_ok=True)
    line = _FILE_HEAD + base64.b64encode(os.urandom(KEY_BYTES)).decode("ascii") + "\n"
    descriptor, name = tempfile.mkstemp(prefix=".seal-", dir=file.parent)  # mkstemp makes it 0600
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(line.encode("ascii"))
            stream.flush()
            os.fsync(stream.fileno())
        try:
            os.link(name, file)
        except FileExistsError:
            return  # another process was first: its key counts
        _sync_folder(file.parent)
    finally:
        Path(name).unlink()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
