"""The wheel as a user gets it, with the packages of the core beside it and no other."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import antiphon

ROOT = Path(__file__).resolve().parent.parent.parent
CORE = ("cryptography", "msgspec", "orjson", "pyyaml")
THEIR_NEEDS = ("cffi", "pycparser")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the unpacked wheel and the packages of the core."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    for package in CORE + THEIR_NEEDS:
        found = importlib.metadata.distribution(package)
        for top in {Path(str(file)).parts[0] for file in found.files or [] if not str(file).startswith("..")}:
            (folder / "site" / top).symlink_to(Path(str(found.locate_file(top))))
    return folder / "site"


def _run(site: Path, code: str, folder: Path) -> str:
    program = f"import sys; sys.path.insert(0, {str(site)!r}); {code}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _files(package: Path) -> set[Path]:
    return {file.relative_to(package) for file in package.rglob("*") if file.is_file() and file.suffix != ".pyc"}


def test_the_wheel_has_every_file_of_the_package(site: Path) -> None:
    source = {file for file in _files(ROOT / "src" / "antiphon") if file.parts[:2] != ("console", "source")}
    assert _files(site / "antiphon") == source, "all but the sources of the console's script, which is built from them"


def test_the_metadata_name_the_core_dependencies(site: Path) -> None:
    (metadata,) = site.glob("antiphon-*.dist-info/METADATA")
    required = [line for line in metadata.read_text().splitlines() if line.startswith("Requires-Dist:")]
    core = sorted(line.split()[1].split(">")[0] for line in required if "extra ==" not in line)
    assert core == list(CORE)
    assert (metadata.parent / "licenses" / "LICENSE").exists()


@pytest.mark.parametrize("name", antiphon.__all__)
def test_every_name_of_the_front_door_works(site: Path, name: str, tmp_path: Path) -> None:
    out = _run(site, f"import antiphon; antiphon.{name}; print(antiphon.__file__)", tmp_path)
    assert out.startswith(str(site))


def test_the_command_line_helps(site: Path, tmp_path: Path) -> None:
    code = "sys.argv = ['antiphon', '--help']; from antiphon.cli import main; sys.exit(main())"
    assert "antiphon" in _run(site, code, tmp_path)


AGENT = """
import antiphon

gateway = antiphon.Gateway()


@gateway.tool(idempotent=False)
def send(to):
    return {"api_key": "sk-" + "a1B2c3D4" * 5, "to": to}


def main(to):
    with gateway.session("s") as session, session.turn() as turn:
        return turn.call("send", {"to": to}, call_id="1").content["to"]
"""


def _cli(*arguments: str) -> str:
    return f"sys.argv = {['antiphon', *arguments]!r}; from antiphon.cli import main; sys.exit(main())"


def test_a_run_is_sealed_replayed_and_reported(site: Path, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    _run(site, _cli("run", "agent.py:main", "--input", '"ada"'), tmp_path)
    assert list((tmp_path / ".antiphon").glob("*.seal-key"))
    _run(site, _cli("replay", "--latest", "--strict", "--html", "report.html"), tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "No divergence" in page
    assert "prefers-color-scheme" in page
    assert "send: false" in (tmp_path / "side_effect" / "side_effects.yaml").read_text()
