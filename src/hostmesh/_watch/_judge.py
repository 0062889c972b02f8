"""Who is behind, of the last beats of all processes. Pure: clocks are told, not read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ._beat import Beat

# moves      made progress within the time-out, or is in nobody's way
# compiles   in JAX's compiler, within its own limit
# waits      for others
# stuck      made no progress, and waits for nobody that is known
# silent     its threads do not run, or it is gone, or cut off
# ended      at the end of its program, while others wait
State = Literal["moves", "compiles", "waits", "stuck", "silent", "ended"]

_BUSY = 0.5  # of a CPU


@dataclass(frozen=True)
class Limits:
    """Seconds: without progress, in the compiler, without a beat, and until JAX ends all."""

    timeout: float
    compiling: float
    silence: float
    lost: float


@dataclass(frozen=True)
class Seen:
    """The last beat of a process, and the seconds since it was first seen.

    `compiles` tells that it makes no more of them because the compiler holds the GIL.
    """

    beat: Beat
    quiet: float = 0.0
    compiles: bool = False

    @property
    def age(self) -> float:
        """Seconds since the last progress."""
        return self.beat.age + self.quiet

    @property
    def since(self) -> float:
        """Seconds in the present phase."""
        return self.beat.since + self.quiet


@dataclass(frozen=True)
class Judgement:
    """How all processes are, and who is behind: nobody, where all move or wait for one that does.

    `fatal` tells that the time-out has passed: only then is anything done about it.
    `stale` are all that have made no progress within it, those that wait for the others too.
    """

    states: Mapping[int, State]
    behind: tuple[int, ...] = ()
    stale: tuple[int, ...] = ()
    fatal: bool = False

    @property
    def is_incident(self) -> bool:
        return bool(self.behind)


def judge(seen: Sequence[Seen], limits: Limits) -> Judgement:
    """Who is behind.

    >>> limits = Limits(timeout=10, compiling=60, silence=3, lost=90)
    >>> fine = Seen(Beat(0, 5, "a", 1, marks=7, age=1.0))
    >>> stuck = Seen(Beat(1, 5, "a", 2, marks=7, age=11.0, cpu=1.0))
    >>> judge([fine, stuck], limits).behind
    (1,)
    """
    here = [one for one in seen if one.beat.phase != "left"]
    awaited = any(_is_waiting(one) and one.age > limits.timeout for one in here)
    states: dict[int, State] = {one.beat.process: _state(one, limits, awaited) for one in here}
    unseen = _waiting_unseen(here, limits)
    for one in unseen:
        if states[one.beat.process] == "stuck":
            states[one.beat.process] = "waits"
    states |= _ended_early(here, unseen, states, limits)
    stale = tuple(one.beat.process for one in here if one.age > limits.timeout)

    def of(*wanted: State) -> list[Seen]:
        return [one for one in here if states[one.beat.process] in wanted]

    behind = of("silent") or of("ended") or _hindmost(of("stuck"), here, limits)
    if not behind and not of("stuck", "moves", "compiles") and stale:
        behind = _odd_ones(of("waits"))
    fatal = any(one.age > limits.timeout for one in behind)
    return Judgement(states, tuple(one.beat.process for one in behind), stale, fatal)


def _is_waiting(one: Seen) -> bool:
    return one.beat.phase in ("agrees", "devices")


def _state(one: Seen, limits: Limits, awaited: bool) -> State:
    beat = one.beat
    if one.compiles and one.age <= limits.compiling:
        return "compiles"
    is_late = _late(one, limits) and (beat.marks > 0 or awaited)
    if one.quiet > limits.silence and (is_late or one.quiet > limits.lost):
        return "silent"
    if beat.phase == "ended":
        return "ended" if is_late and awaited else "moves"
    if not is_late:
        return "moves"
    if beat.phase == "compiles":
        return "compiles" if one.age <= limits.compiling else "stuck"
    return "waits" if _is_waiting(one) else "stuck"


def _late(one: Seen, limits: Limits) -> bool:
    """Whether it has made no progress within the time-out. One that makes no more beats may have
    made some since the last: the age that this told does not count on then, and not at all if it
    was the compiler's."""
    if one.quiet <= limits.silence:
        return one.age > limits.timeout
    told = 0.0 if one.beat.phase == "compiles" else one.beat.age
    return max(told, one.quiet) > limits.timeout


