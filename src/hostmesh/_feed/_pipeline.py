"""From a source to global batches in order: one pass, in two threads or in the caller's own.

The reader takes batches from the source into host buffers. The feeder's thread agrees with the
other processes on what is handed out, as many batches at a time as all of them have ready, and
makes global arrays of those. It uses the key-value store alone: a collective on devices, from a
thread, would be ordered at random among the step's.

Time runs out only while a `next` waits: a pause between steps, however long, is no failure.
"""

from __future__ import annotations

import threading
import time
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from .. import _rounds
from .._trees import Tree
from . import _alike
from ._ends import Agreed, Outcome, Post, Then, decide, not_agreed
from ._lines import Line
from ._options import Options
from ._rows import Rows, rows_of
from ._source import Reader
from ._stats import Times
from ._template import Layout, Staged

# Small batches are agreed on many at a time: as many as this, or as fit in so many bytes.
_MOST_AHEAD, _BYTES_AHEAD = 64, 8 * 2**20
_NEVER = 1e9
# Who waits for others lets those speak first who wait for their own source.
_GRACE = 1.0

# All that have not ended: one outlives its pipeline while it drops the last of its arrays.
threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@dataclass(frozen=True)
class Ready:
    """One batch on devices. `state` is that of this process's source behind it."""

    data: Tree
    mask: jax.Array | None
    examples: int
    own: int
    nbytes: int
    state: Any


@dataclass(frozen=True)
class _Last:
    """What the reader leaves behind its last batch."""

    then: Then
    why: str = ""
    error: BaseException | None = None


