"""The heartbeat of a process: what the others know of it, in a few hundred bytes."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Literal

import msgpack

# runs      its own code
# agrees    waits in a collective for other processes, or moves bytes with them
# feeds     waits in a Feeder for its own source
# devices   waits in JAX for its devices, which may wait for those of other processes
# compiles  in JAX's compiler
# ended     came to the end of its program, and waits for the others to end
# left      does not take part any more
Phase = Literal["runs", "agrees", "feeds", "devices", "compiles", "ended", "left"]

_WORDS = 160


@dataclass(frozen=True)
class Beat:
    """What a process is at. Times are in seconds, by its own clock and before the beat was made.

    Attributes:
      number: counts the beats of the process.
      step: the last one that it marked; -1 before.
      marks: how often it made progress; 0 before the first, which arms the watchdog.
      age: since the last mark.
      phase, what, site, since: what it is in, the call's words and line, and for how long.
      place: the innermost line of the user's own code, and its text.
      cpu: the share of one CPU that its main thread took since the beat before.
      load, cores, rss, free, memory: of its host: load average, CPUs; bytes that the process holds,
        that are available, and that there are.
      queue: batches that are ready; -1 without a feeder.
      took, waited: seconds of the last step, and how much of it passed in waiting for others.
      steps, busy: steps so far, and the seconds in them that it did not wait for others.
      calls: collectives so far.
      notes: what else went wrong, such as threads that ended with an exception.
    """

    process: int
    number: int
    host: str
    pid: int
    step: int = -1
    marks: int = 0
    age: float = 0.0
    phase: Phase = "runs"
    what: str = ""
    site: str = ""
    since: float = 0.0
    place: str = ""
    line: str = ""
    cpu: float = 0.0
    load: float = 0.0
    cores: int = 1
    rss: int = 0
    free: int = 0
    memory: int = 0
    queue: int = -1
    took: float = 0.0
    waited: float = 0.0
    steps: int = 0
    busy: float = 0.0
    calls: int = 0
    folder: str = ""
    notes: tuple[str, ...] = ()

    def packed(self) -> bytes:
        """The beat as bytes.

        >>> beat = Beat(3, 1, "node1", 77, step=30, place="train.py:41")
        >>> Beat.unpacked(beat.packed()) == beat
        True
        """
        return pack(astuple(self))

    @staticmethod
    def unpacked(message: bytes) -> Beat:
        *fields, notes = msgpack.unpackb(message)
        return Beat(*fields, notes=tuple(notes))


def pack(value: object) -> bytes:
    """Plain values as bytes."""
    packed = msgpack.packb(value)
    assert packed is not None
    return packed


def abridged(words: str) -> str:
    """Words that may be long, such as a collective's with all its shapes."""
    return words if len(words) <= _WORDS else f"{words[: _WORDS - 3]}..."
