"""The reader of the documentation sees what it should: a gate that cannot fail is none."""

from __future__ import annotations

from pathlib import Path

from tests.docs.pages import anchors, links, script

PAGE = """# A title, with `code`

See [this](other.md#part) and ![a picture](x.png).

```python
import sys

if True:
    value = 1
```

```toml
[not](a-link.md)
```

1. In a list:

   ```python
   assert value == 1
   if value:
       print("ran")
   ```
"""


def test_script_keeps_line_numbers_and_only_python(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    lines = script(page).split("\n")
    assert lines[5] == "import sys"
    assert lines[8] == "    value = 1"
    assert lines[18:] == ["assert value == 1", "if value:", '    print("ran")']
    assert all(not line for number, line in enumerate(lines) if number not in (5, 7, 8, 18, 19, 20))


def test_links_and_anchors(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert links(page) == [(3, "other.md#part")]
    assert anchors(page) == {"a-title-with-code"}
