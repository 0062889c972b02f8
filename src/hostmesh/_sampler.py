"""Indices of a data set for each process, such that the global order depends on no process."""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast, get_args

import numpy as np
import numpy.typing as npt

from . import _permutation
from ._data_shard import DataShard, data_shard
from ._errors import ShapeError, SpecError, build
from ._permutation import Indices
from ._schedule import Ends, Schedule
from ._topology import Topology

if TYPE_CHECKING:
    from grain import RecordMetadata
    from jax.sharding import Mesh

    from ._spec import Spec


class ShardedSampler:
    """Which examples of a data set this process reads for each global batch.

    The order of the examples depends on `seed` and epoch alone: global batch after global batch,
    it is the same on any number of processes and any mesh, and for any batch size. Each example
    comes once an epoch. A process gets the rows of a global batch that its own devices hold, in
    the order in which `to_global` takes them: example i of the batch becomes its row i.

    Nothing is communicated, no device is touched, and nothing grows with `n`: the permutation is
    computed index by index (`hostmesh/_permutation.py`, with its sources).

    - `indices(batch)` gives any batch as a NumPy array: `x[sampler.indices(7)]`.
    - PyTorch: `DataLoader(data, batch_sampler=sampler.batches)`, or `DataLoader(data,
      sampler=sampler, batch_size=sampler.local_batch)`. An iteration is what is left of one epoch;
      the next one is the next epoch, also without `set_epoch`. One that is broken off starts again.
    - Grain: `DataLoader(data_source=data, sampler=sampler.for_grain(), ...)`.

    Args:
      n: the number of examples, from 1 to 2**63 - 1.
      global_batch: examples in a global batch: a multiple of the chunks of the batch axis.
      mesh, spec: the layout of the global arrays, of which dimension 0 is the batch axis; `mesh`
        may be left out where one is set for JAX.
      shard: instead of these a `DataShard`, or an index and a count, for `count` equal runs of
        rows. With neither, this process reads all rows.
      shuffle: permutes each epoch anew; otherwise examples come in the data set's order.
      seed: a whole number from 0 to 2**64 - 1, the same on all processes; `agreed_seed` gives one.
      epochs: how many there are; `None` for no end.
      ends: what becomes of the last examples of an epoch where they fill no global batch. `"drop"`
        leaves them out; `"pad"` fills the batch up with examples from the epoch's beginning, which
        `mask` tells from the others; `"short"` gives each process its rows of the examples that
        there are, perhaps none; `"error"` refuses.

    Raises:
      SpecError: for options that cannot be.
      ShapeError: for numbers of examples that do not go together.

    >>> import hostmesh
    >>> samplers = [
    ...     hostmesh.ShardedSampler(10, global_batch=4, shard=(index, 2), shuffle=False)
    ...     for index in range(2)
    ... ]
    >>> [list(sampler.batches) for sampler in samplers]
    [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    >>> whole = hostmesh.ShardedSampler(10, global_batch=5)
    >>> whole.indices(0), whole.indices(1)
    (array([5, 1, 8, 3, 7]), array([9, 2, 4, 6, 0]))
    >>> halves = hostmesh.ShardedSampler(10, global_batch=2, shard=(1, 2))
    >>> halves.restore(whole.state(batches=1))
    >>> list(halves)
    [2, 6]
    """

    def __init__(
        self,
        n: int,
        *,
        global_batch: int,
        mesh: Mesh | None = None,
        spec: Spec | None = None,
        shard: DataShard | tuple[int, int] | None = None,
        shuffle: bool = True,
        seed: int = 0,
        epochs: int | None = None,
        ends: Ends = "drop",
    ) -> None:
        n = _whole("n", n, 1, _permutation.LARGEST)
        size = _whole("global_batch", global_batch, 1)
        if ends not in get_args(Ends):
            raise _refused(f"ends={ends!r}", f"it is one of {get_args(Ends)}", "choose one")
        if ends == "drop" and size > n:
            raise build(
                ShapeError,
                where="ShardedSampler",
                given=f"n={n}, global_batch={size}, ends='drop'",
                rule=f"an epoch of {n} examples has no whole batch of {size}: all are dropped",
                advice="choose a smaller batch, or ends='pad' or 'short'",
            )
        schedule = Schedule(
            n=n,
            global_batch=size,
            shard=_shard_of(mesh, spec, shard),
            shuffle=bool(shuffle),
            seed=_whole("seed", seed, 0, 2**64 - 1),  # msgpack's largest, for states
            epochs=None if epochs is None else _whole("epochs", epochs, 0),
            ends=ends,
        )
        schedule.shard.rows(size)  # refuses a size that the chunks do not divide
        self._cursor = _Cursor(schedule.at(0, 0))

    @property
    def shard(self) -> DataShard:
        """What this process reads, as `data_shard` tells it."""
        return self._cursor.schedule.shard

    @property
    def local_batch(self) -> int:
        """How many rows of a whole global batch are this process's."""
        return len(self._cursor.schedule.rows)

    @property
    def epoch(self) -> int:
        """The epoch that an iteration gives, counted from 0."""
        return self._cursor.epoch

    @property
    def batches(self) -> Batches:
        """The global batches of an epoch, each as a list of this process's indices."""
        return Batches(self)

    def indices(self, batch: int) -> Indices:
        """The examples that this process reads for a global batch, in the order of its rows.

        Batches are counted from 0 through all epochs, from where the sampler began or was put by
        `restore` or `set_epoch`. Raises `IndexError` for one after the last epoch.
        """
        return self._cursor.schedule.indices(operator.index(batch))

    def mask(self, batch: int) -> npt.NDArray[np.bool_]:
        """Which rows of this process in a global batch hold examples; false where it was padded.

        Of length `local_batch`, in the order of `indices`.
        """
        return self._cursor.schedule.mask(operator.index(batch))

    def __iter__(self) -> Iterator[int]:
        """The indices of this process, one by one, to the end of the epoch."""
        for indices in self._cursor.epoch_from_here():
            yield from indices.tolist()

    def __len__(self) -> int:
        """The number of indices that an iteration gives."""
        cursor = self._cursor
        if cursor.first == cursor.end:
            return 0
        rows, schedule = self.local_batch, cursor.schedule
        last = len(schedule.positions(cursor.end - 1))
        return (cursor.end - 1 - cursor.first) * rows + last

    def set_epoch(self, epoch: int) -> None:
        """Goes to the beginning of an epoch; stays where it is within the epoch that it is in."""
        epoch = _whole("epoch", epoch, 0)
        if epoch != self.epoch:
            self._cursor = _Cursor(self._cursor.schedule.at(epoch, 0))

    def state(self, batches: int | None = None) -> dict[str, int | bool]:
        """Which examples have been read, the same on all processes; plain, for JSON or msgpack.

        Args:
          batches: after how many global batches, counted as in `indices`. By default after those
            that iterations have begun to give out. A loader that reads ahead is further than the
            program: pass the number of batches that it has used.
        """
        cursor = self._cursor
        count = cursor.given if batches is None else _whole("batches", batches, 0)
        schedule = cursor.schedule
        epoch, examples = schedule.epoch, schedule.examples
        if count:
            epoch, start, size = schedule.place(count - 1)
            examples = start + size
        return {**_identity(schedule), "epoch": epoch, "examples": examples}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from the next unread example, in the same order as the sampler of that state.

        That sampler may have been on other processes, on another mesh and of another batch size.
        Raises `SpecError` where it was of another data set or order.
        """
        schedule = self._cursor.schedule
        own = _identity(schedule)
        theirs = {name: state.get(name) for name in (*own, "epoch", "examples")}
        if differing := [name for name, value in own.items() if theirs[name] != value]:
            raise _refused(
                f"a state with {', '.join(f'{name}={theirs[name]!r}' for name in differing)}",
                "the order is that of "
                + ", ".join(f"{name}={own[name]!r}" for name in differing)
                + " here",
                "make the sampler with what the state was made with",
            )
        epoch = _whole("epoch", theirs["epoch"], 0)
        examples = _whole("examples", theirs["examples"], 0, schedule.n)
        self._cursor = _Cursor(schedule.at(epoch, examples))

    def for_grain(self, worker_count: int = 0) -> GrainSampler:
        """The sampler that `grain.DataLoader` takes, from where this one is now, for all epochs.

        The loader has `operations=[..., grain.transforms.Batch(sampler.local_batch)]`,
        `shard_options=grain.sharding.NoSharding()` and the same `worker_count`: Grain deals
        records out to workers and batches them there; this takes it into account, so that batches
        come in order and whole. After k batches, `state(batches=k)` is the state to keep.

        Raises `SpecError` for what such a loader cannot do: short batches, and numbers of batches
        that are not the same for all workers.
        """
        workers = max(_whole("worker_count", worker_count, 0), 1)
        schedule, total = self._cursor.schedule, self._cursor.schedule.total
        if schedule.ends == "short" or (total or 0) % workers:
            raise _refused(
                f"ends={schedule.ends!r}, {total} batches for {workers} Grain workers",
                "a grain.DataLoader makes batches of one size, and as many in each worker",
                "map batch numbers instead: grain.MapDataset.range(batches).map(lambda k:"
                " read(sampler.indices(k)))",
            )
        return GrainSampler(schedule, workers)

    def __repr__(self) -> str:
        return f"ShardedSampler({self._cursor.schedule})"


@dataclass(frozen=True)
class Batches:
    """The batches of a `ShardedSampler`'s epoch: a PyTorch batch sampler."""

    sampler: ShardedSampler

    def __iter__(self) -> Iterator[list[int]]:
        for indices in self.sampler._cursor.epoch_from_here():  # pyright: ignore[reportPrivateUsage]
            yield indices.tolist()

    def __len__(self) -> int:
        cursor = self.sampler._cursor  # pyright: ignore[reportPrivateUsage]
        return cursor.end - cursor.first

    def set_epoch(self, epoch: int) -> None:
        """As `ShardedSampler.set_epoch`."""
        self.sampler.set_epoch(epoch)


