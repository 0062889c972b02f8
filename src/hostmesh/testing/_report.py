"""How a task ended in each process, and the text about it: each distinct text once.

Processes that failed in the same way differ in addresses and in their own number; texts that
differ in nothing else are one.
"""

from __future__ import annotations

import itertools
import linecache
import re
import signal
import sysconfig
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_PROCESS = re.compile(r"\b(process(?:_index|_id)?|rank|host)(\W{0,3})\d+", re.IGNORECASE)
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$', re.MULTILINE)
# Files between a worker's start and the code of a task.
MACHINERY = re.compile(r"[/\\](_pytest|pluggy|hostmesh[/\\]testing)[/\\]|^<string>$")
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))


@dataclass(frozen=True)
class Done:
    """A process answered: `payload` is its pickled value or, with `failed`, what went wrong.

    `clean` tells whether the process is as it was before the task.
    """

    failed: bool
    clean: bool
    payload: bytes


@dataclass(frozen=True)
class Died:
    """A process ended on its own; `code` is its exit code, negative for a signal."""

    code: int

    def __str__(self) -> str:
        if self.code >= 0:
            return f"exit code {self.code}"
        try:
            return f"{signal.Signals(-self.code).name} (signal {-self.code})"
        except ValueError:
            return f"signal {-self.code}"


@dataclass(frozen=True)
class Waiting:
    """A process had not ended in time; `stack` is where it was."""

    stack: str


@dataclass(frozen=True)
class Stopped:
    """A process was stopped because another one had died."""


Ending = Done | Died | Waiting | Stopped


@dataclass(frozen=True)
class Run:
    """What became of one task: an ending and the output of each process, in their order."""

    endings: list[Ending]
    outputs: list[str]
    limit: str  # what those that were waiting had not kept, such as "after 60 s"

    @property
    def reusable(self) -> bool:
        """Whether every process answered and is as before."""
        return all(isinstance(ending, Done) and ending.clean for ending in self.endings)

    @property
    def passed(self) -> bool:
        """Whether every process answered, none with a failure."""
        return all(isinstance(ending, Done) and not ending.failed for ending in self.endings)


def processes_text(processes: Sequence[int]) -> str:
    """`process 1`, or `processes 0, 2, 3`."""
    plural = "es" if len(processes) > 1 else ""
    return f"process{plural} {', '.join(map(str, processes))}"


def grouped(texts: Iterable[tuple[int, str]]) -> list[tuple[list[int], str]]:
    """Each distinct text once, with the processes that had it, in order of the first of them."""
    groups: dict[str, tuple[list[int], str]] = {}
    for process, text in texts:
        key = _PROCESS.sub(r"\1\2N", _ADDRESS.sub("0x", text))
        groups.setdefault(key, ([], text))[0].append(process)
    return list(groups.values())


def unanswered(run: Run) -> list[str]:
    """About the processes that gave no answer: the first dead one, then the stacks of the waiting."""
    dead = [(p, e) for p, e in enumerate(run.endings) if isinstance(e, Died)]
    # SIGABRT is how JAX ends a process that misses another one.
    dead.sort(key=lambda pair: pair[1].code == -signal.SIGABRT)
    lines = [f"process {p} died: {ending}; the others were stopped" for p, ending in dead[:1]]
    waiting = [(p, e.stack) for p, e in enumerate(run.endings) if isinstance(e, Waiting)]
    for processes, stack in grouped(waiting):
        lines.append(f"{processes_text(processes)} had not ended {run.limit}, at:\n{stack}")
    return lines


def outputs(run: Run) -> list[tuple[list[int], str]]:
    """What the processes wrote, each distinct text once, without the empty ones."""
    return grouped((p, text) for p, text in enumerate(run.outputs) if text.strip())


def stack_text(dump: str) -> str:
    """A readable stack, most recent call last, from what faulthandler writes.

    The main thread's frames inside the task, then other threads that are in somebody's own code.
    """
    if not dump.strip():
        return "  (no stack: the process did not answer the signal, so it is itself stopped)"
    main: list[str] = []
    others: list[str] = []
    for part in re.split(r"^(?=Thread |Current thread )", dump, flags=re.MULTILINE):
        frames = list(_FRAME.finditer(part))[::-1]
        own = list(itertools.dropwhile(lambda frame: MACHINERY.search(frame["file"]), frames))
        if len(own) < len(frames):
            main.append(_frames_text(own or frames))
        elif not all(frame["file"].startswith(_LIBRARIES) for frame in frames):
            others.append("another thread:\n" + _frames_text(frames))
    return "\n".join(main + others) or dump


def _frames_text(frames: Sequence[re.Match[str]]) -> str:
    lines: list[str] = []
    for frame in frames:
        lines.append(f'  File "{frame["file"]}", line {frame["line"]}, in {frame["name"]}')
        if source := linecache.getline(frame["file"], int(frame["line"])).strip():
            lines.append(f"    {source}")
    return "\n".join(lines)
