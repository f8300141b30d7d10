"""D31, L11: payloads in a local folder, by content, within a tenant, whole or not at all."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest

from antiphon.blobs.local import LocalBlobs, LocalObjects, tenant_folder
from antiphon.errors import ArtifactError, InvalidInput, NotFound, StoreUnavailable

TENANTS = ["default", "a/b", "..", ".", "../../etc", "ä ö", "t=x", "", "x" * 256, "nul\0byte", "A", "a"]


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def refs(blobs: LocalBlobs, tenant: str) -> list[str]:
    return list(blobs.refs(tenant))


@pytest.mark.parametrize("data", [b"", b"x", b"\x00\xff" * 10, b"y" * 3_000_000])
def test_what_was_put_is_got(tmp_path: Path, data: bytes) -> None:
    blobs = LocalBlobs(tmp_path / "blobs")
    ref = blobs.put("default", data)
    assert ref == f"sha256:{sha256(data).hexdigest()}"
    assert blobs.get("default", ref) == data
    assert refs(blobs, "default") == [ref]


def test_equal_payloads_are_stored_once(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path)
    assert blobs.put("default", b"same") == blobs.put("default", b"same")
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize("tenant", TENANTS)
def test_tenants_stay_in_their_own_folder(tmp_path: Path, tenant: str) -> None:
    blobs = LocalBlobs(tmp_path / "blobs")
    ref = blobs.put(tenant, b"mine")
    assert blobs.get(tenant, ref) == b"mine"
    for other in TENANTS:
        if other != tenant:
            assert refs(blobs, other) == []
            with pytest.raises(NotFound):
                blobs.get(other, ref)
    assert all(path.is_relative_to(tmp_path / "blobs") for path in files(tmp_path))
    blobs.delete(tenant, ref)
    blobs.delete(tenant, ref)
    assert refs(blobs, tenant) == []


def test_no_two_tenants_share_a_folder() -> None:
    assert len({tenant_folder(tenant) for tenant in TENANTS}) == len(TENANTS)


def test_files_are_private(tmp_path: Path) -> None:
    LocalBlobs(tmp_path / "blobs").put("default", b"x")
    (path,) = files(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_damaged_blob_is_refused_and_healed_by_the_next_put(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path)
    ref = blobs.put("default", b"good")
    (path,) = files(tmp_path)
    path.write_bytes(b"evil")
    with pytest.raises(ArtifactError, match="damaged"):
        blobs.get("default", ref)
    blobs.put("default", b"good")
    assert blobs.get("default", ref) == b"good"


@pytest.mark.parametrize(
    "ref", ["", "sha256:", "sha256:../../x", "md5:abc", "sha256:" + "A" * 64, "sha256:" + "0" * 63]
)
def test_what_is_no_reference_is_refused(tmp_path: Path, ref: str) -> None:
    with pytest.raises(InvalidInput):
        LocalBlobs(tmp_path).get("default", ref)


@pytest.mark.parametrize("name", ["", "/x", "../x", "a/../b", "a//b", ".hidden", "a/.unfinished/b", "a\0b"])
def test_names_cannot_leave_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput):
        LocalObjects(tmp_path).put(name, b"x")


def test_many_writers_of_the_same_and_of_other_content(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: blobs.put("default", b"%d" % (n % 10)), range(80)))
    assert len(set(found)) == 10
    assert sorted(set(found)) == sorted(refs(blobs, "default"))


def test_a_file_that_another_writer_has_just_finished_is_no_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".unfinished").mkdir()
    monkeypatch.setattr(Path, "iterdir", lambda folder: iter([folder / "gone by now"]))
    LocalObjects(tmp_path).put("name", b"x")
    assert LocalObjects(tmp_path).get("name") == b"x"


def test_killed_while_writing_leaves_no_half_blob(tmp_path: Path) -> None:
    code = """
import sys
from antiphon.blobs.local import LocalBlobs
blobs = LocalBlobs(sys.argv[1])
print("ready", flush=True)
for n in range(10_000):
    blobs.put("default", bytes([n % 256]) * 300_000 + str(n).encode())
"""
    for n in range(5):
        child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(0.02 * (n + 1))
        child.kill()
        child.wait()
        child.stdout.close()
    blobs = LocalBlobs(tmp_path)
    found = refs(blobs, "default")
    assert found
    for ref in found:
        blobs.get("default", ref)  # verifies the digest


def test_unfinished_writes_are_cleared_away_after_a_day(tmp_path: Path) -> None:
    unfinished = tmp_path / ".unfinished"
    unfinished.mkdir()
    for name, age in (("old", 90_000), ("new", 10)):
        (unfinished / name).write_bytes(b"half")
        os.utime(unfinished / name, (time.time() - age, time.time() - age))
    LocalBlobs(tmp_path).put("default", b"x")
    assert [path.name for path in unfinished.iterdir()] == ["new"]


def test_a_place_that_cannot_be_written_is_an_outage(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    blobs = LocalBlobs(tmp_path / "file" / "blobs")
    with pytest.raises(StoreUnavailable, match=str(tmp_path)):
        blobs.put("default", b"x")


def test_a_folder_in_the_way_is_an_outage(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    objects.put("a/b", b"x")
    objects.put("c", b"y")
    with pytest.raises(NotFound):
        objects.get("a")
    for change in (partial(objects.move, "c", "a"), partial(objects.delete, "a")):
        with pytest.raises(StoreUnavailable, match=str(tmp_path)):
            change()
    assert objects.get("c") == b"y"


async def test_an_event_loop_uses_it_in_threads(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path)
    found = await asyncio.gather(*(asyncio.to_thread(blobs.put, "default", b"%d" % n) for n in range(20)))
    assert sorted(await asyncio.to_thread(refs, blobs, "default")) == sorted(found)
    assert await asyncio.to_thread(blobs.get, "default", found[7]) == b"7"
    await asyncio.to_thread(blobs.delete, "default", found[7])
    with pytest.raises(NotFound):
        await asyncio.to_thread(blobs.get, "default", found[7])
