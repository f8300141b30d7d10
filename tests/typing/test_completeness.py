"""The public interface is annotated: editors and type checkers infer nothing."""

from __future__ import annotations

from pathlib import Path

from scripts.type_completeness import GOAL, measure, open_ends


def test_nearly_every_public_symbol_is_annotated() -> None:
    report = measure()
    assert sum(report["exportedSymbolCounts"].values()) > 3000
    assert report["completenessScore"] >= GOAL, "\n".join(open_ends(report))


def test_the_measure_sees_what_is_missing(tmp_path: Path) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    (package / "py.typed").touch()
    (package / "__init__.py").write_text("def price(item, count: int = 1): return item * count\n")
    report = measure("shop", str(tmp_path))
    assert report["completenessScore"] < GOAL
    assert "shop.price: " in open_ends(report)[0]
