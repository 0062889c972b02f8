"""Reading: what is planned is read by threads, and arrays are made of it in one order everywhere."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import jax

from .. import _jax, _staging
from .._config import config
from .._coordination import agree
from .._errors import StorageError, build
from .._moves import Moves
from .._plan import Bounds, Chunk
from . import _bar, _boxes, _once
from ._budget import Budget, grouped, pipelined
from ._items import Item, tasks_of
from ._source import HostArray, Job, Source, Task

# Tensors that are read, sent and placed together are about so large.
_GROUP_BYTES = 16 * 2**20
_REMOTE_THREADS = 8


@dataclass(eq=False)
class _Group:
    items: Sequence[Item]
    nbytes: int
    values: list[dict[Chunk, HostArray]] = field(default_factory=list[dict[Chunk, HostArray]])
    moves: Moves = field(default_factory=Moves)


def read(
    items: Sequence[Item],
    sources: Sequence[Source],
    mode: _once.Mode,
    members: tuple[int, ...],
    budget: Budget,
    threads: int | None,
    processes_here: int,
    bar: _bar.Bar,
    name: str,
) -> list[jax.Array]:
    """The array of each item. With mode "once" it communicates, group by group."""
    sizes = [item.weight for item in items]
    largest = max(1, min(_GROUP_BYTES, budget.share // 2))
    groups = [
        _Group([items[i] for i in part], sum(sizes[i] for i in part))
        for part in grouped(sizes, largest)
    ]
    workers = threads or _default_threads(sources, processes_here)
    pool = ThreadPoolExecutor(workers, "hostmesh-read") if workers > 1 else None
    results: list[jax.Array] = []

    def begin(group: _Group) -> list[Future[None]]:
        jobs = _jobs(group, sources, mode)
        if pool is None:
            for job in jobs:
                job()
            return []
        return [pool.submit(job) for job in jobs]

    def end(group: _Group, futures: list[Future[None]]) -> Sequence[jax.Array]:
        wait(futures, return_when=FIRST_EXCEPTION)
        for future in futures:
            if future.done():
                future.result()
        if mode == "once" and len(members) > 1:
            _send(group, members, name)
        arrays = _placed(group)
        results.extend(arrays)
        bar.add(group.nbytes)
        return arrays

    try:
        pipelined(groups, lambda group: group.nbytes, begin, end, budget, 0 if pool is None else 3)
    finally:
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)
    return results


def _default_threads(sources: Sequence[Source], processes_here: int) -> int:
    if any(source.is_remote for source in sources):
        return _REMOTE_THREADS
    return max(1, min(8, (os.cpu_count() or 1) // processes_here))


def _jobs(group: _Group, sources: Sequence[Source], mode: _once.Mode) -> list[Job]:
    """Memory for a group's chunks, and what fills it from the sources."""
    me = jax.process_index()
    chunks = [(item, chunk) for item in group.items for chunk in item.plan.chunks(me)]
    try:
        memory = _staging.buffers(
            [item.plan.shard_shape for item, _ in chunks], [item.recipe.dtype for item, _ in chunks]
        )
    except MemoryError as error:
        raise build(
            StorageError,
            where=f"tensor {group.items[0].wanted.name!r} on process {me}",
            given=f"{group.nbytes} bytes of chunks: {error}",
            rule="the chunks of a tensor that one process holds are in host memory together",
            advice="cut it over more processes; or the file claims more than it holds",
        ) from None
    group.values = [{} for _ in group.items]
    where = {id(item): values for item, values in zip(group.items, group.values, strict=True)}
    tasks: dict[int, list[Task]] = {}
    for (item, chunk), values in zip(chunks, memory, strict=True):
        where[id(item)][chunk] = values
        for box in _own_boxes(group.moves, item, chunk, values, mode, me):
            for task in tasks_of(item, chunk, box, values):
                tasks.setdefault(task.stored.source, []).append(task)
    return [job for number, listed in tasks.items() for job in sources[number].jobs(listed)]


def _own_boxes(
    moves: Moves, item: Item, chunk: Chunk, values: HostArray, mode: _once.Mode, me: int
) -> list[Bounds]:
    """What this process reads of a chunk; the rest is noted as what comes, and what goes to others."""
    if mode == "read":
        return [item.box(chunk)]
    own: list[Bounds] = []
    holders = item.plan.holders(chunk)
    for number, (reader, box) in enumerate(item.parts(chunk)):
        piece = values[_boxes.within(box, item.box(chunk))]
        key = (item.number, chunk, number)
        if reader != me:
            moves.receive(reader, key, piece)
            continue
        own.append(box)
        for other in holders:
            if other != me:
                moves.send(other, key, piece)
    return own


def _send(group: _Group, members: tuple[int, ...], name: str) -> None:
    agreed = agree(f"{name}: replicas", data=group.moves.needs(), moves=True, processes=members)
    with agreed.turn():
        group.moves.run(agreed)
    group.moves = Moves()


def _placed(group: _Group) -> list[jax.Array]:
    """The arrays of a group; its memory is the arrays' from now on."""
    arrays: list[jax.Array] = []
    with _jax.explicit_transfers():
        for item, values in zip(group.items, group.values, strict=True):
            recipe = item.recipe
            parts: list[Any] = [values[chunk] for chunk in recipe.chunks]
            arrays.append(_jax.put(recipe.aval, recipe.sharding, parts, recipe.devices, True))
    group.values = []
    return arrays


def budget_of(processes_here: int) -> Budget:
    """This process's share of the host's budget."""
    return Budget(config.staging_bytes, processes_here)
