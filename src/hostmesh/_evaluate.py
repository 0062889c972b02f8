"""Evaluation over all processes: exact sums of what is known of each example, and the real rows."""

from __future__ import annotations

import functools
import operator
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ._collectives import allgather, gather
from ._errors import ShapeError, SpecError, build
from ._feed._feeder import Feeder
from ._outward import to_numpy
from ._trees import Tree

# Results are fetched so many batches behind the step, so that no step waits for one; but JAX 0.10.2
# can hang on CPU where steps that communicate are in flight together.
_BEHIND = 4


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` returns: sums over all examples, as NumPy arrays, and their number.

    Integers are summed exactly as int64, floats as float64.
    """

    sum: Any
    count: int

    @property
    def mean(self) -> Any:
        """The tree of sums, divided by the number of examples: a Python number for each scalar."""
        count = max(self.count, 1)
        return jax.tree.map(lambda t: t / count if t.shape else (t / count).item(), self.sum)


def evaluate(
    step: Callable[..., Tree],
    source: Feeder | Iterable[Any],
    *args: Any,
    mesh: Mesh | None = None,
    specs: Tree = None,
    progress: bool = False,
    **options: Any,
) -> Evaluation:
    """Sums metrics over every example of every process exactly once, however they are shared out.

    Args:
      step: `step(*args, batch)` returns a pytree of metrics with a row for each row of the batch:
        whether it is right, its loss, its row of a confusion matrix. It is compiled once, together
        with the sums. Rows that are filler do not count, whatever it returns for them.
      source: a `Feeder` with `ends="pad"`, which is used up, or what one is made of, with `mesh`,
        `specs` and its other options.
      args: passed on, such as parameters.
      progress: shows a line on standard error of the first process.

    Returns:
      On every process, the sums of all rows, their number, and as `mean` their quotient.

    Raises:
      SpecError: for a feeder that leaves examples out.
      ShapeError: for a metric without a row for each row of the batch.
      FeedError, StragglerError: as the feeder.

    Communicates as the feeder does, and adds up between devices. All processes make the same call.

    >>> import jax, numpy as np, hostmesh
    >>> from jax.sharding import Mesh, PartitionSpec as P
    >>> batches = [{"x": np.arange(n), "y": np.arange(n) % 2} for n in (4, 4, 3)]
    >>> mesh = Mesh(jax.local_devices()[:1], "x")
    >>> found = hostmesh.evaluate(
    ...     lambda batch: {"odd": batch["x"] % 2 == batch["y"]}, batches, mesh=mesh, specs=P("x")
    ... )
    >>> found.count, found.mean
    (11, {'odd': 1.0})
    """
    if isinstance(source, Feeder):
        feeder = source
        if feeder.ends != "pad" or specs is not None or options:
            raise build(
                SpecError,
                where=f"evaluate on process {jax.process_index()}",
                given=f"a feeder with ends={feeder.ends!r}"
                + (" and options of its own" if specs is not None or options else ""),
                rule="each example counts once: with ends='pad' only all are handed out",
                advice="make the feeder with ends='pad', and its options there",
            )
    else:
        feeder = Feeder(source, mesh, specs, ends="pad", progress=progress, **options)
    total: Any = None
    count = 0
    waiting: deque[Any] = deque()

    def take() -> None:
        nonlocal total, count
        sums, rows = waiting.popleft()
        sums = jax.tree.map(_exact, sums, is_leaf=lambda x: isinstance(x, _Parts))
        total = sums if total is None else jax.tree.map(operator.add, total, sums)
        count += int(to_numpy(rows))

    behind = 0 if feeder.mesh.devices.flat[0].platform == "cpu" else _BEHIND
    with feeder:
        for batch in feeder:
            waiting.append(_summing(step, feeder.mesh)(args, batch.data, batch.mask))
            if len(waiting) > behind:
                take()
    while waiting:
        take()
    return Evaluation(total, count)


class _Parts(NamedTuple):
    """A sum of one batch: for integers wider than 8 bits, the sums of their bytes, lowest first.

    These fit in 32 bits, whatever the integers are, for batches of up to 2^23 rows.
    """

    sums: tuple[jax.Array, ...]


@functools.lru_cache(maxsize=64)
def _summing(step: Callable[..., Tree], mesh: Mesh) -> Callable[..., Any]:
    """The step with its sums over the rows that count, as one program; results on every device."""

    def summed(args: tuple[Any, ...], data: Tree, mask: jax.Array) -> tuple[Tree, jax.Array]:
        def add_up(path: Any, metric: Any) -> _Parts:
            metric = jnp.asarray(metric)
            if metric.shape[:1] != mask.shape:
                raise build(
                    ShapeError,
                    where=f"evaluate, metric {jax.tree_util.keystr(path) or 'itself'}",
                    given=f"shape {metric.shape}",
                    rule=f"a metric has a row for each of the {mask.shape[0]} rows of the batch",
                    advice="return what is known of each example; evaluate adds up",
                )
            real = mask.reshape(mask.shape + (1,) * (metric.ndim - 1))
            kept = jnp.where(real, metric, jnp.zeros((), metric.dtype))
            if not jnp.issubdtype(kept.dtype, jnp.integer):
                if jnp.issubdtype(kept.dtype, jnp.floating):
                    kept = kept.astype(jnp.promote_types(kept.dtype, jnp.float32))
                return _Parts((kept.sum(axis=0),))
            shifts = range(0, 8 * kept.dtype.itemsize, 8)
            parts = [(kept >> shift) & 0xFF for shift in shifts[:-1]]
            parts.append(kept >> shifts[-1])  # with the sign
            return _Parts(tuple(part.astype(jnp.int32).sum(axis=0) for part in parts))

        metrics = step(*args, data)
        return jax.tree_util.tree_map_with_path(add_up, metrics), mask.sum()

    return jax.jit(summed, out_shardings=NamedSharding(mesh, PartitionSpec()))


def _exact(total: _Parts) -> Any:
    values = [to_numpy(part) for part in total.sums]
    if values[0].dtype.kind in "ib":
        return sum(value.astype(np.int64) << 8 * place for place, value in enumerate(values))
    return values[0].astype(np.result_type(values[0], np.float64))


def gather_valid(
    tree: Tree,
    mask: jax.Array,
    *,
    to: int | None = None,
    processes: Sequence[int] | None = None,
    timeout: float | None = None,
) -> Tree:
    """Gives every process the rows that are no filler, in the order of the global batch.

    Args:
      tree: global arrays with the batch axis first, such as predictions for a batch of
        `Feeder(..., ends="pad")`.
      mask: the mask of that batch.
      to: the process that gets them; by default all.
      processes, timeout: as in `allgather`.

    Returns:
      The tree with NumPy arrays of shape `(real rows, ...)`; `None` on processes that get nothing.

    Raises:
      DivergenceError, StragglerError, ClusterError: as all collectives.

    Communicates: each shard travels once, and only where some process lacks it.

    >>> import jax, numpy as np, hostmesh
    >>> from jax.sharding import Mesh, PartitionSpec as P
    >>> mesh = Mesh(jax.local_devices()[:1], "x")
    >>> feeder = hostmesh.Feeder([np.arange(4), np.arange(3)], mesh, P("x"), ends="pad", check=None)
    >>> me = [jax.process_index()]
    >>> [hostmesh.gather_valid(batch.data, batch.mask, processes=me) for batch in feeder]
    [array([0, 1, 2, 3], dtype=int32), array([0, 1, 2], dtype=int32)]
    """
    if to is None:
        found = allgather((tree, mask), processes=processes, timeout=timeout)
    else:
        found = gather((tree, mask), to=to, processes=processes, timeout=timeout)
        if found is None:
            return None
    whole, real = found
    return jax.tree.map(lambda array: array[real], whole)
