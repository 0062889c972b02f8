"""Whether processes hold the same values, by digest; and where they do not, what differs.

Equal values cost one agreement and 33 bytes of each process, however much is compared, and whoever
holds what: each process adds up the digests of what it holds, times a coefficient. The coefficients
of the holders of a thing add up to 0 (the first one's is the number of others, theirs are -1), and
so do the sums of all processes if the holders' digests are equal; if not, they do so with a
probability of 2^-100 or less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import numpy.typing as npt
import xxhash

from . import _transport
from ._coordination import Agreement, agree
from ._errors import DivergenceError, build
from ._kinds import Kind
from ._packing import pack
from ._stream import Bytes, Stream
from ._verdict import groups, name_processes

# Values are read, and where they differ sent, in blocks of this many bytes.
BLOCK = 2**20
CLAUSE = "\t"  # parts the clauses of a line
# Of so many things that differ an error says what differs; it names the others.
_DETAILED = 5
_MODULUS = 2**128

# The number of a leaf; with the chunk after it where only a chunk of it is meant.
Name: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Item:
    """Something this process holds, the processes that hold it, and how to read it."""

    name: Name
    holders: tuple[int, ...]
    values: Callable[[], npt.NDArray[Any]]


@dataclass(frozen=True)
class Subject:
    """An item in words, for errors; `origin` is where its first element lies in what it is of."""

    label: str
    kind: Kind
    origin: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Claim:
    """What should be equal between processes, and how to say what is not.

    Attributes:
      items: what this process holds.
      layout: what must be the same before values can be compared, such as structure and shapes.
      lines: the same in words for an error, line by line: what is compared, and what is shown, of
        one or more clauses that `CLAUSE` parts: first what it is about, then what may differ.
      subject: any process's item in words.
      nan: "bits", or how NaNs compare where floats are compared by value: "equal" or "unequal".
    """

    items: Sequence[Item]
    layout: str
    lines: Callable[[], Sequence[tuple[str, str]]]
    subject: Callable[[Name], Subject]
    rule: str
    advice: str
    nan: str = "bits"


def digests(claim: Claim) -> dict[Name, bytes]:
    """The digests of what this process holds and others too. It reads all of it once."""
    return {
        item.name: _digest(_blocks(values), values.dtype, claim.nan)
        for item in claim.items
        if len(item.holders) > 1 or claim.nan == "unequal"
        for values in [item.values()]
    }


def require_equal(
    name: str,
    claim: Claim,
    own: Mapping[Name, bytes],
    processes: Sequence[int],
    timeout: float | None,
) -> None:
    """Raises `DivergenceError` on all processes where some do not hold the same."""
    me, total = jax.process_index(), 0
    for item in claim.items:
        if len(item.holders) > 1:
            others = len(item.holders) - 1
            keyed = xxhash.xxh3_128_intdigest(pack(item.name) + own[item.name])
            total += keyed * (others if me == item.holders[0] else -1)
    strange = any(digest[-1] for digest in own.values())
    head = xxhash.xxh3_128_digest(claim.layout.encode())
    data = head + (total % _MODULUS).to_bytes(16, "big") + bytes([strange])
    agreed = agree(name, data=data, moves=True, processes=processes, timeout=timeout)
    with agreed.turn():
        if len({post[:16] for post in agreed.data}) > 1:
            raise _other_layout(name, claim, agreed)
        sums = (int.from_bytes(post[16:32], "big") for post in agreed.data)
        if sum(sums) % _MODULUS or any(post[32] for post in agreed.data):
            raise _other_values(name, claim, own, agreed)


def _blocks(values: npt.NDArray[Any]) -> Iterator[Bytes]:
    return (_block(values, start) for start in range(0, values.nbytes, BLOCK))


def _block(values: npt.NDArray[Any], start: int) -> Bytes:
    """The bytes from `start` in C order: a view where values are contiguous."""
    if values.flags.c_contiguous:
        return values.reshape(-1).view(np.uint8)[start : start + BLOCK]
    block = np.empty(min(BLOCK, values.nbytes - start), np.uint8)
    Stream([values]).read(block, start)
    return block


def _digest(blocks: Iterator[Bytes], dtype: np.dtype[Any], nan: str) -> bytes:
    """16 bytes, and one that tells whether there is a NaN that is equal to nothing."""
    digest, strange = xxhash.xxh3_128(), False
    for block in blocks:
        if nan == "bits" or not _is_inexact(dtype):
            digest.update(block.data)
        else:
            with np.errstate(all="ignore"):
                numbers = _numbers(block, dtype) + 0.0  # makes -0.0 a 0.0
            where = np.isnan(numbers)
            numbers[where] = np.nan
            strange |= nan == "unequal" and bool(where.any())
            digest.update(numbers.data)
    return digest.digest() + bytes([strange])


def _is_inexact(dtype: np.dtype[Any]) -> bool:
    return bool(jnp.issubdtype(dtype, np.inexact))


def _numbers(block: Bytes, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Float values as rows of their real components, in a dtype that NumPy has."""
    values = block.view(dtype)
    if dtype.kind == "c":
        return values.view(f"f{dtype.itemsize // 2}").reshape(-1, 2)
    return (values.astype(np.float32) if dtype.itemsize < 4 else values).reshape(-1, 1)


