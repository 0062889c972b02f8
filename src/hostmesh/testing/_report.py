"""Putting what several processes say into one report: each distinct text once, with its processes."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Sequence

from ._pool import Died, Run, Waiting

_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_PROCESS = re.compile(r"\b(process(?:_index|_id)?|rank|host)(\W{0,3})\d+", re.IGNORECASE)
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$')
_MACHINERY = re.compile(r"[/\\](_pytest|pluggy|hostmesh[/\\]testing)[/\\]|^<")


def processes_text(processes: Sequence[int]) -> str:
    """`process 1`, or `processes 0, 2, 3`."""
    plural = "es" if len(processes) > 1 else ""
    return f"process{plural} {', '.join(map(str, processes))}"


def normal(text: str) -> str:
    """The text without what differs between processes that had the same: addresses and numbers."""
    return _PROCESS.sub(r"\1\2N", _ADDRESS.sub("0x", text))


def grouped(texts: Iterable[tuple[int, str]]) -> list[tuple[list[int], str]]:
    """Each distinct text once, with the processes that had it, in order of the first of them."""
    groups: dict[str, tuple[list[int], str]] = {}
    for process, text in texts:
        groups.setdefault(normal(text), ([], text))[0].append(process)
    return list(groups.values())


def endings_text(run: Run) -> str:
    """What became of the processes that gave no answer: the dead, then the stacks of the waiting."""
    lines: list[str] = []
    for process, ending in enumerate(run.endings):
        if isinstance(ending, Died):
            lines.append(f"process {process} died: {ending}. The others were stopped.")
            break  # the others only followed
    waiting = [(p, e.stack) for p, e in enumerate(run.endings) if isinstance(e, Waiting)]
    for processes, stack in grouped(waiting):
        lines.append(f"{processes_text(processes)} had not ended after {run.seconds:.1f} s, at:")
        lines.append(stack)
    return "\n".join(lines)


def outputs_text(run: Run) -> str:
    """The processes' outputs, each distinct one once."""
    shown = grouped((p, text) for p, text in enumerate(run.outputs) if text.strip())
    return "\n".join(f"output of {processes_text(p)}:\n{text}" for p, text in shown)


def stack_text(dump: str) -> str:
    """A readable stack, most recent call last, from what faulthandler writes.

    Of each thread only the frames inside the task are kept; threads without any are left out.
    """
    if not dump.strip():
        return (
            "  (no stack: the process did not answer the signal; it is stopped, or in the kernel)"
        )
    threads = [part for part in re.split(r"\n\s*\n", dump.strip()) if part.strip()]
    shown = [text for part in threads if (text := _thread_text(part))]
    return "\n\n".join(shown) or dump


def _thread_text(part: str) -> str:
    frames = [m for line in part.splitlines() if (m := _FRAME.match(line))]
    frames.reverse()
    machinery = [i for i, m in enumerate(frames) if _MACHINERY.search(m["file"])]
    if machinery:
        frames = frames[machinery[-1] + 1 :]
    lines: list[str] = []
    for m in frames:
        lines.append(f'  File "{m["file"]}", line {m["line"]}, in {m["name"]}')
        if source := linecache.getline(m["file"], int(m["line"])).strip():
            lines.append(f"    {source}")
    return "\n".join(lines)
