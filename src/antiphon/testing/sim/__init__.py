"""A deterministic simulator of the claim protocol: the real gateway and the real rules in a world of seeds.

A seed decides everything: who calls what and when, how long tools take, which worker is paused, killed or cut off from
the store, whose request or answer gets lost, who is cancelled. Time is virtual, so an hour takes milliseconds, and the
same seed always gives the same story. After every step the laws of ``laws.py`` must hold.

    python -m antiphon.testing.sim --seeds 2000

For each law there is a planted bug (``bugs.py``) that breaks it; a simulator that does not find it is worth nothing.
"""

from antiphon.testing.sim.bugs import BUGS
from antiphon.testing.sim.explore import Explored, Story, explore, tell

__all__ = ["BUGS", "Explored", "Story", "explore", "tell"]
