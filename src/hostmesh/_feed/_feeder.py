"""`Feeder`: global batches of what each process reads."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Literal, NamedTuple, cast

import jax
import msgpack
from jax.sharding import Mesh

from .. import _moments
from .._convert import sharding_for
from .._coordination import agree, call_site
from .._errors import DivergenceError, FeedError, StragglerError, build
from .._packing import pack
from .._recipes import mesh_of
from .._trees import Tree
from .._watch import _marks
from . import _threads
from ._ends import Ends, Outcome
from ._lines import Line
from ._options import prepared
from ._pipeline import Pipeline, Ready
from ._ragged import PadTo
from ._source import Reader
from ._stats import FeederStats, Times
from ._stats import Line as ProgressLine

_log = logging.getLogger("hostmesh")


class Padded(NamedTuple):
    """A batch of `ends="pad"`: global arrays, and which rows of the global batch are no filler.

    `mask` is a global boolean array of shape `(global rows,)`, cut as the batch axis is.
    """

    data: Any
    mask: Any


class Feeder(Iterator[Any]):
    """Iterates over global batches of what each process reads, a few batches ahead of the step.

    Every process passes an iterable over its own part of the data. A thread reads it into host
    buffers; another agrees with the other processes on what they have, ahead of the step, and
    starts the transfers. What the source gives is copied before it is asked again, so that it may
    use its buffers anew. All processes of the mesh make the same feeder, and take as many batches.

    Args:
      source: an iterable of pytrees whose leaves have a row for each example: NumPy arrays,
        `jax.Array`s, PyTorch tensors, lists of numbers. The rows of a process fill its chunks of
        the batch axis, in ascending order; along other dimensions that the spec cuts, it passes its
        own chunks, as in `to_global`. `data_shard` and `ShardedSampler` tell which these are.
      mesh: the mesh; `None` takes that of the context, as in `to_global`.
      specs: a `PartitionSpec` or `NamedSharding` for all leaves, or a prefix pytree of them. All
        cut their first dimension, the batch axis, alike.
      prefetch: so many batches wait on devices; with the one in the step and one on its way there
        are `prefetch + 2` at most. 0 does all in `next`, without threads.
      ends: what becomes of sources of different lengths and of short batches. `"drop"`: all
        processes stop before the first batch that is not full everywhere, and the first of them
        logs what there is of it. `"pad"`: all go on until the last one ends, filler rows take the
        place of what is missing, and batches come as `Padded(data, mask)`. `"error"`: `FeedError`
        names who ended first.
      global_batch: rows of a global batch; by default the first batches of all processes tell, the
        largest share counts. With `"pad"` it is rounded up to a multiple of the chunks.
      transform: called with each batch in the reading thread.
      check: `"first"` compares, on the first batch, digests of rows that several processes feed
        for the same chunk, and warns where processes feed equal rows for different chunks;
        `"always"` compares those of all batches; `None` of none. Structure, dtypes and shapes are
        compared in any case, before anything is compiled.
      buffers: how many batches are read ahead in host memory; by default as many as `prefetch`
        takes, and more where batches are small, up to 64 or 8 MiB.
      pad_to: for leaves by name (`"tokens"`, `"inputs/tokens"`), axes that are padded to a size
        that all processes agree on: a number, or the next of ascending ones, such as
        `{"tokens": {1: range(128, 2049, 128)}}`. Such a leaf may be a list of examples, and comes
        as `Ragged(values, lengths)`.
      progress: shows speed and waiting times in a line on standard error of the first process.
      timeout: seconds that `next` waits for a batch; by default `hostmesh.config.timeout`, and
        without limit in a program of one process. Time between two steps does not count.

    Raises:
      SpecError: for specs, a mesh or options that cannot be.
      FeedError: from `next`, after all batches before: where a source raises (there with what it
        raised as its cause), where batches are not alike, on `ends="error"`, where another process
        closed its feeder. On all processes; it names the process and the batch.
      StragglerError: from `next`, on all processes, where a source gives nothing or a process does
        not come in time.
      DivergenceError: from `next`, where processes make different feeders.

    Communicates through the coordination service alone, in the background.

    >>> import jax, numpy as np, hostmesh
    >>> from jax.sharding import Mesh, PartitionSpec as P
    >>> mesh = Mesh(jax.devices(), "x")
    >>> rows = 2 * jax.local_device_count()
    >>> source = ({"x": np.random.rand(rows, 3)} for _ in range(4))
    >>> with hostmesh.Feeder(source, mesh, P("x")) as feeder:
    ...     shapes = [batch["x"].shape for batch in feeder]
    >>> shapes == 4 * [(2 * jax.device_count(), 3)]
    True
    """

    def __init__(
        self,
        source: Iterable[Any],
        mesh: Mesh | None,
        specs: Tree,
        *,
        prefetch: int = 2,
        ends: Ends = "drop",
        global_batch: int | None = None,
        transform: Callable[[Any], Any] | None = None,
        check: Literal["first", "always"] | None = "first",
        buffers: int | None = None,
        pad_to: PadTo | None = None,
        progress: bool = False,
        timeout: float | None = None,
    ) -> None:
        self._source = source
        self._options, self._layout = prepared(
            mesh, specs, prefetch, ends, global_batch, transform, check, buffers, pad_to, timeout
        )
        self._progress = progress and self._options.members[0] == jax.process_index()
        self._line: ProgressLine | None = None
        self._pipeline: Pipeline | None = None
        self._channel: Line | None = None
        self._finalizer: Any = None
        self._error: Exception | None = None
        self._resume: Mapping[str, Any] | None = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._batches = self._examples = self._own = self._nbytes = 0
        self._state: Any = None
        self._ended = False
        self._began: float | None = None
        self._times = Times()
        # Here, where processes are in step, and not with the first batch.
        if self._channel is None and len(self._options.members) > 1:
            self._channel = Line(self._options.members)

    def __iter__(self) -> Feeder:
        return self

    def __next__(self) -> Any:
        if self._error is not None:
            raise self._error
        if self._ended:
            raise StopIteration
        _moments.step(self._batches, of_all=len(self._options.members) == jax.process_count())
        pipeline = self._pipeline or self._start()
        with self._times.of("waited"), self._mark(pipeline):
            ready = pipeline.next()
        if isinstance(ready, Outcome):
            self._end(ready, pipeline)
            raise StopIteration
        self._batches += 1
        self._examples += ready.examples
        self._own += ready.own
        self._nbytes += ready.nbytes
        self._state = ready.state
        if self._progress:
            self._show()
        return _handed_out(ready)

    def _mark(self, pipeline: Pipeline) -> contextlib.AbstractContextManager[None]:
        """For a watchdog, if one runs: what is waited for."""
        watch = _marks.watch
        if watch is None:
            return contextlib.nullcontext()
        watch.queue(pipeline.depth)
        what = f"Feeder, batch {self._batches}"
        return watch.call("feed", what, call_site(), pipeline.is_waiting_for_others)

    def _start(self) -> Pipeline:
        line, self._channel = self._channel, None
        first = self._batches
        try:
            reader = Reader(self._source, self._local_rows())
            resume, self._resume = self._resume, None
            if resume is not None and not reader.restore(resume["source"]):
                for _ in range(first):  # read and dropped, up to there
                    next(reader.iterator, None)
            self._state = reader.state()
        except BaseException as error:
            self._ended = True
            if line is not None:
                line.leave(self._options.call, f"{type(error).__name__}: {str(error)[:2000]}")
            raise
        pipeline = Pipeline(reader, self._layout, self._options, line, first, self._times)
        # The threads know the pipeline and not the feeder: who drops the feeder ends them.
        self._finalizer = weakref.finalize(self, pipeline.stop, "its feeder was dropped")
        self._finalizer.atexit = False
        _threads.end_with_the_program(pipeline)
        if self._options.prefetch:
            pipeline.start()
        self._pipeline = pipeline
        self._began = time.perf_counter()
        return pipeline

    def _local_rows(self) -> int | None:
        """Rows of this process in a batch, where `global_batch` says."""
        each = self._options.chunk_rows
        return None if each is None else each * self._layout.held

    def _end(self, outcome: Outcome, pipeline: Pipeline) -> None:
        self._ended = True
        # A source that hangs is not waited for once more.
        self._stop("", 0.2 if outcome.kind == "late" else _threads.JOIN)
        if outcome.kind == "end":
            if outcome.given and self._options.members[0] == jax.process_index():
                call = self._options.call
                _log.warning(
                    "%s at %s ended before batch %d, and dropped what there is of it: %s."
                    " ends='pad' feeds these rows, too",
                    *(call.what, call.site, outcome.batch, outcome.given),
                )
            return
        kinds: dict[str, type[FeedError | StragglerError | DivergenceError]] = {
            "late": StragglerError,
            "failed": FeedError,
            "diverged": DivergenceError,
        }
        self._error = build(
            kinds[outcome.kind],
            where=f"{self._options.call.what} at {self._options.call.site}, batch"
            f" {outcome.batch}, on process {jax.process_index()}",
            given=outcome.given,
            rule=outcome.rule,
            advice=outcome.advice,
        )
        raise self._error from pipeline.cause()

    def _stop(self, why: str, seconds: float = _threads.JOIN) -> None:
        if self._line is not None:
            self._line.show(self.stats().line())
            self._line.end()
            self._line = None
        if (pipeline := self._pipeline) is not None:
            self._pipeline = None
            self._finalizer.detach()
            pipeline.stop(why or "it ended")
            pipeline.join(seconds)
            _threads.running.discard(pipeline)
        elif self._channel is not None and not self._ended:
            line, self._channel = self._channel, None
            line.leave(self._options.call, why)

    def close(self) -> None:
        """Ends all threads, and drops what was read ahead. Other processes learn of it.

        A source that hangs keeps its thread until it returns. A closed feeder has ended; `reset`
        begins anew.
        """
        self._stop(f"closed its feeder after {self._batches} batches")
        self._ended = True

    def reset(self) -> None:
        """Begins anew with the source's next pass: on all processes, at the same batch.

        A source that can be read only once, such as a generator, has no second pass.
        """
        self.close()
        self._error = None
        self._begin_anew()

    def state(self) -> dict[str, Any]:
        """What has been handed out so far, as plain values that msgpack packs.

        `"examples"` counts the examples of all processes: with a source made anew from it, a run
        goes on with another number of processes. `"batches"` counts global batches, and `"source"`
        is the source's own state behind them, where it has one (`get_state`, `state_dict` or
        `state`). Batches that were read ahead do not count. Communicates nothing.

        Raises:
          FeedError: where the source's own state cannot be packed.
        """
        state = {
            "batches": self._batches,
            "examples": self._examples,
            "processes": len(self._options.members),
            "source": self._state,
        }
        try:
            msgpack.packb(state)
        except (TypeError, ValueError, OverflowError) as error:
            raise build(
                FeedError,
                where=f"Feeder.state on process {jax.process_index()}",
                given=f"a source whose state is no plain value: {error}",
                rule="a state holds numbers, strings, bytes, lists and dicts",
                advice="wrap the source, with a state that msgpack packs",
            ) from None
        return state

    def restore(self, state: Mapping[str, Any], *, source: Iterable[Any] | None = None) -> None:
        """Goes on after the batches of a state: on all processes.

        Args:
          state: what `state` returned, on this process or, with `source`, on any.
          source: a source that begins with the first example that was not handed out,
            `state["examples"]` of all processes together: for another number of processes. Without
            it the feeder's own source goes on from its own state, or where it has none, is read
            and dropped up to there.

        Raises:
          FeedError: without `source`, for a state of another number of processes.
        """
        count = len(self._options.members)
        if source is None and state["processes"] != count:
            raise build(
                FeedError,
                where=f"Feeder.restore on process {jax.process_index()}",
                given=f"a state of {state['processes']} processes, on {count}",
                rule="which examples a process reads next depends on their number",
                advice="pass source=, one that begins with example state['examples'] of all",
            )
        read_once = isinstance(self._source, Iterator) and state["source"] is None
        if source is None and self._began is not None and read_once:
            raise build(
                FeedError,
                where=f"Feeder.restore on process {jax.process_index()}",
                given=f"a {type(self._source).__name__} of which batches have been read",
                rule="what can be read only once cannot go back",
                advice="pass source=, or make a new feeder",
            )
        if self._pipeline is not None:
            self._stop("restored another state")
        self._error = None
        self._begin_anew()
        self._batches, self._examples = state["batches"], state["examples"]
        if source is None:
            self._state, self._resume = state["source"], dict(state)
        else:
            self._source, self._resume = source, None

    def stats(self, *, everywhere: bool = False) -> FeederStats:
        """Where the time goes, and how fast it is.

        Args:
          everywhere: also asks the other processes, *which communicates*: all make the same call.
            `stats.slowest` then names the process whose source takes longest.
        """
        spent = self._times.spent
        stats = FeederStats(
            process=jax.process_index(),
            batches=self._batches,
            examples=self._own,
            nbytes=self._nbytes,
            elapsed=0.0 if self._began is None else time.perf_counter() - self._began,
            queue=0 if self._pipeline is None else self._pipeline.depth,
            shapes=max(1, len(self._layout.shapes)) if self._batches else 0,
            **cast("Any", spent),
        )
        if not everywhere:
            return stats
        data = pack({k: v for k, v in dataclasses.asdict(stats).items() if k != "others"})
        agreed = agree("Feeder.stats", data=data, processes=self._options.members)
        others = tuple(FeederStats(**msgpack.unpackb(post)) for post in agreed.data)
        return dataclasses.replace(stats, others=others)

    def _show(self) -> None:
        if self._line is None:
            self._line = ProgressLine()
        if self._line.is_due():
            self._line.show(self.stats().line())

    @property
    def mesh(self) -> Mesh:
        """The mesh of the batches."""
        leaf = jax.tree.leaves(self._layout.specs)[0]
        return mesh_of(sharding_for(self._layout.mesh, leaf))

    @property
    def ends(self) -> Ends:
        """What becomes of sources of different lengths."""
        return self._options.ends

    def __enter__(self) -> Feeder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, trace
        told = "" if error is None else f": {type(error).__name__}: {str(error)[:300]}"
        self._stop(f"left its feeder after {self._batches} batches{told}")
        self._ended = True


def _handed_out(ready: Ready) -> Any:
    return ready.data if ready.mask is None else Padded(ready.data, ready.mask)
