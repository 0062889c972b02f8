"""What this process has done last: its step, the calls that its threads are in, the last events."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace

from ._beat import abridged


@dataclass(frozen=True)
class Event:
    """One event of a process: `at` is the time of day; `seconds` is how long it took, 0 at its
    beginning. `number` counts the collectives of a channel, a thread's name. `kind` is that of a
    call where it begins, "... done" where it ends, "... left" where an exception ends it, and
    "... now" at the end of a timeline for one that goes on; `own` tells of the last two whether it
    waits for this process's own data, and not for others."""

    at: float
    kind: str
    what: str
    site: str = ""
    channel: str = ""
    number: int = -1
    seconds: float = 0.0
    own: bool = False


@dataclass
class InCall:
    """A call that a thread is in."""

    kind: str
    what: str
    site: str
    thread: int
    is_waiting: Callable[[], bool] | None
    event: Event
    began: float = field(default_factory=time.monotonic)

    def so_far(self, how: str) -> Event:
        """An event that tells how it stands with the call: "now", "left", "done"."""
        own = how != "done" and self.is_waiting is not None and not self.is_waiting()
        took = time.monotonic() - self.began
        kind = f"{self.kind} {how}"
        return replace(self.event, at=time.time(), kind=kind, seconds=took, own=own)


class Record:
    """The marks of one process. Each is a few assignments: they are made at every step.

    Clocks are `time.monotonic`. `shift` moves what they are compared with, where the whole process
    was suspended for a while: no time has passed for it then.
    """

    def __init__(self, events: int) -> None:
        now = time.monotonic()
        self.began = self.marked = self.step_began = now
        self.step_number = -1
        self.marks = 0
        self.took = self.waited = self.busy = 0.0
        self.steps = 0
        self.calls = 0
        self.depth = -1
        self.ended = False
        self.events: deque[Event] = deque(maxlen=events)
        self._in: dict[int, list[InCall]] = {}
        self._numbers: dict[str, int] = {}
        self._waiting = 0.0

    def touch(self) -> None:
        self.marks += 1
        self.marked = time.monotonic()

    def step(self, number: int) -> None:
        now = time.monotonic()
        if self.step_number >= 0:
            self.took, self.waited = now - self.step_began, self._waiting
            self.steps += 1
            self.busy += self.took - self.waited
        self._waiting = 0.0
        self.step_number, self.step_began, self.marked = number, now, now
        self.marks += 1
        self.events.append(Event(time.time(), "step", str(number)))

    def note(self, kind: str, what: str, site: str = "") -> None:
        self.events.append(Event(time.time(), kind, abridged(what), site))

    def queue(self, depth: int) -> None:
        self.depth = depth

    @contextlib.contextmanager
    def call(
        self, kind: str, what: str, site: str, is_waiting: Callable[[], bool] | None
    ) -> Generator[None]:
        thread = threading.current_thread()
        ident = thread.ident or 0
        number = -1
        if kind == "agree":
            number = self._numbers.get(thread.name, 0) + 1
            self._numbers[thread.name] = number
            self.calls += 1
        began = Event(time.time(), kind, abridged(what), site, thread.name, number)
        entered = InCall(kind, began.what, site, ident, is_waiting, began)
        self.events.append(began)
        self._in.setdefault(ident, []).append(entered)
        self.touch()
        how = "left"
        try:
            yield
            how = "done"
        finally:
            self._in[ident].pop()
            if not self._in[ident]:
                del self._in[ident]
            over = entered.so_far(how)
            if thread is threading.main_thread() and kind != "feed":
                self._waiting += over.seconds
            self.events.append(over)
            self.touch()

    def timeline(self) -> list[Event]:
        """The last events, and how it stands with the calls that go on: the main thread's last."""
        main = threading.main_thread().ident
        calls = sorted(self._in.items(), key=lambda item: item[0] == main)
        return [*list(self.events), *(inside[0].so_far("now") for _, inside in calls if inside)]

    def current(self, thread: int) -> InCall | None:
        """The outermost call that a thread is in: what the user has written."""
        calls = self._in.get(thread)
        return calls[0] if calls else None

    def shift(self, seconds: float) -> None:
        """Takes time out of the clocks that passed for nobody."""
        self.marked += seconds
        self.step_began += seconds
        for calls in list(self._in.values()):
            for entered in calls:
                entered.began += seconds
