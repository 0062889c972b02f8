"""What passes through the coordination service: beats up, one summary down.

In a thread of its own, as any call may block where process 0, which has the service, is stopped.
In all it is a few messages for each process and round, whatever their number: process 0 alone lists
the beats. Every process writes over its own keys: the service grows no larger.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable

from .. import _jax
from . import _files, _sample, _table
from ._beat import Beat
from ._judge import Limits
from ._lead import Leader, Left, Summary

_ROOT = "hostmesh/watch/"
_POLL = 0.1  # seconds between two looks at the stacks that come in


class Post:
    """This process's part in the service, and what came of it.

    Attributes:
      answered: when the service answered last (`time.monotonic`).
      summary: the last one.
      leads: whether this process leads: process 0, or another where process 0's threads do not run.
    """

    def __init__(
        self,
        process: int,
        name: str,
        limits: Limits,
        action: str,
        leave: Callable[[str], Left],
        say: Callable[[str], None],
        line: float | None,
    ) -> None:
        self.answered = time.monotonic()
        self.summary: Summary | None = None
        self.problem = ""
        self._process = process
        self._name = name
        self._folder = f"{_ROOT}{name}/"
        self._limits = limits
        self._action = action
        self._leave = leave
        self._say = say
        self._line = line
        self._line_at = time.monotonic()
        self._leader = Leader(process, limits, action) if process == 0 else None
        self._changed = threading.Condition()
        self._beat: Beat | None = None
        self._newest: Beat | None = None
        self._handled = ""
        self._replaced = 0  # the last beat of process 0 before this process took its place
        self._fresh = time.monotonic()  # when the summary last changed
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="hostmesh-watch-post", daemon=True)

    @property
    def leads(self) -> bool:
        return self._leader is not None

    @property
    def summary_age(self) -> float:
        """Seconds since another summary came."""
        return time.monotonic() - self._fresh

    def start(self) -> None:
        self._thread.start()

    def offer(self, beat: Beat) -> None:
        """Hands over a new beat; one that was not posted yet is dropped."""
        with self._changed:
            self._beat = self._newest = beat
            self._changed.notify_all()

    def shift(self, seconds: float) -> None:
        """Takes time out of the clocks during which this process was suspended."""
        self.answered += seconds
        self._fresh += seconds
        if self._leader is not None:
            self._leader.beats.shift(seconds)

    def stop(self, last: Beat, seconds: float) -> None:
        """Posts a last beat and ends, where the service answers in time."""
        with self._changed:
            self._stopping = True
            self._beat = last
            self._changed.notify_all()
        self._thread.join(seconds)

    def last_beats(self, processes: Iterable[int] | None = None) -> list[Beat]:
        """The last beats of some processes or, at the price of one for each, of all. Asks the
        service, in the caller's thread."""
        store = _jax.store()
        if store is None:
            return [self._newest] if self._newest else []
        if processes is None:
            found = list(store.list(f"{self._folder}beats/").values())
        else:
            asked = (store.peek(f"{self._folder}beats/{process}") for process in processes)
            found = [message for message in asked if message is not None]
        return sorted(map(Beat.unpacked, found), key=lambda beat: beat.process)

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._beat is None:
                    self._changed.wait()
                beat, self._beat = self._beat, None
                stopping = self._stopping
            store = _jax.store()
            try:
                if store is None:
                    self._alone(beat)
                else:
                    store.set(f"{self._folder}beats/{self._process}", beat.packed())
                    self.answered = time.monotonic()
                    self._round(store, beat, stopping)
                    self.answered = time.monotonic()
                self.problem = ""
            except Exception as error:  # the service is gone, or going
                self.problem = f"{type(error).__name__}: {error}"
            if stopping:
                return

    def _round(self, store: _jax.Store, beat: Beat, stopping: bool) -> None:
        if self._leader is not None:
            self._lead(store, beat, self._leader, stopping)
            return
        message = store.peek(f"{self._folder}summary")
        if message is None:
            return
        summary = Summary.unpacked(message)
        if self.summary is None or summary.number != self.summary.number:
            self._fresh = time.monotonic()
        self.summary = summary
        self._follow(store, summary)
        self._step_in(store, summary, beat)

    def _follow(self, store: _jax.Store, summary: Summary) -> None:
        if summary.incident and summary.incident != self._handled:
            self._handled = summary.incident
            left = self._leave(summary.incident)
            store.set(f"{self._folder}left/{self._process}", left.packed())

    def _lead(self, store: _jax.Store, beat: Beat, leader: Leader, stopping: bool) -> None:
        if self._process and not stopping and self._is_back(store):
            self._leader = None
            return
        leader.beats.take(store.list(f"{self._folder}beats/"))
        if not stopping:
            leader.look()
        self._publish(store, leader, beat, stopping)
        if leader.is_collecting():
            while not leader.report(self._left(store, leader), self._kernel(leader)):
                time.sleep(_POLL)
                leader.beats.take(store.list(f"{self._folder}beats/"))
            self._publish(store, leader, beat, stopping)
        self._print(leader)
        if stopping and all(one.beat.phase == "left" for one in leader.beats.seen()):
            store.delete(self._folder)

    def _publish(self, store: _jax.Store, leader: Leader, beat: Beat, stopping: bool) -> None:
        summary = leader.summary(beat, left=stopping)
        store.set(f"{self._folder}summary", summary.packed())
        self.summary = summary
        self._follow(store, summary)

    def _left(self, store: _jax.Store, leader: Leader) -> dict[int, Left]:
        listed = store.list(f"{self._folder}left/")
        self.answered = time.monotonic()
        left = {int(process): Left.unpacked(message) for process, message in listed.items()}
        for beat in leader.silent():
            left[beat.process] = Left("", _files.held_stack(beat.folder), ())
        return left

    def _kernel(self, leader: Leader) -> dict[int, str]:
        """What this host's kernel says of processes that are silent, where they are on it."""
        last = {one.beat.process: one.beat for one in leader.beats.seen()}
        own = last.get(self._process)
        here = [last[p] for p in leader.behind() if own and last[p].host == own.host]
        return {beat.process: _sample.process_state(beat.pid) for beat in here}

    def _print(self, leader: Leader) -> None:
        if self._line is not None and time.monotonic() >= self._line_at + self._line:
            self._line_at = time.monotonic()
            beats = [one.beat for one in leader.beats.seen()]
            self._say(f"hostmesh: watchdog: {_table.found(beats).line()}\n")
        said, leader.said = leader.said, []
        for text in said:
            self._say(text)

    def _step_in(self, store: _jax.Store, summary: Summary, beat: Beat) -> None:
        """Leads in the place of process 0, whose threads do not run while its service answers."""
        quiet = time.monotonic() - self._fresh
        limit = min(self._limits.timeout, self._limits.lost)
        if summary.left or quiet < limit:
            return
        if store.set_once(f"{self._folder}deputy/{summary.number}", str(self._process).encode()):
            leader = Leader(self._process, self._limits, self._action)
            leader.beats.take(store.list(f"{self._folder}beats/"))
            leader.beats.age(0, quiet)
            self._leader, self._replaced = leader, summary.leader.number
            self._lead(store, beat, leader, stopping=False)

    def _is_back(self, store: _jax.Store) -> bool:
        """Whether process 0 has made a beat since this one leads in its place."""
        message = store.peek(f"{self._folder}beats/0")
        if message is None or Beat.unpacked(message).number <= self._replaced + 1:
            return False
        self._say("hostmesh: watchdog: process 0 goes on, and leads again\n")
        return True

    def _alone(self, beat: Beat) -> None:
        """In a program of one process, or without a way to the service: this process alone."""
        self.answered = time.monotonic()
        leader = self._leader = self._leader or Leader(self._process, self._limits, self._action)
        leader.beats.take({str(self._process): beat.packed()})
        leader.look()
        while leader.is_collecting():
            left = {self._process: self._leave("")}
            if not leader.report(left, {}):
                time.sleep(_POLL)
        self.summary = leader.summary(beat)
        with contextlib.suppress(Exception):
            self._print(leader)
