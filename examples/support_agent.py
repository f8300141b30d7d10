"""The demo's support agent, to run by hand:

    antiphon run examples/support_agent.py:main --input '"My order 1042 never arrived"'
    antiphon show
    antiphon replay --strict

Its source, with tools, scripted model and comments, is ``src/antiphon/_demo.py``.
"""

from antiphon._demo import main

__all__ = ["main"]
