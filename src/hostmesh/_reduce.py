"""One value of the values of all processes: sums, means, bounds, or any function of two arrays.

Results are the same on every process to the last bit: each folds the values of the processes one
after another in the order of their numbers, `f(f(f(v0, v1), v2), v3)`. Bytes come part by part, so
that beside the result a few parts are held, however many processes there are.
See `_collectives` for what all collectives share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from . import _transport
from ._coordination import agree, members_of, rank_of, telling
from ._decisions import together
from ._errors import ShapeError, SpecError, build
from ._packing import Parcel, finished, is_inline, parcel, rows_of
from ._stream import Bytes
from ._trees import Tree

HostArray = npt.NDArray[Any]
DType = np.dtype[Any]
Operation = Callable[[HostArray, HostArray], Any]

_OPERATIONS: dict[str, Operation] = {
    "sum": np.add,
    "mean": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "prod": np.multiply,
    "any": np.logical_or,
    "all": np.logical_and,
}
_SUMS = ("sum", "mean", "prod")


def reduce(
    tree: Tree,
    op: str | Operation = "sum",
    *,
    to: int | None = None,
    accumulate: npt.DTypeLike | None = None,
    as_jax: bool = False,
    processes: Sequence[int] | None = None,
    timeout: float | None = None,
) -> Tree:
    """Combines the values of all processes, element by element, in the order of their numbers.

    Args:
      tree: this process's values, equal in structure, dtypes and shapes on all.
      op: `"sum"`, `"mean"`, `"min"`, `"max"`, `"prod"`, `"any"`, `"all"`, or a function of two
        arrays that gives a third of the same shape and dtype, element by element. It is called
        with flat pieces of leaves: the values so far, and those of the next process.
      to: the process that gets the result; by default all do.
      accumulate: a dtype, such as `np.float64`, in which floats are summed, averaged or multiplied
        where their own is smaller; the result has it.

    Returns:
      The tree of results, of the shapes of the leaves; `None` on other processes than `to`. Sums
      and products of integers and bools are 64 bits wide, means of them float64, as NumPy's; floats
      stay as they are, and means of floats under 32 bits are summed in float32. `"any"` and `"all"`
      give bools. NaN in any value makes `"min"` and `"max"` NaN.

    Raises:
      DivergenceError, StragglerError, ClusterError: as all collectives.
      SpecError: for keys, an operation that is not there, or a dtype that it does not take.
      ShapeError: for a leaf that is no array or number, or a function whose result is another
        shape or dtype.

    >>> import hostmesh, jax, numpy as np
    >>> loss = np.float32(jax.process_index())
    >>> bool(hostmesh.reduce(loss, "mean") == np.mean(np.arange(jax.process_count())))
    True
    >>> int(hostmesh.reduce(1)) == jax.process_count()
    True
    """
    name = _named(op, to, accumulate)
    with telling(name, processes=processes):
        mine = parcel(tree, "reduce")
        _require_reducible(tree, mine, op, accumulate, name)
        rank = None if to is None else rank_of(to, processes, name)
        fold = _Fold(mine, op, accumulate, name)
    inline = is_inline(fold.stream.nbytes, len(members_of(processes, name)))
    agreed = agree(
        f"{name} of {mine.described()}",
        data=fold.stream.tobytes() if inline else b"",
        moves=not inline,
        timeout=timeout,
        processes=processes,
    )
    wanted = rank in (None, agreed.rank)
    take = _transport.by_rank(fold.take) if wanted else _transport.ignore
    if wanted:
        fold.begin()
    if inline:
        take(rows_of(agreed.data), 0)
    else:
        with agreed.turn():
            nbytes = fold.stream.nbytes
            _transport.allgather(nbytes, agreed.members, fold.stream.read, take)
    if isinstance(op, str):
        fold.require_success()
    else:
        with together(f"the function of {name}", processes=processes, timeout=timeout):
            fold.require_success()
    if not wanted:
        return None
    arrays = zip(fold.results(len(agreed.members)), mine.kinds, strict=True)
    return jax.tree.unflatten(mine.structure, [finished(a, kind, as_jax) for a, kind in arrays])


class _Fold:
    """The values so far of all leaves, into which pieces of the processes' streams are folded."""

    def __init__(
        self, mine: Parcel, op: str | Operation, accumulate: npt.DTypeLike | None, name: str
    ) -> None:
        if isinstance(op, str):
            self._function = _OPERATIONS[op]
        else:
            self._function = _checked(op, name)
        self._op = op
        self._kinds = mine.kinds
        self._dtypes = [_dtypes(np.dtype(kind.dtype), op, accumulate) for kind in mine.kinds]
        self._totals: list[HostArray] = []
        self._problem: Exception | None = None
        self.stream = mine.stream()

    def begin(self) -> None:
        """Makes room for the values."""
        kinds = zip(self._kinds, self._dtypes, strict=True)
        self._totals = [np.empty(kind.shape, inner) for kind, (inner, _) in kinds]

    def take(self, rank: int, piece: Bytes, start: int) -> None:
        """Folds in a piece of the stream of a rank: of all of them in order, piece by piece."""
        if self._problem is not None:
            return
        try:
            with np.errstate(all="ignore"):
                for number, low, high, place in self.stream.spans(start, len(piece)):
                    dtype = np.dtype(self._kinds[number].dtype)
                    total = self._totals[number].reshape(-1)
                    here = total[low // dtype.itemsize : high // dtype.itemsize]
                    values = piece[place : place + high - low].view(dtype)
                    values = values.astype(total.dtype, copy=False)
                    here[...] = self._function(here, values) if rank else values
        except Exception as error:  # the other processes still need this one's bytes
            self._problem = error

    def require_success(self) -> None:
        """Raises what went wrong on the way."""
        if self._problem is not None:
            raise self._problem

    def results(self, count: int) -> list[HostArray]:
        """The values of all `count` processes."""
        with np.errstate(all="ignore"):
            if self._op == "mean":
                for total in self._totals:
                    np.true_divide(total, count, out=total, casting="unsafe")
            totals = zip(self._totals, self._dtypes, strict=True)
            return [total.astype(outer, copy=False) for total, (_, outer) in totals]


def _dtypes(
    dtype: DType, op: str | Operation, accumulate: npt.DTypeLike | None
) -> tuple[DType, DType]:
    """The dtypes of the values so far, and of the result."""
    if op in ("any", "all"):
        return np.dtype(bool), np.dtype(bool)
    if op not in _SUMS:
        return dtype, dtype
    if jnp.issubdtype(dtype, np.inexact):
        if accumulate is not None:
            wide = np.result_type(dtype, accumulate)
            return wide, wide
        return np.dtype(np.float32) if op == "mean" and dtype.itemsize < 4 else dtype, dtype
    if op == "mean":
        return np.dtype(np.float64), np.dtype(np.float64)
    wide = np.dtype(np.uint64 if jnp.issubdtype(dtype, np.unsignedinteger) else np.int64)
    return wide, wide


def _checked(function: Operation, name: str) -> Operation:
    def call(so_far: HostArray, values: HostArray) -> HostArray:
        result = np.asarray(function(so_far, values))
        if result.shape == values.shape and result.dtype == values.dtype:
            return result
        raise build(
            ShapeError,
            where=f"{name} on process {jax.process_index()}",
            given=f"a function that gives {result.dtype}{list(result.shape)} for two arrays of"
            f" {values.dtype}{list(values.shape)}",
            rule="it works element by element, on pieces of leaves, and keeps shape and dtype",
            advice="convert its result, or pass leaves of the dtype that it gives",
        )

    return call


def _named(op: str | Operation, to: int | None, accumulate: npt.DTypeLike | None) -> str:
    words = op if isinstance(op, str) else getattr(op, "__qualname__", type(op).__qualname__)
    if accumulate is not None:
        words += f", accumulate={getattr(accumulate, '__name__', accumulate)}"
    return f"reduce({words}{'' if to is None else f', to={to}'})"


def _require_reducible(
    tree: Tree, mine: Parcel, op: str | Operation, accumulate: npt.DTypeLike | None, name: str
) -> None:
    where = f"{name} on process {jax.process_index()}"
    if isinstance(op, str) and op not in _OPERATIONS:
        raise build(
            SpecError,
            where=where,
            given=f"op={op!r}",
            rule=f"operations are {', '.join(_OPERATIONS)}, or a function of two arrays",
            advice="name one of them, or pass the function",
        )
    if accumulate is not None and (op not in _SUMS or np.dtype(accumulate).kind != "f"):
        raise build(
            SpecError,
            where=where,
            given=f"accumulate={accumulate!r} with op={op!r}",
            rule=f"it is the float dtype in which {', '.join(_SUMS)} are computed",
            advice="leave accumulate= out, or give np.float64 with one of these",
        )
    for number, kind in enumerate(mine.kinds):
        if kind.key:
            path = jax.tree_util.keystr(jax.tree_util.tree_leaves_with_path(tree)[number][0])
            raise build(
                SpecError,
                where=f"leaf {path or 'of the value'} on process {jax.process_index()} ({name})",
                given=f"PRNG keys: {kind}",
                rule="what is reduced has values that can be added or compared, and keys do not",
                advice="gather them, or take agreed_key() for the same key everywhere",
            )
