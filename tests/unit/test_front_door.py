"""The package's front door: few names, pinned, and cheap to open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import antiphon

NAMES = [
    "Antiphon",
    "AntiphonError",
    "AsyncGateway",
    "CallContext",
    "DidNotHappen",
    "Gateway",
    "Happened",
    "ReplayControl",
    "ToolDenied",
    "ToolSpec",
    "__version__",
    "agent",
    "branch",
    "canonical_json",
    "canonical_request",
    "configure",
    "current_run",
    "effect",
    "idempotency_key",
    "llm_cache_key",
    "matrix",
    "record",
    "replay",
    "run",
    "submit",
    "wrap",
    "wrap_context",
]


def test_names_are_pinned_sorted_and_few() -> None:
    assert antiphon.__all__ == NAMES == sorted(NAMES)
    assert len(NAMES) <= 27
    assert set(NAMES) <= set(dir(antiphon))


@pytest.mark.parametrize("name", NAMES)
def test_every_name_can_be_imported(name: str) -> None:
    assert getattr(antiphon, name) is getattr(antiphon, name)


def test_the_stores_are_found_without_an_import_of_their_own() -> None:
    code = "import antiphon; antiphon.Gateway(store=antiphon.stores.MemoryStore())"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = antiphon.nothing


def _loaded_by(statement: str) -> set[str]:
    code = f"import sys; before = set(sys.modules); {statement}; print('\\n'.join(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_loads_nothing_heavy() -> None:
    loaded = _loaded_by("import antiphon")
    assert loaded.isdisjoint({"asyncio", "msgspec", "orjson", "json", "re", "dataclasses", "inspect"})
    assert {name for name in loaded if name.startswith("antiphon")} == {"antiphon", "antiphon._version"}


def test_one_event_is_shown_without_what_compares_runs(tmp_path: Path) -> None:
    loaded = _loaded_by(
        f"import os; os.environ['ANTIPHON_HOME'] = {str(tmp_path / 'home')!r}; import antiphon, antiphon.cli; "
        "antiphon.Antiphon().run('shown').__enter__(); antiphon.cli.main(['show', '--latest', '--event', '0'])"
    )
    assert "antiphon.ops.runs" in loaded
    assert not {name for name in loaded if name.startswith(("antiphon.scoring", "antiphon.similarity"))}


def test_a_run_is_recorded_without_administration_and_bucket_client(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("def main():\n    return 'done'\n")
    loaded = _loaded_by(
        f"import os; os.environ['ANTIPHON_HOME'] = {str(tmp_path / 'home')!r}; import antiphon.cli; "
        f"antiphon.cli.main(['run', {str(tmp_path / 'agent.py:main')!r}])"
    )
    assert "antiphon.ops.unrecorded" in loaded
    assert loaded.isdisjoint({"antiphon.ops.doctor", "antiphon.ops.admin", "antiphon.blobs.s3", "http.client"})


def test_a_call_loads_neither_the_cipher_nor_yaml() -> None:
    loaded = _loaded_by(
        "import antiphon, antiphon.ops.replay, antiphon._seal; gateway = antiphon.Gateway(store='memory:'); "
        "gateway.tool(idempotent=True)(len); session = gateway.session('s'); turn = session.__enter__().turn(); "
        "turn.__enter__().call('len', {'obj': 'abc'}, call_id='1')"
    )
    assert "antiphon._gateway.result_store" in loaded
    assert loaded.isdisjoint({"cryptography", "yaml"})


@pytest.mark.parametrize("store", ["memory:", "sqlite:///j.db"])
def test_a_synchronous_call_does_without_asyncio(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = _loaded_by(f"import antiphon; antiphon.Gateway(store={store!r}).tool(idempotent=True)(len)('abc')")
    assert "antiphon._gateway.drivers" in loaded
    assert "asyncio" not in loaded
