"""The compatibility table: what was run, with which version. ``python -m tests.integration.adapters.compatibility``."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from antiphon.adapters._requirements import REQUIREMENTS
from tests.integration.adapters.speakers import SPEAKERS
from tests.integration.adapters.subjects import SUBJECTS
from tests.integration.adapters.test_litellm import VARIANTS

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "reference" / "compatibility.md"
GUIDES = {
    "httpx": "openai",
    "httpx2": "openai",
    "openai": "openai",
    "anthropic": "anthropic",
    "google": "google",
    "langchain": "langchain",
    "langgraph": "langchain",
    "openai-agents": "openai-agents",
    "pydantic-ai": "pydantic-ai",
    "mcp": "mcp",
}
_SPOKEN = {"google": "gemini"}

HEAD = """# Compatibility

The versions that each adapter was tested with, against the real package and a local provider that implements the wire
format and counts requests. `python -m tests.integration.adapters.compatibility` generates the table; a test fails
when it is out of date.

| adapter | package | supported | run with | variants under test |
|---|---|---|---|---|
"""

TAIL = """
Each SDK variant is recorded and replayed with the provider switched off (0 requests); errors, unreachable providers,
refusals and truncated streams are reproduced. Each framework variant is recorded and replayed in the same way,
performs a write once across a resume, runs parallel calls once each, and records a refusal as a refusal. A missing
package, or one outside its range, causes a one-line error that names the extra and the range.

LiteLLM pins an older OpenAI SDK and cannot be installed beside the others. Its tests run in a separate environment,
locked in `tests/peers/litellm.txt`. Antiphon does not check its version.
"""


def variants(name: str) -> str:
    """The cases of the behaviour suites that belong to an adapter."""
    start = _SPOKEN.get(name, name)
    names = [item.name for item in (*SPEAKERS, *SUBJECTS)]
    mine = [found for found in names if found == start or found.startswith(f"{start}-")]
    other = [need for need in REQUIREMENTS if need != name and need.startswith(f"{start}-")]
    return ", ".join(found for found in mine if not any(found.startswith(prefix) for prefix in other))


def locked(peer: str) -> str:
    """The version of a peer that has an environment of its own."""
    for line in (ROOT / "tests" / "peers" / f"{peer}.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{peer}=="):
            return line.removeprefix(f"{peer}==").rstrip(" \\")
    raise LookupError(peer)


def render() -> str:
    """The page as it has to be."""
    rows = []
    for name, need in REQUIREMENTS.items():
        link = f"[{name}](../how-to/{GUIDES[name]}.md)"
        supported = need.range.removeprefix(f"{need.package} ")
        rows.append(f"| {link} | `{need.package}` | {supported} | {version(need.package)} | {variants(name)} |")
    rows.append(
        f"| [litellm](../how-to/litellm.md) | `litellm` | as run | {locked('litellm')} | {', '.join(VARIANTS)} |"
    )
    return HEAD + "\n".join(rows) + "\n" + TAIL


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
