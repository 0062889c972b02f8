"""What a load would do, for people: `explain=True`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import _boxes, _once
from ._items import Item
from ._source import Source
from ._wanted import reads


@dataclass(frozen=True)
class ProcessReads:
    """What one process does in a load, in bytes.

    Attributes:
      process: the process.
      files: bytes of data that it reads from each file, headers apart.
      received: bytes that other processes send it.
      result: bytes of the distinct chunks that it holds then.
      staging: bytes of host memory that it needs at a time on the way, at most.
    """

    process: int
    files: dict[str, int]
    received: int
    result: int
    staging: int

    @property
    def nbytes(self) -> int:
        """Bytes that it reads from all files."""
        return sum(self.files.values())


@dataclass(frozen=True)
class LoadPlan:
    """The plan of a load: who reads what. Print it.

    Attributes:
      function: what would be called.
      tensors: how many arrays it makes.
      replicas: how chunks are read that several processes hold: "read" by each, or "once" by one.
      why: the reason for that.
      processes: what each process does.
      over_read: bytes that this process's storage gives up to the bytes that are used, as a ratio.
    """

    function: str
    tensors: int
    replicas: str
    why: str
    processes: tuple[ProcessReads, ...]
    over_read: float

    def __str__(self) -> str:
        lines = [
            f"{self.function}: {self.tensors} tensors; replicas={self.replicas!r} ({self.why});"
            f" over-read here {self.over_read:.2f}x",
            "process        reads     receives        holds      staging  files",
        ]
        lines += [
            f"{p.process:7d} {p.nbytes:12d} {p.received:12d} {p.result:12d} {p.staging:12d}  "
            f"{len(p.files)}"
            for p in self.processes
        ]
        return "\n".join(lines)


def explained(
    function: str,
    items: Sequence[Item],
    sources: Sequence[Source],
    mode: _once.Mode,
    why: str,
    staging: int,
    me: int,
) -> LoadPlan:
    """The plan in numbers. Costs time in all processes of the mesh."""
    processes = sorted({p for item in items for p in item.plan.topology.processes})
    return LoadPlan(
        function,
        len(items),
        mode,
        why,
        tuple(_of(p, items, sources, mode, staging) for p in processes),
        over_read(items, sources, mode, me),
    )


def _of(
    process: int, items: Sequence[Item], sources: Sequence[Source], mode: _once.Mode, staging: int
) -> ProcessReads:
    files: dict[str, int] = {}
    held = result = read = widest = 0
    for item in items:
        chunks = len(item.plan.chunks(process))
        elements = _boxes.elements(tuple((0, size) for size in item.plan.shard_shape))
        held += chunks * elements * item.stored_itemsize
        result += chunks * elements * item.recipe.dtype.itemsize
        widest = max(widest, item.weight)
        for _, box in item.boxes(process, mode):
            for piece, there, _ in reads(item.wanted, box):
                size = _boxes.elements(there) * item.stored_itemsize
                name = sources[piece.stored.source].name
                files[name] = files.get(name, 0) + size
                read += size
    return ProcessReads(process, files, held - read, result, min(result, max(staging, widest)))


def over_read(
    items: Sequence[Item], sources: Sequence[Source], mode: _once.Mode, process: int
) -> float:
    """How many times the bytes that a process uses its storage has to give up, about."""
    useful, touched = wasted(items, sources, mode, process)
    return touched / useful if useful else 1.0


def has_short_runs(item: Item) -> bool:
    """Whether a process may read runs of an item that are shorter than what storage gives at once."""
    shape, whole = item.plan.shard_shape, item.wanted.shape
    run = _boxes.run_of(whole, item.stored_itemsize, tuple((0, size) for size in shape))
    return not item.is_plain or run < _boxes.LEAST_RUN


def wasted(
    items: Sequence[Item], sources: Sequence[Source], mode: _once.Mode, process: int
) -> tuple[int, int]:
    """Bytes that a process uses, and those that it makes its storage read for them."""
    useful = touched = 0
    known: dict[object, tuple[int, int]] = {}
    for item in items:
        key: object = item.number
        if item.is_plain and mode == "read":
            key = item.layout, item.wanted.pieces[0].stored.source
        if key not in known:
            known[key] = _wasted(item, sources, mode, process)
        useful, touched = useful + known[key][0], touched + known[key][1]
    return useful, max(touched, useful)


def _wasted(
    item: Item, sources: Sequence[Source], mode: _once.Mode, process: int
) -> tuple[int, int]:
    useful = 0
    spans: dict[int, list[int]] = {}
    for _, box in item.boxes(process, mode):
        for piece, there, _ in reads(item.wanted, box):
            kind, size = piece.stored, piece.stored.dtype.itemsize
            if _boxes.is_empty(there):
                continue
            nbytes = _boxes.elements(there) * size
            useful += nbytes
            source = sources[kind.source]
            if source.is_remote:
                parts = _boxes.cut(kind.shape, size, there, source.gap, source.largest)
                cost = sum(b - a for a, b in (_boxes.span_of(kind.shape, size, p) for p in parts))
            else:
                cost = _boxes.pages_touched(kind.shape, size, there)
            start, stop = _boxes.span_of(kind.shape, size, there)
            found = spans.setdefault(id(kind), [start, stop, 0])
            found[0], found[1] = min(start, found[0]), max(stop, found[1])
            found[2] += max(cost, nbytes)
    # Chunks side by side share what lies between them.
    return useful, sum(min(stop - start, cost) for start, stop, cost in spans.values())