def _other_layout(name: str, claim: Claim, agreed: Agreement) -> DivergenceError:
    """The first line in which processes differ, for all of them to say."""
    lines = claim.lines()
    marks = b"".join(xxhash.xxh3_64_digest(compared.encode()) for compared, _ in lines)
    every = _transport.messages(marks, agreed.members)
    longest = max(map(len, every))
    first = next(at for at in range(0, longest + 8, 8) if len({m[at : at + 8] for m in every}) > 1)
    shown = lines[first // 8][1] if first // 8 < len(lines) else "nothing more"
    told = _transport.messages(shown.encode(), agreed.members)
    layouts = groups(dict(zip(agreed.members, told, strict=True)))
    return build(
        DivergenceError,
        where=f"{name} at {agreed.site} on process {jax.process_index()}",
        given=_side_by_side({text.decode(): who for text, who in layouts.items()}),
        rule="structure, dtypes, shapes and layout are the same on all processes",
        advice="give these processes the same there: look at what each has read, and by which branch",
    )


def _side_by_side(texts: Mapping[str, Sequence[int]]) -> str:
    """Which processes have which text. Clauses that all have are said once.

    >>> _side_by_side(
    ...     {"leaf x:\\tfloat32[4]\\tby P('x')": [0, 2], "leaf x:\\tint8[4]\\tby P('x')": [1]}
    ... )
    "leaf x: processes 0, 2: float32[4]; process 1: int8[4]; all: by P('x')"
    """
    parts = [text.split(CLAUSE) for text in texts]
    head, same, differ = "", [], [[" ".join(clauses) for clauses in parts]]
    if len(texts) > 1 and len(set(map(len, parts))) == len({own[0] for own in parts}) == 1:
        head = f"{parts[0][0]} "
        columns = list(zip(*parts, strict=True))[1:]
        same = [column[0] for column in columns if len(set(column)) == 1]
        differ = [column for column in columns if len(set(column)) > 1]
    own = (" ".join(clauses) for clauses in zip(*differ, strict=True))
    told = "; ".join(
        f"{name_processes(who)}: {text}" for who, text in zip(texts.values(), own, strict=True)
    )
    return f"{head}{told}" + f"; all: {' '.join(same)}" * bool(same)


def _other_values(
    name: str, claim: Claim, own: Mapping[Name, bytes], agreed: Agreement
) -> DivergenceError:
    """What differs, found together: digests of items, then of their blocks, then blocks themselves."""
    members = agreed.members
    held: dict[Name, dict[int, bytes]] = {}
    for process, message in zip(
        members, _transport.messages(pack(list(own.items())), members), strict=True
    ):
        for item, digest in msgpack.unpackb(message):
            held.setdefault(tuple(item), {})[process] = digest
    differing = {
        item: by_process
        for item, by_process in sorted(held.items())
        if len(set(by_process.values())) > 1 or any(d[-1] for d in by_process.values())
    }
    detailed = list(differing)[:_DETAILED]
    mine = {item.name: item.values() for item in claim.items if item.name in detailed}
    found = _find_differences(claim, detailed, differing, mine, members)
    every = [
        msgpack.unpackb(message)
        for message in _transport.messages(pack([f.packed() for f in found]), members)
    ]
    by_process = dict(zip(members, every, strict=True))
    told = [
        _told(claim, item, differing[item], {p: by_process[p][number] for p in differing[item]})
        for number, item in enumerate(detailed)
    ]
    if rest := [claim.subject(item).label for item in list(differing)[_DETAILED:]]:
        shown = ", ".join(rest[:20]) + (f" and {len(rest) - 20} more" if len(rest) > 20 else "")
        told.append(f"and {shown}")
    return build(
        DivergenceError,
        where=f"{name} at {agreed.site} on process {jax.process_index()}",
        given="\n".join(told) or "values that changed while they were compared",
        rule=claim.rule,
        advice=claim.advice,
    )


def _find_differences(
    claim: Claim,
    items: Sequence[Name],
    differing: Mapping[Name, Mapping[int, bytes]],
    mine: Mapping[Name, npt.NDArray[Any]],
    members: tuple[int, ...],
) -> list[_Found]:
    """How this process's values differ from those of the process that each item is measured by."""
    sent = [
        [_digest(iter([block]), values.dtype, claim.nan) for block in _blocks(values)]
        for item in items
        for values in ([mine[item]] if item in mine else [np.empty(0)])
    ]
    every = [msgpack.unpackb(m) for m in _transport.messages(pack(sent), members)]
    results: list[_Found] = []
    for number, item in enumerate(items):
        kind = claim.subject(item).kind
        judge = next(iter(groups(differing[item]).values()))[0]
        held = (e[number] for p, e in zip(members, every, strict=True) if p in differing[item])
        result = _Found(kind, claim.nan)
        for place, marks in enumerate(zip(*held, strict=True)):
            if len(set(marks)) == 1 and not marks[0][-1]:
                continue
            start = place * BLOCK
            block = _block(mine[item], start) if item in mine else None
            is_judge = jax.process_index() == judge
            _transport.broadcast(
                min(BLOCK, kind.nbytes - start),
                members,
                members.index(judge),
                _reader(block) if is_judge and block is not None else None,
                _comparer(result, block, start),
            )
        results.append(result)
    return results


def _reader(block: Bytes) -> _transport.Fill:
    def read(out: Bytes, start: int) -> None:
        out[...] = block[start : start + len(out)]

    return read


def _comparer(result: _Found, block: Bytes | None, begin: int) -> _transport.Take:
    def compare(rows: Bytes, start: int) -> None:
        if block is not None:
            result.add(block[start : start + rows.shape[-1]], rows[0], begin + start)

    return compare


class _Found:
    """The differences of one process's values from those of another, taken in piece by piece."""

    def __init__(self, kind: Kind, nan: str) -> None:
        self._dtype = np.dtype(kind.dtype)
        self._nan = nan
        self._count = self._first = 0
        self._here = self._there = b""
        self._largest: float | None = None  # as long as all differences are NaN

    def packed(self) -> list[Any]:
        return [self._count, self._first, self._here, self._there, self._largest]

    def add(self, own: Bytes, other: Bytes, start: int) -> None:
        """Compares a piece that begins at byte `start`."""
        places = np.flatnonzero(self._unequal(own, other))
        if not len(places):
            return
        here, there = own.view(self._dtype)[places], other.view(self._dtype)[places]
        if not self._count:
            self._first = start // self._dtype.itemsize + int(places[0])
            self._here, self._there = here[:1].tobytes(), there[:1].tobytes()
        self._count += len(places)
        sizes = _differences(here, there)
        if len(sizes):
            self._largest = max(sizes.max().item(), self._largest or 0)

    def _unequal(self, own: Bytes, other: Bytes) -> npt.NDArray[Any]:
        if self._nan == "bits" or not _is_inexact(self._dtype):
            return (own != other).reshape(-1, self._dtype.itemsize).any(axis=1)
        a, b = _numbers(own, self._dtype), _numbers(other, self._dtype)
        same = a == b
        if self._nan == "equal":
            same |= np.isnan(a) & np.isnan(b)
        return ~same.all(axis=1)


def _differences(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """By how much values differ, without those of which one is NaN."""
    if _is_inexact(a.dtype):
        wide = np.complex128 if a.dtype.kind == "c" else np.float64
        with np.errstate(all="ignore"):
            sizes = np.abs(a.astype(wide) - b.astype(wide))
        return sizes[~np.isnan(sizes)]
    if a.dtype.kind != "u":
        a, b = a.astype(np.int64), b.astype(np.int64)
    # In unsigned arithmetic, modulo 2^64, the larger less the smaller is right also for int64.
    return np.maximum(a, b).astype(np.uint64) - np.minimum(a, b).astype(np.uint64)


def _told(
    claim: Claim, item: Name, marks: Mapping[int, bytes], found: Mapping[int, Sequence[Any]]
) -> str:
    """One item's differences in words."""
    subject = claim.subject(item)
    kind, dtype = subject.kind, np.dtype(subject.kind.dtype)
    size = kind.nbytes // dtype.itemsize
    majority, *_ = groups(marks).values()
    judge = majority[0]
    told: list[str] = []
    alike = [*groups({p: pack([marks[p], *found[p][:4]]) for p in marks if found[p][0]}).values()]
    for odd in alike[:4]:
        count, first, here, there, largest = found[odd[0]]
        place = np.unravel_index(first, kind.shape)
        index = [int(i + o) for i, o in zip(place, subject.origin, strict=True)]
        others = [p for p in majority if p not in odd]
        told.append(
            f"{name_processes(odd)} {'differs' if len(odd) == 1 else 'differ'} from"
            f" {name_processes(others) if others else 'all, having a NaN,'} in {count} of {size}"
            f" elements{'' if kind.key or largest is None else f' by up to {largest:.6g}'}, first at {index}:"
            f" {_two_values(here, there, dtype)} on process {judge}"
        )
    if len(alike) > 4:
        more = [p for odd in alike[4:] for p in odd]
        told.append(f"{name_processes(more)} differ in other ways")
    return f"{subject.label}: {'; '.join(told)}"


def _two_values(here: bytes, there: bytes, dtype: np.dtype[Any]) -> str:
    one, two = (str(np.frombuffer(raw, dtype)[0]) for raw in (here, there))
    if one == two and here != there:  # NaNs
        one, two = (f"{one} of bits {raw[::-1].hex()}" for raw in (here, there))
    return f"{one} there, {two}"
