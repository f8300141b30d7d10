"""The command line. Commands stand in the modules of this package, imported only when they are called.

A command is a function that returns the exit code, decorated with its arguments; its docstring is its help.
"""

from __future__ import annotations

import sys

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("antiphon.cli.run:run", "run an agent and record it"),
    "exec": ("antiphon.cli.run:exec_", "run any command and record its model and MCP calls, with no code change"),
    "runs": ("antiphon.cli.show:runs", "list recorded runs"),
    "show": ("antiphon.cli.show:show", "show a run as a timeline, one event, or what the model saw"),
    "replay": ("antiphon.cli.replay:replay", "replay a run: strictly, or with a new model, prompt or code"),
    "diff": ("antiphon.cli.show:diff", "compare two runs"),
    "test": ("antiphon.cli.replay:test", "replay a folder of golden runs as tests"),
    "matrix": ("antiphon.cli.matrix:matrix", "replay many runs with several models; is one of them worse?"),
    "next-step": ("antiphon.cli.next_step:next_step", "ask a model for each next step of runs, also imported ones"),
    "export": ("antiphon.cli.artifacts:export", "write a run as one readable JSON document"),
    "import": ("antiphon.cli.artifacts:import_", "read artifacts, trajectories or traces into the store"),
    "replay-key": ("antiphon.cli.artifacts:replay_key", "print the key that opens the originals of recordings"),
    "scan": ("antiphon.cli.artifacts:scan", "find secrets in files without printing them"),
    "gc": ("antiphon.cli.admin:gc", "delete old runs by age, count or size"),
    "claims": ("antiphon.cli.admin:claims", "list, show, clear, resolve or flush claim records"),
    "approvals": ("antiphon.cli.approvals:approvals", "list, approve, deny or withdraw calls that wait for a person"),
    "breakers": ("antiphon.cli.admin:breakers", "list, force open or reset circuit breakers"),
    "doctor": ("antiphon.cli.admin:doctor", "check stores, tools and retry owners"),
    "backup": ("antiphon.cli.admin:backup", "copy the store and its payloads while they are in use"),
    "restore": ("antiphon.cli.admin:restore", "put a backup in place of the store"),
    "sealkeys": ("antiphon.cli.admin:sealkeys", "list, rotate, add or remove the keys that seal secrets"),
    "config": ("antiphon.cli.admin:config", "show every setting and where it came from"),
    "models": ("antiphon.cli.admin:models", "install the sentence-embedding model"),
    "serve": ("antiphon.cli.serve:serve", "start the HTTP host"),
    "apikeys": ("antiphon.cli.serve:apikeys", "create or revoke API keys of the host"),
    "console": ("antiphon.cli.serve:console", "look at recorded runs in a browser"),
    "proxy": ("antiphon.cli.proxy:proxy", "record, replay and guard model and MCP calls of any program"),
    "mcp": ("antiphon.cli.proxy:mcp", "record, replay and guard an MCP server on stdio"),
    "completion": ("antiphon.cli.completion:completion", "print the completion script of bash, zsh or fish"),
    "demo": ("antiphon.cli.demo:demo", "show a demo: one minute, offline, no API key"),
}

own_process: bool = False
"""Whether this process was started for the command: only then may it give things up for good, such as the network."""

EXIT = {"ok": 0, "diverged": 1, "usage": 2, "blocked": 3, "not_found": 4, "entry": 5, "unreadable": 6}

_HEAD = "usage: antiphon COMMAND [options]\n\nReliable and replayable calls for AI agents.\n\ncommands:\n"
_TAIL = (
    "\n  antiphon COMMAND --help shows its options and an example.\n\n"
    "example:\n  antiphon run agent.py:main --input '\"hello\"' && antiphon show --latest\n\n"
    "exit codes: 0 equal or passed, 1 regression or divergence, 2 usage, 3 blocked for review, 4 not found,\n"
    "            5 entry point or model missing, 6 unreadable or other-version recording\n"
)


def overview() -> str:
    """What ``antiphon --help`` prints."""
    return _HEAD + "".join(f"  {name:<10} {text}\n" for name, (_, text) in COMMANDS.items()) + _TAIL


def main(argv: list[str] | None = None) -> int:
    """Entry point of the command ``antiphon``; with *argv*, a command run inside somebody else's process."""
    global own_process
    words = sys.argv[1:] if argv is None else argv
    own_process = argv is None
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview(), end="")
        return 0
    if words[0] in ("-V", "--version", "version"):
        from antiphon._version import __version__

        print(f"antiphon {__version__}")
        return 0
    name, rest = words[0], words[1:]
    if name not in COMMANDS:
        import difflib

        near = difflib.get_close_matches(name, COMMANDS, n=1)
        said, hint = f"there is no command {name!r}.", f"Did you mean 'antiphon {near[0]}'? " if near else ""
        hint += "See: antiphon --help"
        if "--json" in rest:
            from antiphon.cli._base import report
            from antiphon.errors import InvalidInput

            report(InvalidInput(said, hint=hint), as_json=True)
        else:
            print(f"antiphon: {said} {hint}", file=sys.stderr)
        return EXIT["usage"]
    from antiphon.cli._base import any_output, call, find

    if own_process:
        any_output()
    return call(name, find(COMMANDS[name][0]), rest)
