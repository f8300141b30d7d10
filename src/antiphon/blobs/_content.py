"""Content addressing over any place that keeps named objects (D31: within one tenant)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from antiphon.errors import ArtifactError, InvalidInput, NotFound

_REF = re.compile(r"sha256:[0-9a-f]{64}")
_LONGEST_NAME = 120


class Objects(Protocol):
    """A place that keeps bytes under names such as ``t=default/ab/abcd…``. Blocking; writes are atomic and durable."""

    @property
    def url(self) -> str:
        """Where it is, without secrets."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Keep *data*; what had that name before is replaced."""
        ...

    def put_file(self, name: str, path: Path) -> None:
        """Keep the content of a file without holding all of it in memory."""
        ...

    def get(self, name: str) -> bytes:
        """Raises :class:`~antiphon.errors.NotFound`."""
        ...

    def put_once(self, name: str, data: bytes) -> None:
        """Keep *data* unless the object is there already (its name says what it holds)."""
        ...

    def delete(self, name: str) -> None:
        """Forget the object, if it is there."""
        ...

    def names(self, prefix: str = "") -> Iterator[str]:
        """Names that begin with the folder *prefix* (empty, or ending in ``/``)."""
        ...


class ContentBlobs:
    """Blobs over named objects."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects

    @property
    def url(self) -> str:
        """Where the blobs are, without secrets."""
        return self.objects.url

    def put(self, tenant: str, data: bytes) -> str:
        digest = sha256(data).hexdigest()
        self.objects.put_once(_name(tenant, digest), data)
        return f"sha256:{digest}"

    def get(self, tenant: str, ref: str) -> bytes:
        digest = _digest(ref)
        try:
            data = self.objects.get(_name(tenant, digest))
        except NotFound:
            raise NotFound(f"No blob {ref} of tenant {tenant!r} in {self.url}.") from None
        if sha256(data).hexdigest() != digest:
            raise ArtifactError(
                f"The blob {ref} in {self.url} is damaged: its content has another digest.",
                hint="Restore it from a backup; nothing was changed.",
            )
        return data

    def delete(self, tenant: str, ref: str) -> None:
        self.objects.delete(_name(tenant, _digest(ref)))

    def refs(self, tenant: str) -> Iterator[str]:
        for name in self.objects.names(f"{tenant_folder(tenant)}/"):
            ref = f"sha256:{name.rpartition('/')[2]}"
            if _REF.fullmatch(ref):
                yield ref


def tenant_folder(tenant: str) -> str:
    """A folder name for any tenant; nothing a tenant is called can leave it or meet another's."""
    quoted = quote(tenant, safe="")
    if len(quoted) > _LONGEST_NAME:
        return f"h={sha256(tenant.encode()).hexdigest()}"
    return f"t={quoted}"


def _name(tenant: str, digest: str) -> str:
    return f"{tenant_folder(tenant)}/{digest[:2]}/{digest}"


def _digest(ref: str) -> str:
    if not _REF.fullmatch(ref):
        raise InvalidInput(f"{ref!r} is not a reference to a blob.", path="ref")
    return ref.removeprefix("sha256:")
