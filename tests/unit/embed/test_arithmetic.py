"""The parts of the forward pass, against plain arithmetic."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits  # type: ignore[import-untyped]

from antiphon import _minilm as install
from antiphon._minilm import model as minilm
from antiphon.errors import ArtifactError, MissingExtra


def test_gelu_is_the_exact_one_to_float32() -> None:
    x = np.linspace(-6, 6, 4001, dtype=np.float32)
    exact = np.array([v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x.tolist()], dtype=np.float32)
    assert float(np.abs(minilm._gelu(x, np) - exact).max()) < 1e-6


def test_layer_norm() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    normed = minilm._layer_norm(x, np.ones(4, np.float32), np.zeros(4, np.float32), np)
    assert np.allclose(normed.mean(axis=-1), 0, atol=1e-6)
    assert np.allclose(normed.std(axis=-1), 1, atol=1e-5)


def test_batches_are_bounded_and_complete() -> None:
    windows = [(n, [0] * length) for n, length in enumerate([5] * 2000 + [256] * 40)]
    batches = minilm._batches(windows)
    assert [window for batch in batches for window in batch] == windows
    assert all(len(batch) * len(batch[-1][1]) <= minilm._BATCH_TOKENS for batch in batches)


def test_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    data = np.arange(6, dtype=np.float32)
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
            "ids": {"dtype": "I64", "shape": [1], "data_offsets": [24, 32]},
        }
    ).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data.tobytes() + bytes(8))
    tensors = minilm.read_safetensors(path)
    assert list(tensors) == ["a"]
    assert tensors["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ArtifactError, match="cut short"):
        minilm.read_safetensors(path)
    path.write_bytes(b"not such a file at all")
    with pytest.raises(ArtifactError, match="not a safetensors"):
        minilm.read_safetensors(path)


@pytest.mark.parametrize("package", ["tokenizers", "threadpoolctl"])
def test_a_missing_package_names_the_extra(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in install.FILES:
        (tmp_path / name).touch()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=r"antiphon\[embed\]"):
        minilm.MiniLM(tmp_path)


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_threads_are_put_back() -> None:
    with threadpool_limits(2, user_api="blas"):
        with minilm.one_thread():
            assert blas_threads() == {1}
            with minilm.one_thread():
                assert blas_threads() == {1}
            assert blas_threads() == {1}
        assert blas_threads() == {2}


def test_threads_are_put_back_by_the_last_of_users_that_overlap() -> None:
    with threadpool_limits(2, user_api="blas"):
        first, second = minilm.one_thread(), minilm.one_thread()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert blas_threads() == {1}
        second.__exit__(None, None, None)
        assert blas_threads() == {2}
