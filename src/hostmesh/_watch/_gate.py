"""Who is slow: `stragglers`. And a gate in front of a step: `ready`."""

from __future__ import annotations

from .. import _jax
from .._coordination import agree
from .._errors import SpecError, build
from . import _watchdog
from ._table import Stragglers, found


def stragglers() -> Stragglers:
    """Tells how long the last step took on each process, and how long it waited there for others.

    Returns:
      A row for each process, and who is slowest; printed, a table. It is of each process's last
      heartbeat: at most `Watchdog(every=)` seconds old. Waiting counts in hostmesh's barriers and
      collectives: what a process waits for in a program of JAX alone is its own time here.

    Raises:
      SpecError: where no watchdog runs in this process.

    Communicates: one request of this process to the coordination service, of some hundred bytes for
    each process. The others do not take part: call it anywhere, on one process.

    >>> import hostmesh
    >>> with hostmesh.Watchdog(timeout=60) as watchdog:
    ...     watchdog.step(0)
    ...     hostmesh.stragglers().slowest is None
    True
    """
    running = _watchdog.running()
    if running is None:
        raise build(
            SpecError,
            where="hostmesh.stragglers()",
            given="a process without a watchdog",
            rule="it tells of the heartbeats that watchdogs post",
            advice="start one: hostmesh.Watchdog, or HOSTMESH_WATCHDOG=300 in the environment",
        )
    return found(running.last_beats(), _jax.place()[1])


def ready(timeout: float | None = None) -> None:
    """A gate in front of a step: waits until every process has come, as with its batch in hand.

    A step that one process enters late holds the devices of all; this tells who is not there, and,
    where a watchdog runs, what it is at.

    Args:
      timeout: seconds to wait; by default `hostmesh.config.timeout`.

    Raises:
      StragglerError: on every process, naming those that have not come.
      DivergenceError, ClusterError: as all collectives.

    Communicates: one message from each process, through the coordination service.

    >>> import hostmesh
    >>> hostmesh.ready(10)
    """
    agree("ready", timeout=timeout)
