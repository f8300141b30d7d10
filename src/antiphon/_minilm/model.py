"""all-MiniLM-L6-v2 in plain NumPy: a six-layer BERT, mean-pooled and normalised.

No deep-learning framework is needed: the weights are read from the safetensors file, and the forward pass is some forty
matrix products.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from antiphon._minilm import require_model
from antiphon.errors import ArtifactError, missing_extra

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float32]

_LAYERS = 6
_HEADS = 12
_WIDTH = 384
_WINDOW = 254
"""Word pieces per window: 256 with the two marks at its ends, the length the model was trained for."""
_UNKNOWN, _START, _END = 100, 101, 102
_BATCH_TOKENS = 4096

_lock = Lock()
_users = 0
_limiter: Any = None


class MiniLM:
    """Sentence vectors of length 1; texts longer than the model's window are the weighted mean of their windows."""

    name = "minilm-l6-v2"

    def __init__(self, folder: Path) -> None:
        require_model(folder)
        try:
            import numpy as np
            import threadpoolctl  # type: ignore[import-untyped]  # noqa: F401
            from tokenizers import Tokenizer
        except ImportError:
            raise missing_extra("numpy', 'threadpoolctl' and 'tokenizers", "embed", "Sentence similarity") from None
        self._np = np
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._weights = _Weights(read_safetensors(folder / "model.safetensors"), np)

    def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        """Vectors of *texts*, in their order."""
        np = self._np
        windows: list[tuple[int, list[int]]] = []
        for place, text in enumerate(texts):
            pieces = self._tokenizer.encode(text, add_special_tokens=False).ids
            for start in range(0, max(len(pieces), 1), _WINDOW):
                windows.append((place, [_START, *pieces[start : start + _WINDOW], _END]))
        sums = np.zeros((len(texts), _WIDTH), dtype=np.float32)
        # Equal lengths together: padding is work for nothing.
        windows.sort(key=lambda window: len(window[1]))
        with one_thread():
            for batch in _batches(windows):
                vectors = self._forward([ids for _, ids in batch])
                for (place, ids), vector in zip(batch, vectors, strict=True):
                    sums[place] += vector * len(ids)
        norms = np.linalg.norm(sums, axis=1, keepdims=True)
        normalised: list[list[float]] = (sums / np.maximum(norms, 1e-12)).tolist()
        return normalised

    def unknown(self, text: str) -> tuple[list[str], int]:
        """The parts of *text* that have no vector of their own, and how many parts there are."""
        found = self._tokenizer.encode(text, add_special_tokens=False)
        parts = zip(found.ids, found.offsets, strict=True)
        return [text[start:end] for number, (start, end) in parts if number == _UNKNOWN], len(found.ids)

    def _forward(self, batch: list[list[int]]) -> Array:
        np, w = self._np, self._weights
        count, longest = len(batch), max(map(len, batch))
        ids = np.zeros((count, longest), dtype=np.int64)
        mask = np.zeros((count, longest), dtype=np.float32)
        for row, tokens in enumerate(batch):
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1.0
        hidden = w.words[ids] + w.positions[:longest] + w.kind
        hidden = _layer_norm(hidden, *w.norm, np).reshape(count * longest, _WIDTH)
        hide = (mask - 1.0)[:, None, None, :] * np.float32(1e9)
        for layer in w.layers:
            mixed = hidden @ layer.qkv + layer.qkv_bias
            q, k, v = mixed.reshape(count, longest, 3, _HEADS, -1).transpose(2, 0, 3, 1, 4)
            scores = q @ k.transpose(0, 1, 3, 2)
            scores += hide
            scores -= scores.max(axis=-1, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(axis=-1, keepdims=True)
            context = (scores @ v).transpose(0, 2, 1, 3).reshape(count * longest, _WIDTH)
            hidden = _layer_norm(hidden + (context @ layer.out + layer.out_bias), *layer.out_norm, np)
            inner = _gelu(hidden @ layer.up + layer.up_bias, np)
            hidden = _layer_norm(hidden + (inner @ layer.down + layer.down_bias), *layer.down_norm, np)
        states = hidden.reshape(count, longest, _WIDTH) * mask[:, :, None]
        pooled = states.sum(axis=1) / mask.sum(axis=1, keepdims=True)
        result: Array = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
        return result


class _Layer:
    """One transformer layer, laid out for row-major products."""

    __slots__ = ("down", "down_bias", "down_norm", "out", "out_bias", "out_norm", "qkv", "qkv_bias", "up", "up_bias")

    def __init__(self, tensors: dict[str, Array], number: int, np: Any) -> None:
        def get(name: str) -> Array:
            return tensors[f"encoder.layer.{number}.{name}"]

        # The scale of the dot product is folded into the query's weights.
        scale = np.float32((_WIDTH / _HEADS) ** -0.5)
        parts = ("query", "key", "value")
        weights = [get(f"attention.self.{part}.weight").T for part in parts]
        biases = [get(f"attention.self.{part}.bias") for part in parts]
        self.qkv = np.ascontiguousarray(np.concatenate([weights[0] * scale, *weights[1:]], axis=1))
        self.qkv_bias = np.concatenate([biases[0] * scale, *biases[1:]])
        self.out = np.ascontiguousarray(get("attention.output.dense.weight").T)
        self.out_bias = get("attention.output.dense.bias")
        self.out_norm = (get("attention.output.LayerNorm.weight"), get("attention.output.LayerNorm.bias"))
        self.up = np.ascontiguousarray(get("intermediate.dense.weight").T)
        self.up_bias = get("intermediate.dense.bias")
        self.down = np.ascontiguousarray(get("output.dense.weight").T)
        self.down_bias = get("output.dense.bias")
        self.down_norm = (get("output.LayerNorm.weight"), get("output.LayerNorm.bias"))


class _Weights:
    """All weights of the model."""

    __slots__ = ("kind", "layers", "norm", "positions", "words")

    def __init__(self, tensors: dict[str, Array], np: Any) -> None:
        self.words = tensors["embeddings.word_embeddings.weight"]
        self.positions = tensors["embeddings.position_embeddings.weight"]
        self.kind = tensors["embeddings.token_type_embeddings.weight"][0]
        self.norm = (tensors["embeddings.LayerNorm.weight"], tensors["embeddings.LayerNorm.bias"])
        self.layers = [_Layer(tensors, number, np) for number in range(_LAYERS)]


def read_safetensors(path: Path) -> dict[str, Array]:
    """The 32-bit tensors of a safetensors file, mapped and not copied."""
    import numpy as np

    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= path.stat().st_size - 8:
            raise ArtifactError(f"{path} is not a safetensors file.", hint="Run: antiphon models install")
        header: dict[str, Any] = json.loads(file.read(length))
    data = np.memmap(path, dtype=np.uint8, mode="r", offset=8 + length)
    tensors: dict[str, Array] = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        start, end = entry["data_offsets"]
        if end > data.size:
            raise ArtifactError(f"{path} is cut short at {name}.", hint="Run: antiphon models install")
        tensors[name] = data[start:end].view(np.float32).reshape(entry["shape"])
    return tensors


def _batches(windows: list[tuple[int, list[int]]]) -> Iterator[list[tuple[int, list[int]]]]:
    """Cut *windows* (shortest first) into batches of bounded memory."""
    batch: list[tuple[int, list[int]]] = []
    for window in windows:
        if batch and len(window[1]) * (len(batch) + 1) > _BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(window)
    if batch:
        yield batch


def _layer_norm(x: Array, weight: Array, bias: Array, np: Any) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = np.einsum("...i,...i->...", centred, centred)[..., None] / np.float32(x.shape[-1])
    centred /= np.sqrt(variance + np.float32(1e-12))
    centred *= weight
    centred += bias
    normed: Array = centred
    return normed


def _gelu(x: Array, np: Any) -> Array:
    """``x * Φ(x)`` with the error function by a rational approximation whose error is below float32's (1.5e-7)."""
    z = np.abs(x) * np.float32(0.7071067811865476)
    t = 1.0 / (1.0 + np.float32(0.3275911) * z)
    tail = np.float32(1.061405429) * t
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail += np.float32(coefficient)
        tail *= t
    np.multiply(z, z, out=z)
    np.negative(z, out=z)
    np.exp(z, out=z)
    tail *= z
    # tail is 1 - erf(|x|/√2): Φ(x) is 1 - tail/2 on the right of zero and tail/2 on the left.
    tail *= np.float32(0.5)
    gate = np.where(x >= 0, np.float32(1.0) - tail, tail)
    gate *= x
    activated: Array = gate
    return activated


@cache
def _controller() -> Any:
    """Finding the loaded BLAS libraries is slow: it is done once, after NumPy was imported."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit BLAS to one thread; the last of several users restores what was there.

    Short products get slower, not faster, when a BLAS spreads them over cores that are busy with something else. The
    host program's own NumPy keeps its threads outside of a call.
    Limits of threadpoolctl that overlap in several threads would restore each other's, so the users are counted.
    """
    global _users, _limiter
    with _lock:
        if _users == 0:
            _limiter = _controller().limit(limits=1, user_api="blas")
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _limiter.restore_original_limits()
