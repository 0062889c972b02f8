"""`doctor`: each process tells of itself and measures, process 0 judges, and all get its findings."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict

from jax.sharding import Mesh

from .._config import config
from .._initialize import initialize
from .._topology import Topology
from . import _facts, _judge, _measure, _mesh
from ._diagnosis import Diagnosis
from ._finding import Finding
from ._meeting import Meeting


def doctor(
    *,
    mesh: Mesh | Mapping[str, int] | None = None,
    timeout: float = 30.0,
    ignore: Iterable[str] = (),
    progress: bool = False,
) -> Diagnosis:
    """Looks for what is wrong with a cluster, in every process of it, in under a minute.

    Versions, settings, flags and environments that differ, devices and how processes were bound to
    them, clocks, names, limits, memory; then what it measures: round trips to the coordinator, a
    barrier, collectives of several sizes, links between neighbours, host to device and back.
    Values of variables that look like secrets never leave their process: digests do, keyed anew for
    each look.

    Args:
      mesh: a mesh to look at as well; or its axes by name with their sizes, major first, for one of
        all devices in JAX's order.
      timeout: seconds that each step waits for the other processes.
      ignore: patterns, as of file names, of variables that may differ.
      progress: shows what is measured, on standard error of process 0.

    Returns:
      What was found: `findings`, `status` (0 healthy, 1 warnings, 2 errors); printing it shows
      tables.

    Raises:
      StragglerError: where a process does not come; it names it, on all others.
      ClusterError: where a process failed on its way.

    Communicates: all processes make the call together.

    >>> import hostmesh
    >>> hostmesh.doctor().status < 2
    True
    """
    told = Progress()
    shows = progress and initialize().process == 0
    return examine(mesh, timeout, ignore, told.show if shows else lambda what: None)


class Progress:
    """A line on standard error for each step."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def show(self, what: str) -> None:
        """Says that a step begins."""
        sys.stderr.write(f"doctor, {time.monotonic() - self._start:4.1f} s: {what}\n")
        sys.stderr.flush()


def examine(
    mesh: Mesh | Mapping[str, int] | None,
    timeout: float,
    ignore: Iterable[str],
    step: Callable[[str], None],
) -> Diagnosis:
    """`doctor`; `step` is told what begins."""
    start = time.monotonic()
    # Not all may have called it at one line, and JAX or click are of other versions perhaps.
    with config.set(call_sites=False):
        step("devices, versions and environments")
        cluster = initialize()
        meeting = Meeting(cluster.process, cluster.processes, timeout)
        facts = _facts.gather(cluster, meeting.salt)
        told = meeting.gather(facts.plain())
        figures = _measure.measure(meeting, step)
        step("findings")
        measured = meeting.gather(figures.plain())
        everyone, all_figures = (facts,), (figures,)
        found: tuple[Finding, ...] = ()
        axes: tuple[_mesh.Axis, ...] = ()
        if told is not None and measured is not None:
            everyone = tuple(map(_facts.from_plain, told))
            all_figures = tuple(_measure.Figures(**of) for of in measured)
            wanted, owners = _wanted(mesh, facts.owners)
            found = _judge.judge(everyone, all_figures, wanted, owners, ignore)
            axes = _axes(wanted, owners, everyone)
        shared = meeting.share(
            {"findings": [asdict(of) for of in found], "axes": [asdict(axis) for axis in axes]}
        )
        meeting.end()
    return Diagnosis(
        tuple(
            Finding(of["severity"], tuple(of["who"]), of["what"], of["remedy"])
            for of in shared["findings"]
        ),
        everyone,
        all_figures,
        tuple(_mesh.Axis(**axis) for axis in shared["axes"]),
        time.monotonic() - start,
    )


def _wanted(
    mesh: Mesh | Mapping[str, int] | None, owners: list[int]
) -> tuple[dict[str, int] | None, list[int]]:
    """The axes of a mesh, and the process of each of its devices."""
    if mesh is None:
        return None, owners
    if isinstance(mesh, Mesh):
        topology = Topology.from_mesh(mesh)
        return dict(topology.axes), topology.process_indices.ravel().tolist()
    return dict(mesh), owners


def _axes(
    wanted: dict[str, int] | None, owners: list[int], facts: tuple[_facts.Facts, ...]
) -> tuple[_mesh.Axis, ...]:
    places = {of.process: of.host.machine for of in facts}
    if wanted is None or not _mesh.fits(wanted, owners):
        return ()
    return _mesh.axes_of(Topology(list(wanted.items()), owners), places)
