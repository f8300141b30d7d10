"""``antiphon test``."""

from __future__ import annotations

import argparse
from pathlib import Path

from antiphon.cli._base import add_json, bold, dim, exit_code, green, print_json, red, share, whole
from antiphon.errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from antiphon.ops import golden

DESCRIPTION = "Replay golden runs against the current code: each artifact is a test."
EXAMPLE = (
    "examples:\n"
    "  antiphon export 01a1dd44 -o golden/refund.antiphon   # make one\n"
    "  antiphon test golden/\n"
    "  antiphon test golden/ --jobs 4 --junit report.xml --markdown summary.md\n"
    "  antiphon test golden/ --explore --model gpt-5 --llm my_models.py:ask\n\n"
    "A dropped, added or changed side effect fails a test whatever its score says.\n"
    "exit codes: 0 all passed, 1 a regression or divergence; if none, what kept a run from being replayed:\n"
    "            3 blocked for review, 4 not found, 5 entry point or model missing, 6 unreadable"
)


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("places", nargs="+", type=Path, metavar="DIR", help="folders or files (.antiphon, .kurral)")
    parser.add_argument("--jobs", "-j", type=whole(1), default=1, metavar="N", help="replay in N processes")
    parser.add_argument("--min-ars", type=share, default=0.9, metavar="X", help="fail below this score (default 0.9)")
    parser.add_argument("--explore", action="store_true", help="ask the model again instead of replaying strictly")
    parser.add_argument("--model", help="another model, for --explore")
    parser.add_argument("--llm", metavar="TARGET", help="file.py:function that answers model requests, for --explore")
    parser.add_argument(
        "--entry", metavar="TARGET", help="file.py:function to run instead of the recorded entry points"
    )
    parser.add_argument("--junit", metavar="FILE", type=Path, help="write JUnit XML")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write a summary for a pull request")
    parser.add_argument("--no-fence", action="store_true", help="let the code reach the world past Antiphon")
    parser.add_argument("--config", metavar="FILE", help="configuration file (default: antiphon.toml)")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Replay all golden runs; 1 if one of them regressed."""
    from antiphon.ops import golden

    if arguments.jobs < 1:
        raise InvalidInput("--jobs takes a number from 1.")
    wanted = golden.Wanted(
        mode="explore" if arguments.explore else "strict",
        min_ars=arguments.min_ars,
        config=arguments.config,
        llm=arguments.llm,
        fence=not arguments.no_fence,
        model=arguments.model,
        entry=arguments.entry,
    )
    results = []
    for result in golden.check_all(golden.collect(arguments.places), wanted, jobs=arguments.jobs, code_of=exit_code):
        results.append(result)
        if not arguments.json:
            _tell(result)
    if arguments.junit:
        arguments.junit.write_text(golden.junit(results), encoding="utf-8")
    if arguments.markdown:
        arguments.markdown.write_text(golden.markdown(results), encoding="utf-8")
    passed = sum(result.status == "pass" for result in results)
    if arguments.json:
        print_json({"passed": passed, "total": len(results), "results": [result.to_wire() for result in results]})
    else:
        print(bold(f"{passed} of {len(results)} golden runs pass"))
    return golden.exit_code(results)


def _tell(result: golden.Result) -> None:
    ars = (result.report.get("ars") or {}).get("score")
    score = "" if ars is None else f"  ARS {ars:.3f}"
    mark = green("✓") if result.status == "pass" else red("✗")
    print(f"{mark} {result.path}{score}  {dim(f'{result.seconds:.2f} s')}")
    for reason in result.reasons:
        shown = dim(reason) if result.status == "pass" else reason
        print(f"    {shown}")