@dataclass(frozen=True)
class GrainSampler:
    """The records of a `Schedule` as Grain numbers them. Made by `ShardedSampler.for_grain`."""

    schedule: Schedule
    workers: int

    def __len__(self) -> int:
        total = self.schedule.total
        return sys.maxsize if total is None else total * len(self.schedule.rows)

    def __getitem__(self, index: int) -> RecordMetadata:
        from grain import RecordMetadata

        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        # Worker w has the records w, w + workers, ...: they are to be the batches of these numbers.
        turn, worker = divmod(index, self.workers)
        round_, row = divmod(turn, len(self.schedule.rows))
        batch = round_ * self.workers + worker
        schedule = self.schedule
        example = int(_indices(schedule, batch)[row])
        # Randomness for an example goes by its place in the global order, too.
        epoch, start, _ = schedule.place(batch)
        number = epoch * schedule.n + start + int(schedule.rows[row])
        key = np.array([schedule.seed % 2**64, number % 2**64], np.uint64)
        return RecordMetadata(index, example, np.random.Generator(np.random.Philox(key=key)))


# Grain asks for one record after another, in several threads.
@functools.lru_cache(maxsize=8)
def _indices(schedule: Schedule, batch: int) -> Indices:
    return schedule.indices(batch)


class _Cursor:
    """How far the iterations of a sampler are: in batches of a schedule.

    An iteration keeps the cursor that it began with: one that is still running when the sampler is
    put elsewhere changes nothing any more.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.first = 0  # where an iteration begins
        self.given = 0

    @property
    def epoch(self) -> int:
        schedule = self.schedule
        if schedule.total is not None and self.first >= schedule.total:
            return max(schedule.epoch, schedule.epochs or 0)
        return schedule.place(self.first).epoch

    @property
    def end(self) -> int:
        """The number of the first batch after the epoch."""
        schedule = self.schedule
        if schedule.total is not None and self.first >= schedule.total:
            return self.first
        return schedule.first_of(self.epoch + 1)

    def epoch_from_here(self) -> Iterator[Indices]:
        first, end = self.first, self.end
        for batch in range(first, end):
            self.given = batch + 1
            yield self.schedule.indices(batch)
        self.first = end


def _identity(schedule: Schedule) -> dict[str, int | bool]:
    """What the order of the examples depends on, beside the epoch."""
    return {"n": schedule.n, "seed": schedule.seed, "shuffle": schedule.shuffle}


def _shard_of(
    mesh: Mesh | None, spec: Spec | None, shard: DataShard | tuple[int, int] | None
) -> DataShard:
    if shard is not None and (mesh is not None or spec is not None):
        raise _refused("both shard and mesh or spec", "each says what to read", "give one of them")
    if isinstance(shard, DataShard):
        return shard
    if spec is not None:
        from ._convert import mesh_for  # of the sampler alone, NumPy is enough

        return data_shard(cast("Mesh", mesh_for(mesh, [spec], "ShardedSampler")), spec)
    if mesh is not None:
        raise _refused("a mesh without spec", "a layout is both", "give spec, such as P('data')")
    index, count = (0, 1) if shard is None else shard
    count = _whole("count of shard", count, 1)
    index = _whole("index of shard", index, 0, count - 1)
    return data_shard(Topology({"shard": count}, range(count)), ("shard",), process=index)


def _whole(name: str, value: object, least: int, most: int | None = None) -> int:
    try:
        number = operator.index(cast("int", value))
    except TypeError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        raise _refused(
            f"{name}={value!r}",
            f"it is a whole number from {least} {'on' if most is None else f'to {most}'}",
            "correct it",
        )
    return number


def _refused(given: str, rule: str, advice: str) -> SpecError:
    return build(SpecError, where="ShardedSampler", given=given, rule=rule, advice=advice)