def _may_be_stuck(here: Sequence[Seen], limits: Limits) -> list[Seen]:
    """Those without progress that wait for nobody that is known; also some that have time left.

    One that hangs has often made progress after those that wait for it.
    """
    return [one for one in here if one.age > limits.timeout / 2 and one.beat.phase == "runs"]


def _waiting_unseen(here: Sequence[Seen], limits: Limits) -> list[Seen]:
    """Those that wait in a compiled program, to all appearance.

    A thread there has no frame but its caller's: it looks like one that is stuck in that line. Where
    over half of all are idle in one line, it is that they wait, as for a collective on devices.
    """
    idle = [one for one in _may_be_stuck(here, limits) if one.beat.cpu <= _BUSY]
    if not idle:
        return []
    most, count = Counter(one.beat.place for one in idle).most_common(1)[0]
    return [one for one in idle if one.beat.place == most] if 2 * count > len(here) > 1 else []


def _ended_early(
    here: Sequence[Seen], unseen: Sequence[Seen], states: Mapping[int, State], limits: Limits
) -> dict[int, State]:
    """What is known of all where some ended, and the others wait for them in a compiled program.

    To all appearance: over half of all are idle in one line, or all that are not at their end are
    idle, and at a later step than those came to.
    """
    ended = [one for one in here if one.beat.phase == "ended" and _late(one, limits)]
    waiting = [one for one in unseen if _late(one, limits)]
    stuck = [one for one in here if states[one.beat.process] == "stuck"]
    last = max((one.beat.step for one in ended), default=0)
    if not waiting and all(one.beat.step > last and one.beat.cpu <= _BUSY for one in stuck):
        waiting = stuck
    if not (ended and waiting) or any(one not in waiting for one in stuck):
        return {}
    found: dict[int, State] = {one.beat.process: "waits" for one in waiting}
    for one in ended:
        found[one.beat.process] = "ended"
    return found


def _hindmost(stuck: Sequence[Seen], here: Sequence[Seen], limits: Limits) -> list[Seen]:
    """Of processes that are stuck, those that the others of them may be waiting for: at an earlier
    step than others, or busy, or elsewhere than most are. None, as long as these have time left."""
    if not stuck:
        return []
    unseen = {one.beat.process for one in _waiting_unseen(here, limits)}
    may = [one for one in _may_be_stuck(here, limits) if one.beat.process not in unseen]
    may += [one for one in stuck if one not in may]
    earlier = [one for one in _earlier(here) if one in may]
    busy = [one for one in may if one.beat.cpu > _BUSY]
    if earlier and len(earlier) < len(may):
        may = earlier
    elif busy and len(busy) < len(may):
        may = busy
    else:
        may = _minority(may, lambda one: one.beat.place)
    return [one for one in may if _late(one, limits)]


def _odd_ones(waiting: Sequence[Seen]) -> list[Seen]:
    """Of processes that all wait, those that wait elsewhere than most do."""
    if earlier := _earlier(waiting):
        return earlier
    calls = _minority(waiting, lambda one: f"{one.beat.what} {one.beat.site or one.beat.place}")
    if len(calls) < len(waiting):
        return calls
    return _minority(waiting, lambda one: f"{one.beat.step} {one.beat.calls}")


def _earlier(seen: Sequence[Seen]) -> list[Seen]:
    """Those at an earlier step than the last one, where they are half of all at most."""
    last = max(one.beat.step for one in seen)
    earlier = [one for one in seen if one.beat.step < last]
    return earlier if 2 * len(earlier) <= len(seen) else []


def _minority(seen: Sequence[Seen], of: Callable[[Seen], str]) -> list[Seen]:
    """Those that are not where over half are; all where no place has so many, or has all."""
    (most, count), *others = Counter(map(of, seen)).most_common()
    if not others or 2 * count <= len(seen):
        return list(seen)
    return [one for one in seen if of(one) != most]
