"""`hostmesh plan --load`: the bill of loading a model: read, sent and held, by process and host.

The numbers are those of `load_safetensors(..., explain=True)`, for a cluster that need not be there:
counted for all chunks of a layout at once, as models have few layouts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from . import _plan_links
from ._config import config
from ._draw._words import counted
from ._plan import Plan
from ._plan_rules import Tensor
from ._storage._boxes import elements
from ._storage._once import Load, Mode, choose, shares
from ._topology import Topology
from ._transfers import holders_by_chunk

Numbers: TypeAlias = npt.NDArray[np.int64]

_SHOWN = 8


@dataclass(frozen=True)
class Held:
    """The chunks of one layout: a row for each, a column for each process that holds it.

    `held` tells holders from what fills up a row. `turns` says who begins where a chunk is read by
    one of its holders, `near` how many other holders are on the holder's host. `read` is what each
    holder reads of a chunk where each byte is read once, and then sends to every other holder.
    """

    holders: Numbers
    held: npt.NDArray[np.bool_]
    turns: Numbers
    near: Numbers
    read: Numbers


@dataclass(frozen=True)
class Bill:
    """Bytes by process number: of what is stored, and of what is held of it.

    `own` is what a process would read where each reads its chunks, `share` where each chunk is read
    by one of its holders; `near` and `far` is what it sends on then, to processes of its host and
    to others. `devices` is what its devices hold at the end, `staging` host memory on the way.
    `layouts` tell who sends to whom: see `received`.
    """

    own: Numbers
    share: Numbers
    near: Numbers
    far: Numbers
    devices: Numbers
    staging: Numbers
    layouts: tuple[Held, ...]


def bill(tensors: Sequence[Tensor], topology: Topology, host_of: Sequence[int] | None) -> Bill:
    """Counts what all processes do for the tensors that have a plan."""
    number = max(topology.processes) + 1
    own, share, near, far, devices, result = (np.zeros(number, np.int64) for _ in range(6))
    count = np.bincount(topology.process_indices.ravel(), minlength=number)
    hosts = np.arange(number) if host_of is None else np.asarray(host_of)
    known: dict[object, Held] = {}
    widest = 0
    for index, tensor in enumerate(tensors):
        if (made := tensor.plan) is None:
            continue
        if made.axes not in known:
            known[made.axes] = _holding(made, hosts)
        layout = known[made.axes]
        native = tensor.native.itemsize
        size = math.prod(made.shard_shape)
        chunks = np.bincount(layout.holders[layout.held], minlength=number)
        own += chunks * size * tensor.dtype.itemsize
        result += chunks * size * native
        devices += count * size * native
        most = min(topology.most_devices, math.prod(made.chunk_counts))
        widest = max(widest, most * size * native)
        holding = layout.held.sum(1)
        for several in np.unique(holding).tolist():
            rows = np.flatnonzero(holding == several)
            for rank, nbytes in _parts(made, several, tensor.dtype.itemsize):
                column = (index + layout.turns[rows]) % several if rank is None else rank
                layout.read[rows, column] += nbytes
    for layout in known.values():
        readers, read = layout.holders[layout.held], layout.read[layout.held]
        others = np.broadcast_to(layout.held.sum(1, keepdims=True) - 1, layout.held.shape)
        beside = layout.near[layout.held]
        np.add.at(share, readers, read)
        np.add.at(near, readers, read * beside)
        np.add.at(far, readers, read * (others[layout.held] - beside))
    together = 1 if host_of is None else int(np.bincount(hosts).max())
    least = max(config.staging_bytes // together, widest)
    staging = np.minimum(result, least)
    return Bill(own, share, near, far, devices, staging, tuple(known.values()))


def received(found: Bill, to: int, group_of: Sequence[int]) -> Numbers:
    """The bytes that the processes of a group get of each group, where each byte is read once.

    A group is a process, or a host: what processes of a host send each other counts as its own.
    """
    groups = np.asarray(group_of)
    sent = np.zeros(int(groups.max()) + 1, np.int64)
    for layout in found.layouts:
        of = groups[layout.holders]
        here = (of == to) & layout.held
        times = here.sum(1, keepdims=True) - here  # a reader does not send to itself
        np.add.at(sent, of[layout.held], (layout.read * times)[layout.held])
    return sent


def _holding(plan: Plan, hosts: Numbers) -> Held:
    """The chunks of a plan's layout, of which nothing is read yet."""
    holders, count = holders_by_chunk(plan)
    held = np.arange(holders.shape[1])[None, :] < count[:, None]
    turns = np.zeros(plan.chunk_counts, np.int64)
    for number, count_along in enumerate(plan.chunk_counts):
        turns += np.arange(count_along).reshape(-1, *[1] * (turns.ndim - number - 1))
    homes = hosts[holders]
    near = np.zeros(holders.shape, np.int64)
    for host in np.unique(homes):
        here = (homes == host) & held
        near += np.where(here, here.sum(1, keepdims=True) - 1, 0)
    return Held(holders, held, turns.ravel(), near, np.zeros(holders.shape, np.int64))


