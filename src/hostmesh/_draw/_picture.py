"""What a picture shows, before it is text or SVG: sections of panels, each a grid of cells.

Made from a plan alone. A section shows a mesh, a global array or a host-local value: its last two
dimensions are the rows and columns of a panel, and those before them number the panels. What is too
large for its `Limits` is abridged: the first and the last are shown, with a count of those between.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .._layout import Chunk, layout_of
from .._plan import Plan
from ._words import array_note, local_note, local_place, mesh_note, place


@dataclass(frozen=True)
class Limits:
    """The most panels, rows and columns of a section, and processes and devices in a cell."""

    panels: int
    rows: int
    columns: int
    processes: int
    devices: int


UNLIMITED = Limits(*[1 << 30] * 5)


@dataclass(frozen=True)
class Stack:
    """Devices of one process in a cell, and how many of its devices are left out."""

    process: int
    positions: tuple[int, ...]
    more: int = 0


@dataclass(frozen=True)
class Cell:
    """A box: the devices in it by process, and how many processes and devices are left out.

    A hole is a chunk that none of the process's devices holds.
    """

    stacks: tuple[Stack, ...]
    more: int
    hole: bool = False


@dataclass(frozen=True)
class Slot:
    """A row, column or panel: its label, or how many stand here in one place."""

    label: str
    number: int | None


@dataclass(frozen=True)
class Panel:
    """Rows times columns of cells. `title` is empty where a section has one panel alone."""

    title: str
    rows: tuple[Slot, ...]
    columns: tuple[Slot, ...]
    cells: dict[tuple[int, int], Cell]


@dataclass(frozen=True)
class Section:
    """One grid of a picture, what it is, and how many of its panels are left out.

    `marked` is the process to tell from the others.
    """

    title: str
    note: str
    row_name: str
    column_name: str
    panels: tuple[Panel, ...]
    left_out: int
    marked: int | None = None


def sections_of(plan: Plan, name: str = "") -> list[Callable[[Limits], Section]]:
    """What makes the sections of a plan: its mesh, its array, and what its process passes."""
    makers: list[Callable[[Limits], Section]] = [
        lambda limits: mesh_section(plan, limits),
        lambda limits: array_section(plan, limits, name),
    ]
    if plan.process is not None and plan.topology.holds(plan.process):
        makers.append(lambda limits: local_section(plan, limits, name))
    return makers


def mesh_section(plan: Plan, limits: Limits) -> Section:
    """The devices where they stand in the mesh."""
    topology = plan.topology
    sizes = topology.process_indices.shape
    owners = topology.process_indices.ravel()

    def cell(at: tuple[int, ...]) -> Cell:
        position = sum(i * math.prod(sizes[k + 1 :]) for k, i in enumerate(at))
        process = int(owners[position])
        return Cell((Stack(process, (position,)),), 0)

    names = " x ".join(f"{axis}={size}" for axis, size in topology.axes) or "of no axis"
    return _section(
        f"Mesh {names}",
        mesh_note(topology),
        topology.axis_names,
        [[str(i) for i in range(size)] for size in sizes],
        cell,
        limits,
        _marked(plan),
    )


def array_section(plan: Plan, limits: Limits, name: str = "") -> Section:
    """The chunks of the global array, and the devices that hold each."""
    groups = _positions_by_chunk(plan)
    owners = plan.topology.process_indices.ravel()

    def cell(chunk: tuple[int, ...]) -> Cell:
        positions = groups[int(np.ravel_multi_index(chunk, plan.chunk_counts)) if chunk else 0]
        return _cell(positions, owners[positions], limits)

    return _section(
        f"Global array{' ' + name if name else ''} {plan.global_shape}",
        array_note(plan),
        _dimensions(plan),
        [
            [place(c, size) for c in range(n)]
            for n, size in zip(plan.chunk_counts, plan.shard_shape, strict=True)
        ],
        cell,
        limits,
        _marked(plan),
    )


def local_section(plan: Plan, limits: Limits, name: str = "") -> Section:
    """The host-local value of the plan's process: its place in the global array, and the holes."""
    process, local = plan.process, plan.local_shape()
    assert process is not None
    assert local is not None
    mine = plan.topology.positions(process)
    positions: dict[Chunk, list[int]] = {}
    for placement in plan.placements():
        positions.setdefault(placement.chunk, []).append(placement.position)
    numbers = [
        range(n) if whole else sorted({chunk[i] for chunk in positions})
        for i, (n, whole) in enumerate(zip(plan.chunk_counts, plan.whole, strict=True))
    ]

    def cell(at: tuple[int, ...]) -> Cell:
        chunk = tuple(held[i] for held, i in zip(numbers, at, strict=True))
        found = np.array(positions.get(chunk, []), np.intp)
        if not len(found):
            return Cell((), 0, hole=True)
        return _cell(found, np.full(len(found), process), limits)

    labels = [
        [local_place(rank, c, n, size) for rank, c in enumerate(held)]
        for held, n, size in zip(numbers, plan.chunk_counts, plan.shard_shape, strict=True)
    ]
    holes = math.prod(map(len, numbers)) - len(positions)
    return _section(
        f"Process {process}'s local array:{' ' + name if name else ''} {local}",
        local_note(len(mine), numbers, holes),
        _dimensions(plan),
        labels,
        cell,
        limits,
    )


