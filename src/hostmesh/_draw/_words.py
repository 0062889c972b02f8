"""What pictures say, each sentence once: for text, SVG, tables and what `hostmesh plan` prints.

`page/sentences.js` says the same in the browser; tests/test_page_planning.py compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from .._plan import Plan
from .._topology import Topology

JAX = "JAX's own functions (such as host_local_array_to_global_array)"
_SHOWN = 8
_FEW = 4


def counted(number: int, one: str, many: str = "") -> str:
    """A number with its noun.

    >>> counted(1, "device"), counted(2048, "device")
    ('1 device', '2,048 devices')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def listed(numbers: Sequence[int], most: int = _SHOWN, sign: str = "") -> str:
    """Ascending numbers in words, with a count of what there is no room for.

    >>> listed([3]), listed([2, 3]), listed([0, 1, 2, 3, 7]), listed(range(0, 40, 2))
    ('3', '2 and 3', '0-3 and 7', '0, 2, 4, 6, 8, 10, 12, 14 and 12 more')
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1 and not sign:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts: list[tuple[str, int]] = []
    for run in runs:
        if len(run) > 2:
            parts.append((f"{run[0]}-{run[-1]}", len(run)))
        else:
            parts += [(f"{sign}{number}", 1) for number in run]
    shown = [words for words, _ in parts[:most]]
    if left := sum(count for _, count in parts[most:]):
        shown.append(f"{left:,} more")
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def spec_in_words(plan: Plan) -> str:
    """The spec of a plan as it is written in code, without what cuts nothing at its end.

    >>> import hostmesh
    >>> topology = hostmesh.Topology.build({"x": 2, "y": 2}, processes=2)
    >>> spec_in_words(hostmesh.plan(topology, (None, ("x", "y")), global_shape=(3, 4, 5)))
    "P(None, ('x', 'y'))"
    """
    entries = [(names[0] if len(names) == 1 else names) or None for names in plan.axes]
    while entries and entries[-1] is None:
        entries.pop()
    return f"P({', '.join(map(repr, entries))})"


def mesh_note(topology: Topology) -> str:
    """What dN and pN mean. Devices of a process that stand apart are not in JAX's order."""
    in_order = bool((np.diff(topology.process_indices.ravel()) >= 0).all())
    other = "" if in_order else " (not JAX's device id)"
    return (
        f"{counted(topology.size, 'device')} of"
        f" {counted(len(topology.processes), 'process', 'processes')};"
        f" dN = place N in the mesh, counted row by row{other};"
        " pN = its process"
    )


def array_note(plan: Plan) -> str:
    """How a global array is cut, and what a chunk is."""
    note = f"cut by {spec_in_words(plan)} in {_by(plan.chunk_counts)} of shape {plan.shard_shape}"
    for i, axes in enumerate(plan.axes):
        if len(axes) > 1:
            note += f"; dim {i} by {axes[0]}, " + ", ".join(f"each part by {a}" for a in axes[1:])
    copies = copies_of(plan)
    held = "one device" if copies == 1 else f"{copies} devices, which hold equal copies"
    return f"{note}; a chunk is the part of the array that one device stores; each is on {held}"


def local_note(devices: int, held: Sequence[Sequence[int]], holes: int) -> str:
    """What a process's local array is. `held` has the chunk numbers along each dimension."""
    note = (
        "what it passes to hm.to_global, and gets back from hm.to_local, for its"
        f" {counted(devices, 'device')}; labels: place here → place in the global array"
    )
    if any(numbers[-1] - numbers[0] >= len(numbers) for numbers in held):
        note += "; its chunks are joined in this order, and those between belong to other processes"
    if holes:
        note += f"; {counted(holes, 'hatched chunk')} on none of its devices, and not read"
    return note


def place(number: int, size: int) -> str:
    """Where a chunk lies along a dimension."""
    return f"{number * size}:{number * size + size}"


def local_place(rank: int, number: int, count: int, size: int) -> str:
    """Where a chunk lies in a local array and, where that differs at all, in the global one."""
    if count == 1:
        return f"{place(0, size)} (all)"
    return f"{place(rank, size)} → {place(number, size)}"


def passing(shape: str, processes: Sequence[int]) -> str:
    """Which shape processes pass.

    >>> passing("(4,)", [0, 1]), passing("(4,)", [2])
    ('Each of processes 0 and 1 passes (4,) to hm.to_global.', 'Process 2 passes (4,) to hm.to_global.')
    """
    who = "Process" if len(processes) == 1 else "Each of processes"
    return f"{who} {listed(processes)} passes {shape} to hm.to_global."


def sharing(groups: Sequence[tuple[Sequence[int], int]]) -> Iterator[str]:
    """Which processes hold the same: groups of them, each with its number of chunks.

    >>> list(sharing([((0, 1), 2), ((2,), 1)]))[0]
    'Processes 0 and 1 hold the same 2 chunks, and must pass equal values of them.'
    >>> list(sharing([((0,), 2), ((1,), 2)]))
    ['No two processes hold the same chunk.']
    """
    if all(len(processes) == 1 for processes, _ in groups):
        yield "No two processes hold the same chunk."
        return
    for processes, chunks in groups:
        if len(processes) == 1:
            yield f"Process {processes[0]} alone holds {counted(chunks, 'chunk')}."
        else:
            same = "chunk" if chunks == 1 else f"{chunks:,} chunks"
            of = "it" if chunks == 1 else "them"
            yield (
                f"Processes {listed(processes)} hold the same {same},"
                f" and must pass equal values of {of}."
            )


def on_all(plan: Plan, each: int) -> str:
    """Bytes on all devices, where each has so many, and of how many copies of the array."""
    copies, total = copies_of(plan), each * plan.topology.size
    of = f" (array {total // copies:,}, {copies:,} copies)" if copies > 1 else ""
    return f"{total:,} on all devices{of}"


def jax_words(topology: Topology) -> str:
    """Whether JAX's own functions take a mesh, and why not: what follows `JAX`."""
    for process in topology.processes:
        if not topology.is_subcube(process):
            devices = listed(topology.positions(process).tolist(), _FEW, "d")
            return (
                "need each process's devices to form one rectangle of the mesh; here"
                f" p{process} has {devices}, with a gap. hostmesh takes it."
            )
    return "take this mesh too: each process's devices form one rectangle of it."


def copies_of(plan: Plan) -> int:
    """On how many devices each chunk is."""
    return plan.topology.size // math.prod(plan.chunk_counts)


def _by(counts: Sequence[int]) -> str:
    total = math.prod(counts)
    grid = f" ({' x '.join(map(str, counts))})" if len(counts) > 1 and total > 1 else ""
    return counted(total, "chunk") + grid
