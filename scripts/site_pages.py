"""Hook of ``make site``: pages that are not files under docs/.

- the API reference: one page per module that docs/reference/public-modules.md declares,
- the project's own pages (changelog, contributing, security), which lie at the root of the repository,
- files of the repository that a page links to, copied beside the pages.

The navigation follows the lists of each folder's index.md.
"""

from __future__ import annotations

import inspect
import os.path
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from scripts.site_docstrings import markdown

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
DECLARED = DOCS / "reference" / "public-modules.md"
PROJECT = {"CHANGELOG.md": "changelog", "CONTRIBUTING.md": "contributing", "SECURITY.md": "security"}
FOLDERS = ("tutorials", "how-to", "reference", "explanation", "decisions")
LINK = re.compile(r"(?<=\]\()(?P<path>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?=\))")
CODE = re.compile(r"^( *)(```+).*?^\1\2", re.MULTILINE | re.DOTALL)


def public_modules() -> list[str]:
    """The modules that users may import, as declared."""
    text = DECLARED.read_text(encoding="utf-8").partition("## Deprecated")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `antiphon")]
    return [name for row in rows for name in re.findall(r"`(antiphon[\w.]*)`", row)]


def public_names(module: str) -> list[str]:
    """What a public module offers: its ``__all__``, else what it defines itself."""
    found = import_module(module)
    if hasattr(found, "__all__"):
        return [name for name in found.__all__ if not name.startswith("__")]
    return [
        name
        for name, value in vars(found).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module
    ]


def api_page(module: str) -> str:
    """The page of one module: its description, then every public name with what it takes and returns."""
    about = inspect.getdoc(import_module(module)) or ""
    lines = [f"# `{module}`", "", markdown(about), ""]
    for name in public_names(module):
        lines += [f"::: {module}.{name}", "    options:", "      show_root_full_path: false", ""]
    return "\n".join(lines)


def on_config(config: Any) -> Any:
    """Navigation: the folders, each in the order of its index page, then API and project."""
    nav: list[Any] = [{"Home": "index.md"}]
    for folder in FOLDERS:
        nav.append({folder.capitalize(): [f"{folder}/index.md", *_listed(folder)]})
        if folder == "reference":
            nav.append({"API": ["api/index.md", *({name: f"api/{name}.md"} for name in public_modules())]})
    nav.append({"Project": [f"project/{name}.md" for name in PROJECT.values()]})
    config.nav = nav
    return config


def _listed(folder: str) -> list[Any]:
    """The pages of a folder as its index lists them; a line without a link above a list is a group's title."""
    top: list[Any] = []
    group: list[Any] = top
    lines = (DOCS / folder / "index.md").read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        title = number + 2 < len(lines) and not lines[number + 1] and lines[number + 2].startswith("- ")
        if title and line and not line.startswith(("#", "-")) and not line.endswith("."):
            group = []
            top.append({line: group})
        known = {
            entry
            for part in [top, *(next(iter(p.values())) for p in top if isinstance(p, dict))]
            for entry in part
            if isinstance(entry, str)
        }
        for match in LINK.finditer(line):
            uri = f"{folder}/{match['path']}"
            if (DOCS / uri).is_file() and uri not in known:
                known.add(uri)
                group.append(uri)
    return top


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages, and the files that pages link to."""
    from mkdocs.structure.files import File

    for module in public_modules():
        files.append(File.generated(config, f"api/{module}.md", content=api_page(module)))
    listed = "\n".join(f"- [`{module}`]({module}.md)" for module in public_modules())
    intro = (
        "# API\n\nEvery module that you may import. [Public modules](../reference/public-modules.md) says what for.\n"
    )
    files.append(File.generated(config, "api/index.md", content=f"{intro}\n{listed}\n"))
    for source, name in PROJECT.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, f"project/{name}.md", content=text))
    pages = {page: page.read_text(encoding="utf-8") for page in (*DOCS.rglob("*.md"), *(ROOT / s for s in PROJECT))}
    for target in sorted({t for page, text in pages.items() for t in _outside(page, text)}):
        uri = f"files/{target.relative_to(ROOT).as_posix()}"
        if target.suffix == ".md":  # shown as text: it is no page of the site
            uri += ".txt"
        files.append(File.generated(config, uri, content=target.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links that leave docs/ lead to the copies."""
    name = Path(page.file.src_uri)
    source = {f"project/{name}.md": ROOT / key for key, name in PROJECT.items()}.get(page.file.src_uri, DOCS / name)
    here = page.file.src_uri

    def rewrite(match: re.Match[str]) -> str:
        if "://" in match["path"] or match["path"].startswith(("mailto:", "/")):
            return match[0]
        target = (source.parent / match["path"]).resolve()
        uri = _uri(target)
        return match[0] if uri is None else os.path.relpath(uri, str(Path(here).parent)) + (match["anchor"] or "")

    return _outside_of_code(markdown, lambda text: LINK.sub(rewrite, text))


def _uri(target: Path) -> str | None:
    """Where a file of the repository stands in the site."""
    if target.is_dir():
        target = target / "index.md"
    if not target.exists():
        return None
    if target.is_relative_to(DOCS):
        return target.relative_to(DOCS).as_posix()
    name = target.relative_to(ROOT).as_posix()
    if name == "README.md":
        return "index.md"
    if name in PROJECT:
        return f"project/{PROJECT[name]}.md"
    return f"files/{name}" + (".txt" if target.suffix == ".md" else "")


def _outside(page: Path, text: str) -> set[Path]:
    """The files outside docs/ that a page links to, pages of the project excepted."""
    found = set()

    def look(part: str) -> str:
        for match in LINK.finditer(part):
            if "://" not in match["path"]:
                target = (page.parent / match["path"]).resolve()
                uri = _uri(target)
                if uri is not None and uri.startswith("files/"):
                    found.add(target)
        return part

    _outside_of_code(text, look)
    return found


def _outside_of_code(text: str, change: Any) -> str:
    """Apply *change* to what is not in a fenced block."""
    out, at = [], 0
    for block in CODE.finditer(text):
        out += [change(text[at : block.start()]), block[0]]
        at = block.end()
    return "".join([*out, change(text[at:])])
