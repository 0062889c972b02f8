"""How a run of `hostmesh run` ended, and what it says of that. Pure."""

from __future__ import annotations

import signal
import textwrap
from contextlib import suppress
from dataclasses import dataclass

TIMED_OUT = 124  # the status that coreutils' `timeout` gives
UNREAD = 128 + signal.SIGPIPE  # the output was closed, by `head` for one


@dataclass(frozen=True)
class Exit:
    """How one process ended: `status` as a shell has it (128 + n for signal n), `seconds` after
    the start; `stopped` if another failed first, or the run was told to end, before; `killed` if it
    did not end then, so that the launcher killed it."""

    process: int
    status: int
    seconds: float
    stopped: bool
    last_lines: tuple[str, ...]
    killed: bool = False


@dataclass(frozen=True)
class Result:
    """How a run ended: the processes in order, and which failed first by time, if one did.

    `status` is the run's own: the first failure's, 124 after a time-out, 128 + n after signal n.
    `why` tells whom a watchdog found behind, that ended the processes.
    """

    exits: tuple[Exit, ...]
    first_failure: Exit | None
    status: int
    seconds: float
    why: str = ""


def summary(result: Result) -> str:
    """What went wrong, in a few lines: nothing for a run that went well."""
    if result.status in (0, UNREAD):
        return ""
    count = len(result.exits)
    first = result.first_failure
    if result.why:
        head = f"ended by the watchdog, after {result.seconds:.1f} s:"
        lines = textwrap.wrap(
            result.why.removeprefix("watchdog: "),
            80,
            initial_indent="  ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        first = None
    elif first is not None:
        how = ", as it did not end," * first.killed
        head = (
            f"process {first.process} of {count} failed first: {_status(first.status)}{how} "
            f"after {first.seconds:.1f} s. Its last lines:"
        )
        lines = [f"  {line[:500]}" for line in first.last_lines] or ["  (it printed nothing)"]
        if any("coordinator_address should be defined" in line for line in lines):
            lines.append("do: call hostmesh.initialize() instead of jax.distributed.initialize()")
    elif result.status == TIMED_OUT:
        head, lines = f"stopped at the time-out, after {result.seconds:.1f} s", []
    else:
        head, lines = f"stopped by {signal.Signals(result.status - 128).name}", []
    others = [e for e in result.exits if e is not first]
    ended = ", ".join(
        f"{e.process}: {_status(e.status)}" for e in others if not (e.stopped or e.killed)
    )
    stopped = ", ".join(
        f"{e.process}: {_status(e.status)}" for e in others if e.stopped or e.killed
    )
    tail = [f"ended before: {ended}"] * bool(ended) + [f"ended then: {stopped}"] * bool(stopped)
    return "\n".join([f"hostmesh run: {head}", *lines, *tail])


def _status(status: int) -> str:
    if status > 128:
        with suppress(ValueError):
            return signal.Signals(status - 128).name
    return f"exit status {status}"