class Pipeline:
    """One pass over a source."""

    def __init__(
        self,
        reader: Reader,
        layout: Layout,
        options: Options,
        line: Line | None,
        first: int,
        times: Times,
    ) -> None:
        self._reader = reader
        self._layout = layout
        self._options = options
        self._line = line
        self._me = jax.process_index()
        self._first = first
        self._number = first  # of the next batch that is read
        self._times = times
        self._changed = threading.Condition()
        self._staged: deque[Staged] = deque()  # read, not agreed on
        self._last: _Last | None = None
        self._agreed: deque[tuple[Staged | None, Agreed]] = deque()  # not made arrays of
        self._ready: deque[Ready] = deque()
        self._converting = False
        self._exchanging = False
        self._outcome: Outcome | None = None
        self._cause: BaseException | None = None
        self._broken: BaseException | None = None  # a failure of our own
        self._frontier = first  # the next batch to agree on
        self._rows: Rows | None = None
        self._fed = [0] * len(options.members)
        self._room = options.buffers or options.prefetch + 1
        self._waiting: float | None = None
        self._closed = ""
        self._suspicion = ""
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        for name, work in (("read", self._read_all), ("feed", self._agree_and_convert)):
            thread = threading.Thread(target=work, name=f"hostmesh-{name}", daemon=True)
            self._threads.append(thread)
            threads.add(thread)
            thread.start()

    @property
    def depth(self) -> int:
        return len(self._ready)

    def next(self) -> Ready | Outcome:
        """The next batch, or how it all ended."""
        result = self._next_threaded() if self._threads else self._next_alone()
        if self._suspicion:
            words, self._suspicion = self._suspicion, ""
            warnings.warn(words, stacklevel=3)  # who called the feeder's `next`
        return result

    def is_waiting_for_others(self) -> bool:
        """Whether the others are waited for, and not the own source."""
        return self._exchanging

    def cause(self) -> BaseException | None:
        """What this process's own source raised, where that ended it."""
        return self._cause

    def stop(self, why: str) -> None:
        """Has all threads end, and the other processes learn why; does not wait for it."""
        with self._changed:
            self._closed = self._closed or why
            self._changed.notify_all()

    def join(self, seconds: float) -> None:
        """Waits for the threads; a source that hangs keeps its own beyond that."""
        deadline = time.monotonic() + seconds
        for thread in reversed(self._threads):  # the one that calls the runtime first
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        if not any(thread.is_alive() for thread in self._threads[:1]):
            self._reader.close()
        if not self._threads:
            self._leave()

    # The caller's part.

    def _next_threaded(self) -> Ready | Outcome:
        with self._changed:
            if self._ready:
                self._changed.notify_all()
                return self._ready.popleft()
            self._waiting = time.monotonic()
            self._changed.notify_all()
            try:
                while True:
                    if self._broken is not None:
                        raise self._broken
                    if self._ready:
                        self._changed.notify_all()
                        return self._ready.popleft()
                    if not self._converting:
                        if self._agreed:  # its thread may be waiting for other processes
                            staged, agreed = self._agreed.popleft()
                            self._converting = True
                            break
                        if self._outcome is not None:
                            return self._outcome
                    if self._closed:
                        return Outcome("end", self._frontier)
                    self._changed.wait()
            finally:
                self._waiting = None
        try:
            return self._convert(staged, agreed)
        finally:
            with self._changed:
                self._converting = False
                self._changed.notify_all()

    def _next_alone(self) -> Ready | Outcome:
        while not self._agreed:
            if self._outcome is not None:
                return self._outcome
            if not self._staged and self._last is None:
                self._read_one()
            self._agree()
        return self._convert(*self._agreed.popleft())

    # The reader's part.

    def _read_all(self) -> None:
        while True:
            with self._changed:
                while len(self._staged) + len(self._agreed) >= self._room and not self._closed:
                    self._changed.wait()
                if self._closed or self._outcome is not None or self._last is not None:
                    return
            self._read_one()

    def _read_one(self) -> None:
        """Reads a batch; whatever keeps it from doing so is the last thing that it leaves."""
        staged, last = None, None
        options, number = self._options, self._number
        try:
            with self._times.of("source"):
                batch = next(self._reader.iterator)
            if options.transform is not None:
                with self._times.of("transform"):
                    batch = options.transform(batch)
            with self._times.of("staging"):
                mark = options.check == "always" or (
                    options.check == "first" and number == self._first
                )
                rows = self._rows
                capacity = rows and self._layout.held * rows.chunk_rows
                staged = self._layout.stage(batch, number, mark and self._is_shared, capacity)
                staged.state = self._reader.state()
        except StopIteration:
            last = _Last("end")
        except BaseException as error:
            shown = "".join(traceback.format_exception(error)).rstrip()
            last = _Last("failed", f"{type(error).__name__}: {error}\n{shown[-4000:]}", error)
        with self._changed:
            if staged is not None:
                self._number += 1
                self._staged.append(staged)
                if options.buffers is None:
                    most = min(_MOST_AHEAD, _BYTES_AHEAD // max(staged.nbytes, 1))
                    self._room = max(options.prefetch + 1, most)
            self._last = last
            self._changed.notify_all()

    @property
    def _is_shared(self) -> bool:
        return len(self._options.members) > 1

    # The feeder's thread.

    def _agree_and_convert(self) -> None:
        try:
            while (work := self._work()) is not None:
                work()
        except BaseException as error:  # a fault of ours, or the coordination service is gone
            with self._changed:
                self._broken = error
                self._changed.notify_all()
        finally:
            self._leave()

    def _work(self) -> Callable[[], None] | None:
        """What to do next; waits for it. Nothing when all is done."""
        with self._changed:
            while not self._closed:
                room = len(self._ready) < self._options.prefetch and not self._converting
                if self._agreed and room:
                    staged, agreed = self._agreed.popleft()
                    self._converting = True
                    return lambda: self._convert_ahead(staged, agreed)
                if self._outcome is not None:
                    if not self._agreed and not self._converting:
                        return None
                elif 2 * len(self._agreed) <= self._room and (
                    self._staged or self._last is not None or self._left() <= 0
                ):
                    return self._agree
                left = self._left()
                self._changed.wait(left if left < _NEVER else None)
            return None

    def _convert_ahead(self, staged: Staged | None, agreed: Agreed) -> None:
        try:
            ready = self._convert(staged, agreed)
            with self._changed:
                self._ready.append(ready)
        finally:
            with self._changed:
                self._converting = False
                self._changed.notify_all()

    def _convert(self, staged: Staged | None, agreed: Agreed) -> Ready:
        rows = self._rows
        assert rows is not None
        with self._times.of("transfer"):
            data, nbytes = self._layout.arrays(staged, agreed, rows)
            padded = self._options.ends == "pad"
            mask = self._layout.mask(agreed, rows, self._me) if padded else None
        own = agreed.rows[rows.members.index(self._me)]
        state = self._reader.state() if staged is None else staged.state
        return Ready(data, mask, agreed.examples, own, nbytes, state)

    def _left(self) -> float:
        """Seconds that a waiting `next` has left."""
        if self._waiting is None:
            return _NEVER
        return self._waiting + self._options.timeout - time.monotonic()

    def _agree(self) -> None:
        """One round: what all have ready is handed out."""
        with self._changed:
            ahead = list(self._staged)
            last = self._last
            if not ahead and last is None:
                waited = f"the source gave nothing for {self._options.timeout:g} s"
                last = _Last("late", waited)
        opening, left = b"", ()
        if self._rows is None:
            first = ahead[0] if ahead else None
            opening = self._layout.opening(first, self._options.chunk_rows)
            left = self._line.left() if self._line else ()
        post = Post(
            tuple(staged.rows for staged in ahead),
            tuple(staged.sizes for staged in ahead),
            tuple(staged.marks for staged in ahead),
            "more" if last is None else last.then,
            "" if last is None else last.why,
            opening,
            left,
        )
        with self._times.of("agreement"):
            outcome, posts = self._exchange(post)
        agreed: list[Agreed] = []
        if outcome is None:
            agreed, outcome = self._decided(posts)
        if outcome is not None and self._me in outcome.who and last is not None:
            self._cause = last.error
        with self._changed:
            for batch in agreed:
                staged = self._staged.popleft() if self._staged else None
                self._agreed.append((staged, batch))
            self._fed = [
                fed + sum(batch.rows[rank] for batch in agreed)
                for rank, fed in enumerate(self._fed)
            ]
            self._frontier += len(agreed)
            self._outcome = outcome
            self._changed.notify_all()

    def _exchange(self, post: Post) -> tuple[Outcome | None, list[Post]]:
        """The posts of all processes, or why there are none."""
        if self._line is None:
            return None, [Post.unpacked(post.packed())]
        limit = self._options.timeout
        patience = _rounds.Patience(limit, lambda: self._left() + _GRACE, lambda: self._closed)
        call = self._options.call
        self._exchanging = True
        try:
            verdict = _rounds.hold_round(
                self._line.channel, call, post.packed(), patience, moves=False
            )
        finally:
            self._exchanging = False
        if verdict.kind == "agreed":
            return None, [Post.unpacked(data) for data in verdict.data]
        return not_agreed(verdict, self._frontier), []

    def _decided(self, posts: list[Post]) -> tuple[list[Agreed], Outcome | None]:
        options, members = self._options, self._options.members
        if self._rows is None:
            each = self._layout.adopt([post.opening for post in posts], members, self._frontier)
            if isinstance(each, Outcome):
                return [], each
            if self._line:
                self._line.erase([post.left for post in posts])
            self._rows = rows_of(options.topology, self._layout.axes, members, each)
        first = self._frontier
        agreed, outcome = decide(posts, self._rows, options.ends, first, self._fed)
        template = self._layout.template
        if template is None:
            return agreed, outcome
        names = [leaf.name for leaf in template.leaves]
        for at in range(len(agreed)):
            marks = [post.marks[at] if at < len(post.marks) else b"" for post in posts]
            if not any(marks):
                continue
            if unlike := _alike.unlike(marks, self._rows, names, first + at):
                return agreed[:at], unlike
            if first + at == self._first:
                self._suspicion = _alike.suspicion(marks, self._rows)
        return agreed, outcome

    def _leave(self) -> None:
        """Tells the other processes that this one feeds no more, if they do not know."""
        if self._line is None:
            return
        why = ""
        if self._outcome is None:
            why = self._closed or f"{type(self._broken).__name__}: {self._broken}"
            self._outcome = Outcome("end", self._frontier)
        self._line.leave(self._options.call, why)
        self._line = None
