"""``antiphon models``."""

from __future__ import annotations

import argparse

from antiphon.cli._base import add_json, print_json

DESCRIPTION = "Install the sentence-embedding model that scores compare texts with (about 90 MB, once)."
EXAMPLE = "example:\n  antiphon models install"


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("what", choices=["install", "status"])
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Install, or say whether it is there."""
    from antiphon.similarity import install_model, installed, model_folder

    if arguments.what == "install":
        folder = install_model()
        there = True
    else:
        folder, there = model_folder(), installed()
    if arguments.json:
        print_json({"installed": there, "folder": str(folder)})
    else:
        print(f"{'installed in' if there else 'not installed; it would go to'} {folder}")
    return 0 if there else 5
