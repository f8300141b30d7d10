"""``antiphon replay``."""

from __future__ import annotations

import argparse
from pathlib import Path

from antiphon.cli._base import add_config, add_json, application, dim, print_json

DESCRIPTION = "Replay a run: strictly (nothing leaves the process) or exploring a new model, prompt or code."
EXAMPLE = (
    "examples:\n  antiphon replay --latest\n  antiphon replay 01a1dd44 --strict --json\n"
    "  antiphon replay 01a1dd44 --explore --model gpt-5 --llm my_models.py:ask"
)


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", nargs="?", help="run id, the beginning of one, or an artifact (default: the latest run)")
    parser.add_argument("--latest", action="store_true", help="the latest run")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--strict", action="store_const", const="strict", dest="mode", help="A: only recorded answers")
    kind.add_argument("--explore", action="store_const", const="explore", dest="mode", help="B: ask the model again")
    parser.add_argument("--no-execute", action="store_true", help="do not run the agent's code (plain A)")
    parser.add_argument("--entry", metavar="TARGET", help="file.py:function to run instead of the recorded entry point")
    parser.add_argument("--llm", metavar="TARGET", help="file.py:function that answers model requests")
    parser.add_argument("--model", help="another model")
    parser.add_argument("--provider", help="another provider")
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--prompt", metavar="TEXT", help="another system prompt (@FILE reads a file)")
    parser.add_argument(
        "--from", dest="from_event", type=int, metavar="N", help="frozen before event N, live from it on"
    )
    parser.add_argument("--exact-only", action="store_true", help="no semantic matches")
    parser.add_argument("--min-ars", type=float, metavar="X", help="fail below this score (default 0.8)")
    parser.add_argument("--html", metavar="FILE", help="write the report as one page")
    add_config(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Replay and print the report; 1 for a regression or divergence."""
    from antiphon.ops.entry import load_entry
    from antiphon.ops.replay import replay

    prompt = arguments.prompt
    if prompt and prompt.startswith("@"):
        prompt = Path(prompt[1:]).read_text(encoding="utf-8")
    with application(arguments) as app:
        report = replay(
            arguments.run,
            mode=arguments.mode,
            app=app,
            execute=not arguments.no_execute,
            function=load_entry(arguments.entry) if arguments.entry else None,
            llm=load_entry(arguments.llm) if arguments.llm else None,
            model=arguments.model,
            provider=arguments.provider,
            temperature=arguments.temperature,
            seed=arguments.seed,
            prompt=prompt,
            exact_only=arguments.exact_only or None,
            min_ars=arguments.min_ars,
            from_event=arguments.from_event,
        )
    if arguments.html:
        Path(arguments.html).write_text(report.html(), encoding="utf-8")
    if arguments.json:
        print_json(report.to_wire())
    else:
        print(report.text(), end="")
        if arguments.html:
            print(dim(f"report: {arguments.html}"))
    return report.exit_code
