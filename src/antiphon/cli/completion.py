"""``antiphon completion``: the shells ask the command itself what could follow."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

from antiphon.cli import COMMANDS
from antiphon.cli._base import argument, command, find

_SHELLS = ("bash", "zsh", "fish")
"""``completion.bash`` and so on are their scripts."""


@command(
    argument("shell", choices=[*_SHELLS, "words"], help="bash, zsh or fish; words is what their scripts call"),
    argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS),
)
def completion(arguments: argparse.Namespace) -> int:
    """Print the completion script of a shell: commands, options, their choices, and ids of runs.

    examples:
      source <(antiphon completion bash)         # or add the line to ~/.bashrc
      source <(antiphon completion zsh)          # or add the line to ~/.zshrc, after compinit
      antiphon completion fish > ~/.config/fish/completions/antiphon.fish
    """
    if arguments.shell == "words":
        typed = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
        *before, last = typed or [""]
        print("\n".join(word for word in _possible(before, last) if word.startswith(last)))
    else:
        from pkgutil import get_data

        print((get_data("antiphon.cli", f"completion.{arguments.shell}") or b"").decode(), end="")
    return 0


def _possible(before: list[str], last: str) -> Iterable[str]:
    """What could stand behind these words; *last* is what has been typed of it."""
    if not before:
        return (*COMMANDS, "--help", "--version")
    if before[0] not in COMMANDS:
        return ()
    parser = find(COMMANDS[before[0]][0]).parser(before[0])
    actions = parser._option_string_actions
    value_of = actions.get(before[-1]) if len(before) > 1 else None
    if value_of is not None and value_of.nargs != 0:
        return map(str, value_of.choices or ())
    if last.startswith("-"):
        shown = (name for name, action in actions.items() if action.help is not argparse.SUPPRESS)
        return (name for name in shown if name.startswith("--"))
    positional = [action for action in parser._actions if not action.option_strings]
    taken = sum(1 for word in before[1:] if not word.startswith("-"))
    if taken >= len(positional):
        return ()
    action = positional[taken]
    runs = _runs(last) if action.dest in ("run", "a", "b") and before[0] != "run" else ()
    return (*map(str, action.choices or ()), *runs)


def _runs(start: str) -> Iterator[str]:
    """Ids of recorded runs; none if the store cannot be read just now."""
    from antiphon.errors import AntiphonError
    from antiphon.ops.app import current
    from antiphon.ops.runs import list_runs

    try:
        yield from (row["id"] for row in list_runs(current(), prefix=start, limit=20, replays=True))
    except (AntiphonError, OSError):
        return
