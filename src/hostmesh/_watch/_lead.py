"""What the process that leads does with the beats: it finds who is behind, and tells all once.

An incident begins when somebody is found to be behind. All processes then leave their stacks; with
them, or without after a moment, the report is printed. It is over when those go on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace

import msgpack

from .._cluster import ABANDONED
from .._verdict import name_processes
from . import _merge, _missed, _report, _stacks
from ._beat import Beat, pack
from ._judge import Judgement, Limits, Seen, judge

_COLLECT = 1.5  # seconds that stacks of others are waited for
_TOLD = 12  # processes that a summary names


@dataclass(frozen=True)
class Summary:
    """What all are told, in one small value, whatever the number of processes.

    Attributes:
      number: counts the summaries.
      leader: the beat of the process that leads.
      incident: names the incident, "" without one: all then leave their stacks.
      text: who is behind, once that is reported.
      act: whether the watchdog's action is to be taken now.
      left: whether the leader has stopped its watchdog.
    """

    number: int
    leader: Beat
    incident: str = ""
    text: str = ""
    act: bool = False
    left: bool = False

    def packed(self) -> bytes:
        *rest, leader = (self.number, self.incident, self.text, self.act, self.left, self.leader)
        return pack([*rest, leader.packed()])

    @staticmethod
    def unpacked(message: bytes) -> Summary:
        number, incident, text, act, left, leader = msgpack.unpackb(message)
        return Summary(number, Beat.unpacked(leader), incident, text, act, left)


@dataclass(frozen=True)
class Left:
    """What a process leaves for the report of an incident."""

    incident: str
    stack: _stacks.Stack
    calls: tuple[_merge.Call, ...]

    def packed(self) -> bytes:
        calls = [astuple(call) for call in self.calls]
        return pack([self.incident, _stacks.packed(self.stack), calls])

    @staticmethod
    def unpacked(message: bytes) -> Left:
        incident, stack, calls = msgpack.unpackb(message)
        made = tuple(_merge.Call(*call) for call in calls)
        return Left(incident, _stacks.unpacked(stack), made)


class Beats:
    """The last beat of each process, and when it was first seen, by this process's clock."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[Beat, float]] = {}
        self._compiling: dict[int, int] = {}  # processes, and their beats before the compiler

    def take(self, listed: Mapping[str, bytes]) -> None:
        now = time.monotonic()
        for name, message in listed.items():
            process = int(name)
            beat = Beat.unpacked(message)
            before = self._last.get(process)
            if before is None or before[0].number != beat.number or before[0].pid != beat.pid:
                self._last[process] = (beat, now)

    def seen(self) -> list[Seen]:
        now = time.monotonic()
        return [
            Seen(beat, now - at, self._compiling.get(process) == beat.number)
            for process, (beat, at) in sorted(self._last.items())
        ]

    def compiles(self, process: int) -> None:
        """Tells that a process is in the compiler until its next beat."""
        self._compiling[process] = self._last[process][0].number

    def age(self, process: int, seconds: float) -> None:
        """Tells that the beat of a process was there so many seconds ago already."""
        if process in self._last:
            self._last[process] = (self._last[process][0], time.monotonic() - seconds)

    def shift(self, seconds: float) -> None:
        """As if no time had passed while this process was suspended."""
        for process, (beat, at) in self._last.items():
            self._last[process] = (beat, min(time.monotonic(), at + seconds))


@dataclass
class _Incident:
    name: str
    judged: Judgement
    began: float
    behind_since: float
    reported: bool = False
    acts: bool = False
    text: str = ""


