"""Print the size of the package: code lines (without blank lines, comments and docstrings) and files per folder.

``--json`` prints it for machines.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import tokenize
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "antiphon"
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(text: str) -> int:
    """Lines that hold code; a statement over three lines counts three."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - _docstrings(ast.parse(text)))


def _docstrings(tree: ast.Module) -> set[int]:
    """The lines of all strings that stand alone: docstrings, also those of attributes."""
    alone = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    )
    return {line for node in alone for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    arguments = parser.parse_args()
    for path in sorted(SOURCE.rglob("*.py")):
        inside = path.relative_to(SOURCE)
        folder = inside.parts[0] if len(inside.parts) > 1 else "."
        lines[folder] += code_lines(path.read_text(encoding="utf-8"))
        files[folder] += 1
    if arguments.json:
        folders = {folder: {"lines": lines[folder], "files": files[folder]} for folder in sorted(lines)}
        print(json.dumps({"lines": lines.total(), "files": files.total(), "folders": folders}, indent=2))
        return
    print(f"{'folder':<14}{'lines':>8}{'files':>8}")
    for folder, count in lines.most_common():
        print(f"{folder:<14}{count:>8}{files[folder]:>8}")
    print(f"{'all':<14}{lines.total():>8}{files.total():>8}")


if __name__ == "__main__":
    main()