def _parts(plan: Plan, several: int, itemsize: int) -> list[tuple[int | None, int]]:
    """Who of a chunk's holders reads how many bytes of it; `None` for one of them, by turns."""
    box = tuple((0, size) for size in plan.shard_shape)
    found = shares(box, tuple(range(several)), itemsize, 0)
    if len(found) == 1:
        return [(None, elements(box) * itemsize)]
    return [(rank, elements(part) * itemsize) for rank, part in found]


def facts(
    tensors: Sequence[Tensor],
    topology: Topology,
    host_of: list[int] | None,
    replicas: str,
    file: str,
) -> dict[str, Any]:
    """The bill in bytes, for the way of reading that a load would choose."""
    found = bill(tensors, topology, host_of)
    processes = list(topology.processes)
    loads = [Load(int(found.own[p]), int(found.share[p])) for p in processes]
    mode: Mode
    mode, why = choose(replicas, loads, "://" in file, "hostmesh plan")
    once = mode == "once"
    read = found.share if once else found.own
    rows = [
        {
            "process": p,
            "reads": int(read[p]),
            "receives": int(found.own[p] - read[p]),
            "sends": int(found.near[p] + found.far[p]) if once else 0,
            "on_its_devices": int(found.devices[p]),
            "staging": int(found.staging[p]),
        }
        for p in processes
    ]
    by_host: list[dict[str, int]] = []
    if host_of is not None:
        for host in sorted({host_of[p] for p in processes}):
            mine = [row for row in rows if host_of[row["process"]] == host]
            by_host.append({"host": host, "processes": len(mine), **_summed(mine)})

    def links(groups: Sequence[int], numbers: Sequence[int]) -> dict[int, list[int]]:
        shown = _plan_links.shown(numbers)
        return {to: (received(found, to, groups) * once).tolist() for to in shown}

    return {
        "file": file,
        "tensors": sum(tensor.plan is not None for tensor in tensors),
        "wrong": [tensor.name for tensor in tensors if tensor.plan is None],
        "replicas": mode,
        "why": why,
        "processes": rows,
        "hosts": by_host,
        "links": {
            "between_processes_of_a_host": int(found.near.sum()) if once else 0,
            "between_hosts" if host_of else "between_processes": int(found.far.sum())
            if once
            else 0,
        },
        "received_from": links(range(len(found.own)), processes),
        "hosts_received_from": links(host_of, [row["host"] for row in by_host]) if host_of else {},
        "in_all": _summed(rows),
        "read_if_each_reads_its_own": int(found.own.sum()),
        "read_if_each_byte_is_read_once": int(found.share.sum()),
    }


def _summed(rows: Sequence[dict[str, int]]) -> dict[str, int]:
    return {key: sum(row[key] for row in rows) for key in _COLUMNS}


_COLUMNS = ("reads", "receives", "sends", "on_its_devices", "staging")


def lines(found: dict[str, Any]) -> list[str]:
    """The bill for people."""
    links, rows = found["links"], found["processes"]
    said = [
        f"Loading {counted(found['tensors'], 'tensor')} of {found['file']}, in bytes;"
        f" replicas={found['replicas']!r}",
        *(f"  {part}" for part in f"({found['why']})".split("; ")),
        "",
        *_table("process", rows),
    ]
    if found["hosts"]:
        said += ["", *_table("host", found["hosts"])]
    said += ["", "Sent: " + ", ".join(f"{n:,} {k.replace('_', ' ')}" for k, n in links.items())]
    if any(links.values()):
        said += _links("process", found["received_from"], len(rows))
        if found["hosts"]:
            said += _links("host", found["hosts_received_from"], len(found["hosts"]))
        said.append("")
    peak = max(rows, key=lambda row: row["on_its_devices"] + row["staging"])
    said += [
        f"Peak on process {peak['process']}: {peak['on_its_devices']:,} on its devices,",
        f"  and at most {peak['staging']:,} in host memory on the way",
        f"Read in all: {found['in_all']['reads']:,};"
        f" {found['read_if_each_reads_its_own']:,} where each reads its own,",
        f"  {found['read_if_each_byte_is_read_once']:,} where each byte is read once",
    ]
    if found["wrong"]:
        said.append(
            f"Left out, as they cannot be laid out: {', '.join(found['wrong'][:_SHOWN])}"
            + (
                f" and {len(found['wrong']) - _SHOWN:,} more"
                if len(found["wrong"]) > _SHOWN
                else ""
            )
        )
    return said


def _links(kind: str, received_from: dict[int, list[int]], count: int) -> list[str]:
    within = "; a host to itself: between its processes" if kind == "host" else ""
    head = f"From {kind} (row) to {kind} (column){within}:"
    return ["", head, *_plan_links.table(received_from, count)]


def _table(kind: str, rows: Sequence[dict[str, int]]) -> list[str]:
    shown = list(rows) if len(rows) <= _SHOWN else [*rows[: _SHOWN - 1], rows[-1]]
    cells = [[kind, *(name.replace("_", " ") for name in _COLUMNS)]]
    cells += [[str(row[kind]), *(f"{row[name]:,}" for name in _COLUMNS)] for row in shown]
    cells.append(["in all", *(f"{sum(row[name] for row in rows):,}" for name in _COLUMNS)])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    drawn = [
        "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
        for row in cells
    ]
    if len(rows) > len(shown):
        drawn.insert(-2, f"{'...':>{widths[0]}}  {len(rows) - len(shown):,} more")
    return drawn
