"""The clock of a watchdog: it samples this process, and sees to it that something comes of it.

In a thread of its own that never calls the service, so that it goes on where process 0 is stopped.
"""

from __future__ import annotations

import contextlib
import threading
import time

from .._cluster import ABANDONED
from .._errors import StragglerError, build
from . import _act, _files, _report, _signal, _witness
from ._beat import Beat
from ._judge import Limits, Seen
from ._lead import Left
from ._merge import Call
from ._post import Post
from ._record import Record
from ._sample import Sampler

# Who may be stuck beats that often, in seconds.
_SOON = 1.0
# A gap between two looks that is longer than this many of them, and these seconds, is a suspension.
_GAPS, _GAP = 3, 2.0
_LEADER_STAYS = 1.5  # seconds that the leader goes on for the others to read what it found
_STAYS = 4.0  # seconds that process 0 stays for the others to end: a launcher gives them 5
_GRACE = 5.0  # seconds for an error to reach its thread
_CALLS = 60  # collectives of a process that are compared


class Keeper:
    """Samples and beats every `every` seconds; more often where this process may be stuck."""

    def __init__(
        self,
        record: Record,
        sampler: Sampler,
        files: _files.Files,
        limits: Limits,
        every: float,
        action: str,
        process: int,
        name: str,
        line: float | None,
    ) -> None:
        self._record = record
        self.sampler = sampler
        self._files = files
        self._limits = limits
        self._every = every
        self._action = action
        self._process = process
        self.post = Post(process, name, limits, action, self._leave, self._say, line)
        self.interrupter = _act.Interrupter()
        self.notes: list[str] = []
        self._acted = 0.0  # when the action was taken
        self._why = ""  # and for what
        self._suspects = False  # whether the service did not answer at the last look
        self._lost = 0.0  # when it was said not to
        self._stopped = False
        self._bell = _signal.Bell()
        deaf = 0.0 if action == "report" else limits.timeout + _GRACE
        self._witness = _witness.Witness(deaf, files.shared(name), files.path("ended.txt"), process)
        self._thread = threading.Thread(target=self._run, name="hostmesh-watch", daemon=True)

    def start(self) -> None:
        self.post.start()
        self._thread.start()

    def stop(self, finished: bool) -> None:
        """Ends both threads. The others are told that this process does not take part any more.

        With `finished` the program has, and all others have: the witness sees to it that the
        process ends within the time-out.
        """
        self._stopped = True
        self._bell.ring()
        if threading.current_thread() is not self._thread:
            self._thread.join(2.0)
        beat = self.sampler.beat()
        self.post.stop(_left(beat), 2.0)
        self.interrupter.close()
        if finished:
            timeout, kills = self._limits.timeout, self._action != "report"
            self._witness.follow(*_report.unended(beat, timeout, kills), timeout, kills)
        else:
            self._witness.close()
        if not self._thread.is_alive():
            self._bell.close()

    def _run(self) -> None:
        before = time.monotonic()
        wait = 0.0
        while not self._stopped:
            early = wait > 0 and self._bell.wait(wait)
            if early:
                self.write_timeline()
                self._say(_report.told_timeline(self._process, self._files.path(_files.TIMELINE)))
            if self._stopped:
                return
            now = time.monotonic()
            gap = now - before - wait
            if gap > max(_GAP, _GAPS * wait):
                self._record.shift(gap)
                self.post.shift(gap)
                self._record.note("suspended", f"for {gap:.1f} s")
            before = now
            try:
                wait = self._look()
            except Exception as error:  # whatever it is: the program itself is well
                self._say(f"hostmesh: watchdog: {type(error).__name__}: {error}\n")
                wait = self._every

    def _look(self) -> float:
        beat = self.sampler.beat(tuple(self.notes[-3:]))
        silence = min(self._limits.timeout, self._limits.lost)
        self._files.arm(self.sampler.thread.ident or 0, max(0.7 * silence, 0.5))
        self.post.offer(beat)
        known = self.post.summary
        last = None if known is None else Seen(known.leader, self.post.summary_age)
        self._witness.know(*_report.ends(beat, last, self._limits.timeout))
        self._look_at_service(beat)
        self._act(beat)
        soon = min(self._every, _SOON)
        left = self._limits.timeout - beat.age
        return soon if self._suspects or left < 2 * self._every else self._every

    def _look_at_service(self, beat: Beat) -> None:
        """Tells, from here, that process 0 does not answer: nobody else can."""
        if self._process == 0:
            return  # the service is here
        quiet = time.monotonic() - self.post.answered
        if quiet < min(self._limits.timeout, self._limits.lost):
            if self._lost:
                took = time.monotonic() - self._lost
                self._say(f"hostmesh: watchdog: process 0 answers again after {took:.0f} s\n")
                self._lost = 0.0
            self._suspects = False
            return
        if not self._suspects:
            self._suspects = True  # this process may just have been suspended: at the next look
            return
        if not self._lost:
            self._lost = time.monotonic() - quiet
            self._files.write_stacks(self.sampler.stacks(), "process 0 does not answer")
            self.write_timeline()
            known = self.post.summary
            last = None if known is None else Seen(known.leader, quiet)
            self._say(_report.lost(beat, last, quiet, self._limits.timeout))

    def _act(self, beat: Beat) -> None:
        if self._action == "report":
            return
        if self._acted:
            self._see_through(beat)
            return
        summary = self.post.summary
        text = ""
        if summary is not None and summary.act:
            text = summary.text
            if self.post.leads:
                time.sleep(_LEADER_STAYS + min(self._every, _SOON))
        elif self._lost and time.monotonic() - self._lost > self._limits.timeout:
            text = "watchdog: the coordinator, process 0, does not answer"
        if not text:
            return
        self._acted, self._why = time.monotonic(), text
        if self._action == "exit":
            self._say(f"hostmesh: watchdog: process {self._process} exits with {ABANDONED}\n")
            self._end()
        self.interrupter.interrupt(self.sampler.thread, self._error(text, beat))

    def _see_through(self, beat: Beat) -> None:
        """After an error was raised: where it does not get through, or does not help, the exit."""
        took = time.monotonic() - self._acted
        if not self.interrupter.taken and took > _GRACE:
            why = f"its main thread takes no error for {took:.0f} s"
        elif took > self._limits.timeout + _GRACE and beat.age > self._limits.timeout:
            why = f"it has not ended {took:.0f} s after the error"
        else:
            if self.interrupter.taken and not (self.post.summary and self.post.summary.act):
                self._acted = 0.0  # the program took it, and goes on
            return
        self._say(f"hostmesh: watchdog: process {self._process} exits with {ABANDONED}: {why}\n")
        self._end()

    def _end(self) -> None:
        """The others learn that this is no end of its own, and so does who has started it."""
        self.post.stop(_left(self.sampler.beat()), 1.0)
        _act.note_why(self._why)
        if self._process == 0 and self._action == "raise":
            self._stay()
        self._witness.close()
        _act.end_process()

    def _stay(self) -> None:
        """JAX aborts who still needs the service, which ends with this process."""
        until = time.monotonic() + _STAYS
        with contextlib.suppress(Exception):
            while time.monotonic() < until:
                others = [beat for beat in self.post.last_beats() if beat.process]
                if all(beat.phase == "left" for beat in others):
                    return
                time.sleep(0.1)

    def _error(self, text: str, beat: Beat) -> StragglerError:
        return build(
            StragglerError,
            where=f"{text}; raised on process {self._process}",
            given=f"{_report.where(Seen(beat))}",
            rule=f"every process makes progress within {self._limits.timeout:g} s",
            advice="see the report on standard error, and the stacks in the files that it names",
        )

    def _leave(self, incident: str) -> Left:
        """What this process leaves for a report."""
        self._files.write_stacks(self.sampler.stacks(), f"incident {incident}")
        self.write_timeline()
        events = [event for event in list(self._record.events) if event.kind == "agree"]
        calls = [Call(e.channel, e.number, e.what, e.site) for e in events[-_CALLS:]]
        return Left(incident, self.sampler.own_stack(), tuple(calls))

    def write_timeline(self) -> None:
        """Writes the timeline where it can be written."""
        try:
            self._files.write_timeline(self._record.timeline(), None)
        except OSError as error:
            self._record.note("timeline", str(error))

    def _say(self, text: str) -> None:
        _act.say(text)


def _left(beat: Beat) -> Beat:
    """The last beat of a process that does not take part any more."""
    return Beat(beat.process, beat.number, beat.host, beat.pid, beat.step, phase="left")