class Leader:
    """Turns beats into a summary, and into the report where there is something to report."""

    def __init__(self, process: int, limits: Limits, action: str) -> None:
        self.beats = Beats()
        self._process = process
        self._limits = limits
        self._action = action
        self._number = 0
        self._incidents = 0
        self._incident: _Incident | None = None
        self.said: list[str] = []  # texts to be printed

    def is_collecting(self) -> bool:
        """Whether stacks are waited for."""
        return self._incident is not None and not self._incident.reported

    def look(self) -> None:
        """Judges what is there."""
        seen = self.beats.seen()
        judged = judge(seen, self._limits)
        known = self._incident
        if known is None:
            if judged.is_incident:
                self._begin(seen, judged)
            return
        still = set(known.judged.behind) & set(judged.behind)
        if known.reported and not still:
            phases = {one.beat.phase for one in seen if one.beat.process in known.judged.behind}
            if known.acts and phases <= {"ended", "left"}:
                return  # all end, as the action has it: what follows is no new incident
            who, took = known.judged.behind, time.monotonic() - known.behind_since
            verb = "goes" if len(who) == 1 else "go"
            self.said.append(
                f"hostmesh: watchdog: {name_processes(who)} {verb} on after {took:.0f} s\n"
            )
            self._incident = None
            if judged.is_incident:
                self._begin(seen, judged)
        elif known.reported and judged.fatal:
            known.acts = self._action != "report"
        elif not known.reported:
            if not judged.is_incident:
                self._incident = None  # it went on before anything was said
            else:
                known.judged = judged

    def _begin(self, seen: list[Seen], judged: Judgement) -> None:
        self._incidents += 1
        age = max(one.age for one in seen if one.beat.process in judged.behind)
        now = time.monotonic()
        name = f"{self._process}-{self._incidents}"
        self._incident = _Incident(name, judged, now, now - age)

    def report(self, left: Mapping[int, Left], kernel: Mapping[int, str]) -> bool:
        """Reports the incident, once all that can have left their stacks, or time is up."""
        known = self._incident
        if known is None or known.reported:
            return True
        seen = self.beats.seen()
        of_this = {p: one for p, one in left.items() if one.incident in (known.name, "")}
        expected = {
            one.beat.process
            for one in seen
            if known.judged.states.get(one.beat.process, "silent") != "silent"
        }
        if expected - set(of_this) and time.monotonic() < known.began + _COLLECT:
            return False
        for process, one in of_this.items():
            if _stacks.is_compiling(one.stack) and kernel.get(process) not in ("stopped", "gone"):
                self.beats.compiles(process)
        now = judge(self.beats.seen(), self._limits)
        if not set(now.behind) & set(known.judged.behind):
            self._incident = None  # it went on before anything was said, or only compiles
            return True
        if set(now.behind) > set(known.judged.behind):  # others of its host, a moment later
            known.judged = now
        calls = {p: one.calls for p, one in of_this.items()}
        found = _report.Found(
            {p: one.stack for p, one in of_this.items() if one.stack},
            kernel,
            _merge.first_divergence(calls) or _missed.missed(seen, known.judged, calls),
        )
        known.acts = known.judged.fatal and self._action != "report"
        known.text = _report.in_short(seen, known.judged, found, self._limits.timeout)
        outcome = {
            "raise": "StragglerError is now raised in all processes",
            "exit": f"all processes now exit with status {ABANDONED}",
        }
        told = outcome.get(self._action, "") if known.acts else ""
        text = _report.report(seen, known.judged, found, self._limits.timeout, told)
        self.said.append(text)
        known.reported = True
        return True

    def summary(self, own: Beat, *, left: bool = False) -> Summary:
        """The next summary."""
        self._number += 1
        known = self._incident
        told = Summary(self._number, own, left=left)
        if known is None:
            return told
        return replace(told, incident=known.name, text=known.text, act=known.acts)

    def silent(self) -> list[Beat]:
        """The last beats of those that are behind and silent."""
        known = self._incident
        beats = (one.beat for one in self.beats.seen())
        return [b for b in beats if known and known.judged.states.get(b.process) == "silent"]

    def behind(self) -> tuple[int, ...]:
        """Who is behind in the incident that there is."""
        return self._incident.judged.behind if self._incident else ()
