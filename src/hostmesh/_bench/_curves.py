"""How times grow with processes, bytes, leaves and devices: each point is a race of its own."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .._doctor._units import size
from .._errors import HostmeshError
from ._claim import Contestants, Race
from ._race import Settings, race
from ._record import Drawn, Point
from ._result import spread
from ._table import duration
from ._table import times as ratio
from .claims import (
    allgather_large,
    barrier,
    broadcast_large,
    broadcast_leaves,
    large_leaf,
    leaves_in,
    leaves_out,
    scalar,
)

_PROCESSES = (1, 2, 4, 8, 16)
_BYTES = tuple(2**n for n in (10, 14, 18, 22, 26, 28))
_LEAVES = (1, 10, 100, 300, 1000, 3000)
_DEVICES = (8, 64, 512, 4096, 8192)


@dataclass(frozen=True)
class Curve:
    """Races over `xs`; `race` makes that of a point, for so many processes."""

    name: str
    title: str
    x: str
    xs: tuple[int, ...]
    race: Callable[[int, int], Race]
    peer: str = "JAX"
    bound: str | None = None


def run(
    settings: Settings,
    begins: Callable[[str], None],
    failed: Callable[[str, HostmeshError], None],
) -> list[Drawn]:
    """Measures all curves, those points together that share a group of processes."""
    short = replace(
        settings,
        rounds=min(settings.rounds, 5),
        warm=1,
        least=min(settings.least, 3),
        seconds=min(settings.seconds, 3.0),
    )
    points: dict[tuple[str, int], Point] = {}
    pairs = [(curve, x, curve.race(x, settings.processes)) for curve in ALL for x in curve.xs]
    ordered = sorted(pairs, key=lambda pair: short.layout(pair[2]))
    for number, (curve, x, of) in enumerate(ordered, 1):
        title = f"{curve.name}, {x:,} {curve.x}"
        begins(f"[{number}/{len(ordered)}] {title}")
        names = [name for name in ("hostmesh", curve.peer, curve.bound) if name]
        try:
            found = {name: spread(of).median for name, of in race(of, names, short).items()}
        except HostmeshError as error:
            failed(title, error)
            continue
        bound = None if curve.bound is None else found.get(curve.bound)
        points[curve.name, x] = Point(x, found["hostmesh"], found.get(curve.peer), bound)
    return [
        Drawn(
            curve.name,
            curve.title,
            curve.x,
            curve.peer,
            curve.bound,
            tuple(points[curve.name, x] for x in curve.xs if (curve.name, x) in points),
        )
        for curve in ALL
    ]


def text(curve: Drawn) -> str:
    """A curve as lines, for people.

    >>> print(text(Drawn("in", "Some in", "bytes", "JAX", None, (Point(2048, 1e-3, 2e-3, None),))))
    Some in (bytes: hostmesh, JAX, ratio)
         2 KiB     1 ms     2 ms    2
    """
    bound = "" if curve.bound is None else f", {curve.bound}"
    lines = [f"{curve.title} ({curve.x}: hostmesh, {curve.peer}, ratio{bound})"]
    for point in curve.points:
        x = size(point.x) if curve.x == "bytes" else f"{point.x:,}"
        theirs = "" if point.peer is None else duration(point.peer)
        faster = "" if point.peer is None else ratio(point.peer / point.ours)
        least = "" if point.bound is None else duration(point.bound)
        lines.append(
            f"{x:>10} {duration(point.ours):>8} {theirs:>8} {faster:>4} {least:>8}".rstrip()
        )
    return "\n".join(lines)


def planning(folder: Path, devices: int) -> Contestants:
    """Which slices a new shape has: of one process's devices here, of all devices in JAX.

    JAX is asked for stand-ins of so many devices, as the slices follow from their number.
    """
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from .. import Topology, plan

    here = jax.devices()[0]

    class StandIn:
        """What a mesh asks of a device."""

        platform, device_kind, client = here.platform, here.device_kind, here.client

        def __init__(self, number: int) -> None:
            self.id, self.process_index = number, number // 8

    grid = np.array([StandIn(n) for n in range(devices)], object).reshape(-1, 8)
    spec = PartitionSpec(("x", "y"), None)
    sharding = NamedSharding(Mesh(grid, ("x", "y")), spec)
    topology = Topology.build({"x": devices // 8, "y": 8}, devices // 8)
    columns = itertools.count(1)  # no shape comes twice

    def ours() -> None:
        shape = (64 * devices, next(columns))
        plan(topology, (("x", "y"), None), global_shape=shape, process=0).placements()

    return {
        "JAX": lambda: sharding.devices_indices_map((64 * devices, next(columns))) and None,
        "hostmesh": ours,
    }


def _over_processes(contestants: Callable[[Path], Contestants], calls: int) -> Callable[..., Race]:
    return lambda x, processes: Race(contestants, calls, layout=(x, 2))


def _over_bytes(
    contestants: Callable[..., Contestants], whole: bool = False
) -> Callable[..., Race]:
    """`whole`: x counts the bytes of all processes."""

    def of(x: int, processes: int) -> Race:
        nbytes = max(x // processes // 64, 1) * 64 if whole else x
        calls = 5 if nbytes <= 2**18 else 1
        return Race(functools.partial(contestants, nbytes=nbytes), calls)

    return of


def _over_leaves(contestants: Callable[..., Contestants]) -> Callable[..., Race]:
    return lambda x, processes: Race(functools.partial(contestants, count=x), 5 if x <= 100 else 1)


ALL: Sequence[Curve] = (
    Curve(
        "barrier",
        "A barrier",
        "processes",
        _PROCESSES,
        _over_processes(barrier.contestants, 5),
    ),
    Curve(
        "scalar",
        "allgather of a scalar",
        "processes",
        _PROCESSES,
        _over_processes(scalar.contestants, 5),
        bound="requests alone",
    ),
    Curve(
        "leaves_in_processes",
        "to_global of 300 leaves",
        "processes",
        _PROCESSES,
        _over_processes(leaves_in.contestants, 1),
        bound="put alone",
    ),
    Curve(
        "to_global",
        "to_global of one leaf",
        "bytes",
        _BYTES,
        _over_bytes(large_leaf.contestants),
        bound="copy to warm",
    ),
    Curve(
        "allgather",
        "allgather, by the bytes of the result",
        "bytes",
        _BYTES,
        _over_bytes(allgather_large.contestants, whole=True),
        bound="one copy",
    ),
    Curve(
        "broadcast",
        "broadcast of one value",
        "bytes",
        _BYTES,
        _over_bytes(broadcast_large.contestants),
        bound="one copy",
    ),
    Curve(
        "leaves_in",
        "to_global of leaves of 8 KiB",
        "leaves",
        _LEAVES,
        _over_leaves(leaves_in.contestants),
        bound="put alone",
    ),
    Curve(
        "leaves_out",
        "to_local of leaves of 8 KiB",
        "leaves",
        _LEAVES,
        _over_leaves(leaves_out.contestants),
    ),
    Curve(
        "broadcast_leaves",
        "broadcast of leaves of 8 KiB",
        "leaves",
        _LEAVES,
        _over_leaves(broadcast_leaves.contestants),
        bound="bytes, one copy",
    ),
    Curve(
        "planning",
        "A first plan of one process, for a new shape",
        "devices",
        _DEVICES,
        lambda x, processes: Race(functools.partial(planning, devices=x), calls=10, layout=(1, 1)),
    ),
)
