"""reeltime playing back the recorded calls of a function; asked for by the same line, as it was recorded."""

import os
import tempfile
from pathlib import Path

import reeltime

ANSWER = {"hits": [{"title": "x" * 40, "url": "y" * 60, "text": "z" * 200} for _ in range(3)]}
CLOCKS = ["uuid"]
"""What it replaces beside calls: not the clock, with which it is measured."""


@reeltime.tool
def search(query, number):
    return ANSWER


def _main(calls):
    for number in range(calls):
        assert search("what a person asks " * 30, number) == ANSWER


def tools(calls):
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        run = reeltime.install(patch=CLOCKS).run_id
        _main(calls)
        reeltime.uninstall()
        opened = []

        def replay(n):
            _main(calls)

        def prepare():  # to open the trace is not what is measured
            if opened:
                reeltime.uninstall()
            opened[:] = [reeltime.install("replay", replay=run, patch=CLOCKS)]

        replay.prepare = prepare
        yield replay
        os.chdir(before)
