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
class Bill:
    """Bytes by process number: of what is stored, and of what is held of it.

    `own` is what a process would read where each reads its chunks, `share` where each chunk is read
    by one of its holders; `near` and `far` is what it sends on then, to processes of its host and
    to others. `devices` is what its devices hold at the end, `staging` host memory on the way.
    """

    own: Numbers
    share: Numbers
    near: Numbers
    far: Numbers
    devices: Numbers
    staging: Numbers


def bill(tensors: Sequence[Tensor], topology: Topology, host_of: Sequence[int] | None) -> Bill:
    """Counts what all processes do for the tensors that have a plan."""
    number = max(topology.processes) + 1
    own, share, near, far, devices, result = (np.zeros(number, np.int64) for _ in range(6))
    count = np.bincount(topology.process_indices.ravel(), minlength=number)
    hosts = np.arange(number) if host_of is None else np.asarray(host_of)
    known: dict[object, Any] = {}
    widest = 0
    for index, tensor in enumerate(tensors):
        if (made := tensor.plan) is None:
            continue
        if made.axes not in known:
            known[made.axes] = _holding(made, hosts)
        holders, held, turns, same = known[made.axes]
        native = tensor.native.itemsize
        size = math.prod(made.shard_shape)
        chunks = np.bincount(holders[held], minlength=number)
        own += chunks * size * tensor.dtype.itemsize
        result += chunks * size * native
        devices += count * size * native
        most = min(topology.most_devices, math.prod(made.chunk_counts))
        widest = max(widest, most * size * native)
        for several in np.unique(held.sum(1)).tolist():
            of = held.sum(1) == several
            for rank, nbytes in _parts(made, several, tensor.dtype.itemsize, index):
                column = (index + turns[of]) % several if rank is None else rank
                reader = np.take_along_axis(holders[of], _as_column(column, of), 1)[:, 0]
                beside = np.take_along_axis(same[of], _as_column(column, of), 1)[:, 0]
                np.add.at(share, reader, nbytes)
                np.add.at(near, reader, nbytes * beside)
                np.add.at(far, reader, nbytes * (several - 1 - beside))
    together = 1 if host_of is None else int(np.bincount(hosts).max())
    least = max(config.staging_bytes // together, widest)
    return Bill(own, share, near, far, devices, np.minimum(result, least))


def _holding(plan: Plan, hosts: Numbers) -> tuple[Numbers, npt.NDArray[np.bool_], Numbers, Numbers]:
    """For each chunk its holders, which of them count, its turn, and how many share each's host."""
    holders, count = holders_by_chunk(plan)
    held = np.arange(holders.shape[1])[None, :] < count[:, None]
    turns = np.zeros(plan.chunk_counts, np.int64)
    for number, count_along in enumerate(plan.chunk_counts):
        turns += np.arange(count_along).reshape(-1, *[1] * (turns.ndim - number - 1))
    homes = hosts[holders]
    same = np.zeros(holders.shape, np.int64)
    for host in np.unique(homes):
        here = (homes == host) & held
        same += np.where(here, here.sum(1, keepdims=True) - 1, 0)
    return holders, held, turns.ravel(), same


def _parts(plan: Plan, several: int, itemsize: int, turn: int) -> list[tuple[int | None, int]]:
    """Who of a chunk's holders reads how many bytes of it; `None` for one of them, by turns."""
    box = tuple((0, size) for size in plan.shard_shape)
    found = shares(box, tuple(range(several)), itemsize, 0)
    if len(found) == 1:
        return [(None, elements(box) * itemsize)]
    return [(rank, elements(part) * itemsize) for rank, part in found]


def _as_column(column: Any, of: npt.NDArray[np.bool_]) -> Numbers:
    return np.broadcast_to(np.asarray(column), (int(of.sum()),))[:, None].astype(np.int64)


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
