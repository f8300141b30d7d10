"""Make the pictures of README and documentation: terminals as SVG, the report as PNG (``make screenshots``).

The commands are really run, in an empty folder, on a terminal of 100 columns; Chromium takes the picture of the report.
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
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ANTIPHON_HOME": str(folder / ".antiphon"),
        "TERM": "xterm-256color",
    }
    shell = shutil.which("bash") or "bash"
    process = subprocess.Popen([shell, "-c", command], cwd=folder, env=environment, stdout=follower, stderr=follower)
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


def report(folder: Path, chromium: str) -> None:
    """The page of a replay that found a changed argument."""
    from playwright.sync_api import sync_playwright

    on_terminal(folder, "antiphon replay golden/tea.antiphon --strict --html report.html")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1000, "height": 760})
        page.goto(f"file://{folder / 'report.html'}")
        page.screenshot(path=str(ASSETS / "report.png"))
        browser.close()


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
        asked = "antiphon run support_agent.py:main --input '\"My order 1042 never arrived\"'"
        picture(folder, "show.svg", "a recorded run", asked, "antiphon show --latest")
        agent = folder / "agent.py"
        agent.write_text(agent.read_text().replace("count=2", "count=3"))
        picture(folder, "test.svg", "a golden run fails", "antiphon test golden/tea.antiphon")
        picture(folder, "pytest.svg", "in pytest", "pytest -q -p no:cacheprovider -W ignore -k tea 2>/dev/null")
        report(folder, chromium)
    sys.stdout.write("written: docs/assets/show.svg, test.svg, pytest.svg, report.png\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
