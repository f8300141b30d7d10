"""Make the pictures of README and documentation: terminals as SVG, pages as PNG (``make screenshots``).

The commands are really run, in an empty folder, on a terminal of 100 columns; Chromium takes the pictures of every page
of the console. ``--pages`` makes only those.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from fcntl import ioctl
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ROOT / "docs" / "assets"
TUTORIAL = ROOT / "docs" / "tutorials" / "is-the-new-model-worse.md"
COLUMNS = 100
SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; line-height: {line_height}px; }}
{styles}</style>
<defs>{lines}</defs>{chrome}
<g transform="translate({terminal_x}, {terminal_y})">{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


def on_terminal(folder: Path, command: str) -> str:
    """What a command prints on a terminal, colours included."""
    leader, follower = pty.openpty()
    ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    settings = {**environment(folder), "TERM": "xterm-256color"}
    shell = shutil.which("bash") or "bash"
    process = subprocess.Popen([shell, "-c", command], cwd=folder, env=settings, stdout=follower, stderr=follower)
    os.close(follower)
    out = b""
    while True:
        try:
            more = os.read(leader, 65536)
        except OSError:
            break
        if not more:
            break
        out += more
    os.close(leader)
    process.wait()
    return re.sub(r"[^\n]*\r\x1b\[K|\r", "", out.decode())  # lines of progress are gone in the end


def picture(folder: Path, name: str, title: str, *commands: str) -> None:
    """Run the commands and keep what the terminal shows."""
    from rich.console import Console
    from rich.text import Text

    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        for command in commands:
            console.print(Text(f"$ {command}", style="bold"))
            console.print(Text.from_ansi(on_terminal(folder, command).rstrip("\n")))
        svg = console.export_svg(title=title, code_format=SVG, unique_id="t")
    (ASSETS / name).write_text(svg, encoding="utf-8")


def environment(folder: Path) -> dict[str, str]:
    """This one without settings of ours, for a program in *folder*."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ANTIPHON_HOME": str(folder / ".antiphon"),
    }


def pages(folder: Path, chromium: str, where: dict[str, str]) -> list[str]:
    """Pages of the console of *folder*, each under the name of its picture; the names of the files."""
    from playwright.sync_api import expect, sync_playwright

    console = subprocess.Popen(
        [str(Path(sys.executable).parent / "antiphon"), "console", "--no-open", "--port", "0"],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert console.stdout is not None
    try:
        address = next(found[0] for line in console.stdout if (found := re.search(r"http://\S+", line)))
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_page(viewport={"width": 1000, "height": 640})
            page.goto(address)
            expect(page.locator("main h1")).to_be_visible(timeout=60_000)
            for name, place in where.items():
                page.evaluate("where => { location.hash = where }", f"#/{place}")
                expect(page.locator("main h1")).to_be_visible(timeout=60_000)
                expect(page.get_by_text("Loading…")).to_have_count(0, timeout=60_000)
                if name == "run":
                    page.locator(".line", has_text="tool").first.click()
                    expect(page.locator("aside h2")).to_be_visible(timeout=60_000)
                page.screenshot(path=str(ASSETS / f"console-{name}.png"), full_page=name == "matrix")
            browser.close()
    finally:
        console.terminate()
        console.wait()
    return [f"console-{name}.png" for name in where]


def recorded(folder: Path, chromium: str) -> list[str]:
    """Record a few runs, replay a golden one with changed code, and take the pictures."""
    import json

    for order in ("My order 1042 never arrived", "Order 1042: where is it?", "Please refund order 1042"):
        on_terminal(folder, f"antiphon run support_agent.py:main --input '\"{order}\"'")
    agent = folder / "agent.py"
    agent.write_text(agent.read_text().replace("count=2", "count=3"))
    on_terminal(folder, "antiphon replay golden/tea.antiphon --strict")
    on_terminal(folder, "antiphon test golden")
    listed = subprocess.run(
        [str(Path(sys.executable).parent / "antiphon"), "runs", "--replays", "--json"],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        check=True,
    )
    runs = json.loads(listed.stdout)["runs"]
    run = next(one["id"] for one in runs if not one["sourceRun"] and one["name"] != "tea")
    replay = next(one for one in runs if one["sourceRun"])
    where = {
        "runs": "runs",
        "run": f"runs/{run}",
        "compare": f"compare/{replay['sourceRun']}/{replay['id']}",
        **{name: name for name in ("inbox", "golden", "effects", "health")},
    }
    return pages(folder, chromium, where) + compared(folder.parent / "models", chromium)


def compared(folder: Path, chromium: str) -> list[str]:
    """The matrices of the tutorial, one of them stopped by its budget, and the pictures of their pages."""
    folder.mkdir()
    for name, text in re.findall(r'```\w+ title="([^"]+)"\n(.*?)```', TUTORIAL.read_text(encoding="utf-8"), re.DOTALL):
        (folder / name).write_text(text, encoding="utf-8")
    on_terminal(folder, "python record.py")
    matrix = "antiphon matrix --select 'name=main{}' --model small-2 --model small-3 --baseline --budget 1"
    on_terminal(folder, matrix.format(""))  # it stops for the review of side effects
    reviewed = folder / "side_effect" / "side_effects.yaml"
    reviewed.write_text(reviewed.read_text().replace("done: false", "done: true"))
    on_terminal(folder, f"{matrix.format('')} --margin 0.1 --jobs 2")
    first = next((folder / ".antiphon" / "matrix").iterdir()).name
    on_terminal(folder, f"{matrix.format(' limit=20')} --fresh --samples 1 --on here --max-calls 10")
    return pages(folder, chromium, {"matrices": "matrices", "matrix": f"matrices/{first}"})


def main() -> int:
    """Make them all."""
    chromium = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
    if chromium is None:
        sys.stderr.write("Chromium is not on the PATH; `make test` installs it.\n")
        return 1
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "shop"
        shutil.copytree(ROOT / "examples" / "golden_ci", folder)
        shutil.copy(ROOT / "examples" / "support_agent.py", folder)
        on_terminal(folder, "antiphon runs")  # the first use says where the store is
        if "--pages" in sys.argv:
            made_pages = recorded(folder, chromium)
            sys.stdout.write(f"written: {', '.join(made_pages)}\n")
            return 0
        asked = "antiphon run support_agent.py:main --input '\"My order 1042 never arrived\"'"
        picture(folder, "show.svg", "a recorded run", asked, "antiphon show --latest")
        agent = folder / "agent.py"
        agent.write_text(agent.read_text().replace("count=2", "count=3"))
        picture(folder, "test.svg", "a golden run fails", "antiphon test golden/tea.antiphon")
        picture(folder, "pytest.svg", "in pytest", "pytest -q -p no:cacheprovider -W ignore -k tea 2>/dev/null")
        made_pages = recorded(folder, chromium)
    sys.stdout.write(f"written: docs/assets/show.svg, test.svg, pytest.svg, {', '.join(made_pages)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
