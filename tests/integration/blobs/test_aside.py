"""What every place for payloads does with those that are set aside, so that gc deletes none that is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.blobs.local import ContentBlobs, LocalBlobs
from antiphon.blobs.outbox import OutboxBlobs
from antiphon.errors import NotFound
from tests.conftest import S3Access
from tests.integration.blobs.test_outbox import until
from tests.integration.blobs.test_s3_blobs import blobs_of, objects_of, refs

PLACES = ["local", "s3", "outbox, sent", "outbox, waiting"]


class Sent(OutboxBlobs):
    """Each blob has arrived before the test goes on."""

    def put(self, tenant: str, data: bytes) -> str:
        ref = super().put(tenant, data)
        until(lambda: self.outbox.status().pending == 0)
        return ref


@pytest.fixture(params=PLACES)
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> ContentBlobs:
    if request.param == "local":
        return LocalBlobs(tmp_path)
    access: S3Access = request.getfixturevalue("s3_access")
    if request.param == "s3":
        return blobs_of(access)
    if request.param == "outbox, sent":
        return Sent(tmp_path, objects_of(access, "payloads"))
    made = OutboxBlobs(tmp_path, objects_of(access, "payloads"))
    made.outbox.close()
    return made


def aside(blobs: ContentBlobs) -> list[str]:
    return list(blobs.aside("default"))


def test_what_is_set_aside_can_be_read_and_is_written_anew(blobs: ContentBlobs) -> None:
    ref, other = blobs.put("default", b"x"), blobs.put("default", b"y")
    blobs.set_aside("default", ref)
    blobs.set_aside("default", ref)
    assert blobs.get("default", ref) == b"x"
    assert (refs(blobs, "default"), aside(blobs)) == ([other], [ref])
    assert blobs.put("default", b"x") == ref
    assert sorted(refs(blobs, "default")) == sorted([ref, other])
    blobs.delete_aside("default", ref)
    blobs.delete_aside("default", ref)
    assert blobs.get("default", ref) == b"x"
    assert aside(blobs) == []


@pytest.mark.parametrize("anew", [False, True], ids=["alone", "written anew"])
def test_what_is_put_back_is_found_by_writers(blobs: ContentBlobs, anew: bool) -> None:
    ref = blobs.put("default", b"x")
    blobs.set_aside("default", ref)
    if anew:
        blobs.put("default", b"x")
    blobs.put_back("default", ref)
    blobs.put_back("default", ref)
    assert (refs(blobs, "default"), aside(blobs)) == ([ref], [])
    assert blobs.get("default", ref) == b"x"


def test_what_is_deleted_is_gone(blobs: ContentBlobs) -> None:
    ref = blobs.put("default", b"x")
    blobs.delete_aside("default", ref)
    assert blobs.get("default", ref) == b"x", "it was not set aside"
    blobs.set_aside("default", ref)
    blobs.delete_aside("default", ref)
    with pytest.raises(NotFound):
        blobs.get("default", ref)
    assert (refs(blobs, "default"), aside(blobs)) == ([], [])


def test_tenants_set_aside_their_own(blobs: ContentBlobs) -> None:
    ref = blobs.put("default", b"x")
    blobs.put("other", b"x")
    blobs.set_aside("other", ref)
    assert (refs(blobs, "default"), aside(blobs)) == ([ref], [])
    blobs.delete_aside("other", ref)
    assert blobs.get("default", ref) == b"x"


def test_a_reader_does_not_miss_what_is_put_back_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = LocalBlobs(tmp_path)
    ref = blobs.put("default", b"x")
    blobs.set_aside("default", ref)
    get = blobs.objects.get

    def slow(name: str) -> bytes:
        if name.startswith("aside/"):
            blobs.put_back("default", ref)
        return get(name)

    monkeypatch.setattr(blobs.objects, "get", slow)
    assert blobs.get("default", ref) == b"x"