def _section(
    title: str,
    note: str,
    names: Sequence[str],
    labels: Sequence[Sequence[str]],
    cell: Callable[[tuple[int, ...]], Cell],
    limits: Limits,
    marked: int | None = None,
) -> Section:
    # A value of fewer than two dimensions is one row.
    names = ["", "", *names]
    padded = [[""], [""], *labels]
    *leading, rows, columns = padded[-max(2, len(labels)) :]
    row_slots, column_slots = _slots(rows, limits.rows), _slots(columns, limits.columns)
    combinations = math.prod(map(len, leading))
    # Far too many are never listed: those that are shown come first.
    shown = limits.panels if combinations > limits.panels else combinations
    panels: list[Panel] = []
    for at in itertools.islice(itertools.product(*(range(len(part)) for part in leading)), shown):
        cells: dict[tuple[int, int], Cell] = {}
        for (r, row), (c, column) in itertools.product(
            enumerate(row_slots), enumerate(column_slots)
        ):
            if row.number is not None and column.number is not None:
                whole = (0, 0, *at, row.number, column.number)
                cells[r, c] = cell(whole[len(whole) - len(labels) :])
        title_of = ", ".join(
            f"{axis} {part[i]}"
            for axis, part, i in zip(names[-len(labels) : -2], leading, at, strict=True)
        )
        panels.append(Panel(title_of if leading else "", row_slots, column_slots, cells))
    return Section(title, note, names[-2], names[-1], tuple(panels), combinations - shown, marked)


def _slots(labels: Sequence[str], most: int) -> tuple[Slot, ...]:
    """All labels, or the first of them, a count, and the last."""
    if len(labels) <= most:
        return tuple(Slot(label, number) for number, label in enumerate(labels))
    first = max(1, most - 2)
    return (
        *(Slot(labels[number], number) for number in range(first)),
        Slot(f"{len(labels) - first - 1:,} more", None),
        Slot(labels[-1], len(labels) - 1),
    )


def _cell(positions: Iterable[int], owners: Iterable[int], limits: Limits) -> Cell:
    by: dict[int, list[int]] = {}
    for position, process in zip(positions, owners, strict=True):
        by.setdefault(int(process), []).append(int(position))
    shown = sorted(by)
    if len(shown) > limits.processes:
        shown = shown[: max(1, limits.processes - 1)]
    stacks = tuple(
        Stack(p, tuple(by[p][: limits.devices]), max(0, len(by[p]) - limits.devices)) for p in shown
    )
    return Cell(stacks, len(by) - len(shown))


def _positions_by_chunk(plan: Plan) -> npt.NDArray[np.intp]:
    """For each chunk, row-major, the positions that hold it, ascending: as many for every chunk."""
    topology, layout = plan.topology, layout_of(plan.topology, plan.axes)
    at = topology.coordinates(np.arange(topology.size))
    flat = np.zeros(topology.size, np.intp)
    for count, cut in zip(layout.counts, layout.strides, strict=True):
        flat = flat * count + sum((at[:, axis] * step for axis, step in cut), np.intp(0))
    return np.argsort(flat, kind="stable").reshape(math.prod(layout.counts), -1)


def _marked(plan: Plan) -> int | None:
    process = plan.process
    return process if process is not None and plan.topology.holds(process) else None


def _dimensions(plan: Plan) -> tuple[str, ...]:
    return tuple(
        f"dim {i}" + (f" ({', '.join(axes)})" if axes else "") for i, axes in enumerate(plan.axes)
    )
