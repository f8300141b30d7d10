"""A deterministic simulator of the claim protocol: real gateways and the real rules in a world driven by seeds.

A seed decides everything: who calls what, when and how (decorated function, ``once``, ``turn.call``, ``execute``, a
stream, the guard of adapters, a tool that calls a tool), how long tools take, which worker is paused, killed,
reconfigured or cut off from the store, whose request or answer gets lost, who is cancelled, when the store is away,
slow, fails over to a replica that lacks its last writes, or finds its disk full or failing. Some workers have a
``Gateway`` and threads, others an ``AsyncGateway`` and tasks; both run the production drivers. Simulated are the
store's network and disk, the clock, the scheduler of tasks and threads, and what the operating system reports about
processes. Time is virtual, so an hour takes milliseconds, and the same seed always gives the same trace. After every
step the invariants of ``invariants.py`` must hold.

    python -m antiphon.testing.sim --seeds 2000

For each invariant there is a planted bug (``bugs.py``) that breaks it, and the simulator must find it.
"""

from antiphon.testing.sim.bugs import BUGS
from antiphon.testing.sim.explore import Explored, Simulation, explore, shrink, simulate

__all__ = ["BUGS", "Explored", "Simulation", "explore", "shrink", "simulate"]
