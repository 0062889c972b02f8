"""The report's sentences: who is behind, where, since when, and who waits for whom. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from .._verdict import name_processes
from . import _stacks
from ._beat import Beat
from ._judge import Judgement, Seen
from ._witness import AGO

WIDTH = 75  # `hostmesh run` writes a process's number before each line, on 80 columns
_SHOWN = 8  # processes that are told of one by one
_FRAMES = 6  # of a stack
_GIB = 2**30
_LEFT = "is no longer watched"


@dataclass(frozen=True)
class Found:
    """What is known beside the beats: stacks, files, and what the kernel says, by process."""

    stacks: Mapping[int, _stacks.Stack] = field(default_factory=dict[int, _stacks.Stack])
    kernel: Mapping[int, str] = field(default_factory=dict[int, str])
    order: str = ""  # the first divergence in the order of collectives


def report(
    seen: Sequence[Seen], judged: Judgement, found: Found, timeout: float, outcome: str
) -> str:
    """The whole report, in lines of 75 columns that all begin with `hostmesh:`."""
    lines = [*_wrapped(headline(seen, judged, found, timeout))]
    by = {one.beat.process: one for one in seen}
    for process in judged.behind[:_SHOWN]:
        lines += _one(by[process], found, judged)
    if len(judged.behind) > _SHOWN:
        lines.append(f"  and {len(judged.behind) - _SHOWN} more")
    others = [one for p, one in sorted(by.items()) if p not in judged.behind]
    lines += _others(others, judged)
    if found.order:
        lines += _wrapped(found.order, "  ")
    if advice := _advice(judged, found):
        lines += _wrapped(f"do: {advice}", "  ")
    lines += _shown_stacks(found.stacks)
    lines += _files(seen, judged, found)
    lines += _wrapped(outcome)
    return "".join(f"hostmesh: {line}\n" for line in lines)


def in_short(seen: Sequence[Seen], judged: Judgement, found: Found, timeout: float) -> str:
    """Who is behind, and where the first of them is."""
    first = next((one for one in seen if one.beat.process in judged.behind[:1]), None)
    place = ""
    if first is not None:
        last = "last seen " if judged.states.get(first.beat.process) == "silent" else ""
        place = f"; process {first.beat.process}: {last}{where(first)}"
    return headline(seen, judged, found, timeout) + place


def _advice(judged: Judgement, found: Found) -> str:
    """What to do where the place alone does not tell."""
    states = {judged.states.get(process) for process in judged.behind}
    if states == {"ended"}:
        return (
            "give all processes as many steps: Feeder(ends=...), or any_process(done) each step;"
            " what its last collectives gave may be of other steps of the others"
        )
    if states == {"waits"} and not found.order:
        return (
            "look for a jitted call or collective that not all make, or in another order:"
            " HOSTMESH_SANITIZE=1 names the first"
        )
    return ""


def headline(seen: Sequence[Seen], judged: Judgement, found: Found, timeout: float) -> str:
    """Who is behind, in one sentence."""
    who = [one for one in seen if one.beat.process in judged.behind]
    longest = max((one.age for one in who), default=0.0)
    states = {judged.states[one.beat.process] for one in who}
    named = name_processes(judged.behind)
    verb = "has" if len(who) == 1 else "have"
    if states == {"silent"}:
        kernel = {found.kernel.get(one.beat.process, "") for one in who}
        quiet = max(one.quiet for one in who)
        words = {
            "stopped": "is stopped (SIGSTOP, or a debugger)",
            "gone": "is gone: killed, crashed, or ended without a word",
            "runs": "does not let its threads run: a call in C holds the GIL",
        }.get(next(iter(kernel)) if len(kernel) == 1 else "", "")
        if len(who) > 1:
            words = words.replace("is ", "are ", 1).replace("does ", "do ", 1)
        tail = f"and {verb} not been heard of for {quiet:.1f} s"
        body = f"{words}, {tail}" if words else f"{verb} not been heard of for {quiet:.1f} s"
    elif states == {"ended"}:
        body = f"{verb} finished the program, and others wait in a collective"
    elif states == {"waits"}:
        where_ = ", as all do" if len(who) == len(seen) else " elsewhere than the others"
        body = f"wait{'s' * (len(who) == 1)}{where_}: nobody has made progress"
        body += f" for {min(one.age for one in seen):.1f} s"
    else:
        body = f"{verb} made no progress for {longest:.1f} s"
        if found.order:
            body += f", and {'is' if len(who) == 1 else 'are'} not where the others wait"
    return f"watchdog: {named} of {len(seen)} {body} (time-out {timeout:g} s)"


def lost(own: Beat, last: Seen | None, quiet: float, timeout: float) -> str:
    """The report of a process whose coordinator does not answer: it knows of itself, and what
    process 0 told of itself last."""
    head = (
        f"watchdog: the coordinator, process 0, has not answered process {own.process} for"
        f" {quiet:.1f} s (time-out {timeout:g} s): it is stopped or gone, or this host is cut off"
    )
    lines = _wrapped(head)
    if last is not None:
        lines += _wrapped(f"process 0: last seen: {where(last)}", "  ")
        lines += _wrapped(f"host {last.beat.host}, pid {last.beat.pid}", "      ")
    lines += _wrapped(f"process {own.process}: {where(Seen(own))}", "  ")
    lines += [f"all threads of process {own.process}:", f"  {own.folder}/stacks.txt"]
    return "".join(f"hostmesh: {line}\n" for line in lines)


def ends(own: Beat, last: Seen | None, timeout: float) -> tuple[str, str]:
    """What is to be told of a process that ends without a word, and of one whose threads do not run
    and that is killed for it. The witness adds to the seconds between `AGO` those until then."""
    facts: list[str] = []
    seen = f"last seen at most {AGO}0{AGO} s before its end"
    facts += _wrapped(f"process {own.process}: {seen}: {where(Seen(own))}", "  ")
    facts += _wrapped(_memory(own), "      ")
    if last is not None and last.beat.process != own.process:
        seen = f"last seen {AGO}{last.quiet:.1f}{AGO} s before that"
        facts += _wrapped(f"process {last.beat.process}: {seen}: {where(Seen(last.beat))}", "  ")
    named = f"watchdog: process {own.process}, pid {own.pid} on {own.host},"
    words = (
        f"{named} ended without a word: killed, crashed, or ended by JAX after another one",
        f"{named} let no thread run, and is killed after its time-out of {timeout:g} s",
    )
    every = ["".join(f"hostmesh: {line}\n" for line in [*_wrapped(w), *facts]) for w in words]
    return every[0], every[1]


def unended(own: Beat, timeout: float, kills: bool) -> tuple[str, str]:
    """What is to be told of a process whose program finished, and which is there at the time-out; and
    the same in short, for others like it."""
    body = f"finished its program over {timeout:g} s ago and does not end"
    cause = (
        "a computation that it started waits for another process (which has skipped a jitted call,"
        " for one), or an exit handler does not return"
    )
    end = "; it is killed" if kills else ""
    lines = _wrapped(f"watchdog: process {own.process} {body}: {cause}{end}")
    lines += _wrapped(f"process {own.process}: last {_step(own)}at {own.site or own.place}", "  ")
    lines += _wrapped(f"host {own.host}, pid {own.pid}; {_memory(own)}", "      ")
    brief = _wrapped(f"watchdog: process {own.process} {body}, either{end}")
    every = ["".join(f"hostmesh: {line}\n" for line in of) for of in (lines, brief)]
    return every[0], every[1]


def told_timeline(process: int, path: str) -> str:
    """Where a timeline is that somebody has asked for by a signal."""
    return f"hostmesh: watchdog: timeline of process {process}: {path}\n"


def where(one: Seen) -> str:
    """What a process is at, and since when."""
    beat = one.beat
    at = beat.site or beat.place
    words = {
        "agrees": f"waits in {beat.what} at {at}",
        "feeds": f"waits for its own data in {beat.what} at {beat.site}, reading at {beat.place}",
        "devices": f"waits for devices at {at}",
        "compiles": f"compiles at {at}",
        "ended": f"finished its program; last at {at}",
        "left": _LEFT,
    }.get(beat.phase, f"at {at}")
    return f"{_step(beat)}{words} for {one.since:.1f} s"


def _step(beat: Beat) -> str:
    return f"step {beat.step}, " if beat.step >= 0 else ""


def _one(one: Seen, found: Found, judged: Judgement) -> list[str]:
    beat = one.beat
    kernel = found.kernel.get(beat.process, "")
    silent = judged.states.get(beat.process) == "silent"
    held = _stacks.innermost(found.stacks.get(beat.process, ()))
    place, source, told = beat.place, beat.line, where(one)
    if silent and held is not None:
        place, source = held.place, held.source
        told = f"{_step(beat)}at {place}, by its stack as written without its threads"
    elif silent:
        told = f"last seen: {told}"
    lines = _wrapped(f"process {beat.process}: {told}", "  ")
    if source:
        number = place.rpartition(":")[2]
        lines.append(_cut(f"      {number} |   {source}"))
    state = f" ({kernel})" if kernel and silent else ""
    facts = [f"host {beat.host}, pid {beat.pid}{state}"]
    facts.append(f"main thread {'busy' if beat.cpu > 0.5 else 'idle'} ({beat.cpu:.0%} of a CPU)")
    facts.append(f"load {beat.load:.1f} on {beat.cores} CPUs")
    facts.append(_memory(beat))
    if beat.queue >= 0:
        facts.append(f"{beat.queue} batches ready")
    lines += _wrapped("; ".join(facts), "      ")
    for note in beat.notes:
        lines += _wrapped(note, "      ")
    return lines


def _memory(beat: Beat) -> str:
    words = f"memory {beat.rss / _GIB:.2f} GiB"
    if beat.memory:
        words += f", {beat.free / _GIB:.1f} of {beat.memory / _GIB:.1f} GiB free there"
    return words


def _others(others: Sequence[Seen], judged: Judgement) -> list[str]:
    """What the others are at, equal ones together."""
    groups: dict[str, list[Seen]] = {}
    for one in others:
        if judged.states.get(one.beat.process) == "waits" and one.beat.phase == "runs":
            one = Seen(replace(one.beat, phase="devices"), one.quiet)  # to all appearance
        key = _LEFT if one.beat.phase == "left" else where(one).rpartition(" for ")[0]
        groups.setdefault(key, []).append(one)
    lines: list[str] = []
    for words, of in sorted(groups.items(), key=lambda item: -len(item[1]))[:_SHOWN]:
        longest = max(one.since for one in of)
        waits = any(one.beat.phase in ("agrees", "devices") for one in of)
        last = "" if words == _LEFT else f", {longest:.1f} s now"
        for_whom = f", for {name_processes(judged.behind)}" if waits and judged.behind else ""
        named = name_processes(one.beat.process for one in of)
        lines += _wrapped(f"{named}: {_plural(words, len(of))}{last}{for_whom}", "  ")
    if len(groups) > _SHOWN:
        lines.append(f"  and more, at {len(groups) - _SHOWN} other places")
    return lines


def _plural(words: str, count: int) -> str:
    if count == 1:
        return words
    for verb in ("waits", "compiles"):
        words = words.replace(f"{verb} ", f"{verb[:-1]} ", 1)
    return words.replace(_LEFT, _LEFT.replace("is", "are")).replace("its program", "their program")


def _shown_stacks(stacks: Mapping[int, _stacks.Stack]) -> list[str]:
    if not stacks:
        return []
    lines = ["stacks, innermost first, equal ones together:"]
    groups = _stacks.grouped(stacks)
    for who, stack in groups[:_SHOWN]:
        lines += _wrapped(f"{name_processes(who)}:", "  ")
        for frame in stack[:_FRAMES]:
            lines.append(_cut(f"    {frame.place} in {frame.function}"))
            if frame.source:
                lines.append(_cut(f"        {frame.source}"))
    if len(groups) > _SHOWN:
        lines.append(f"  and {len(groups) - _SHOWN} more, in the files")
    return lines


def _files(seen: Sequence[Seen], judged: Judgement, found: Found) -> list[str]:
    first = [one for one in seen if one.beat.process in judged.behind]
    lines: list[str] = []
    for one in [*first, *seen][:2]:
        process = one.beat.process
        silent = judged.states.get(process) == "silent"
        name = f"{one.beat.folder}/{'held.txt' if silent else 'stacks.txt'}"
        if one.beat.folder and (not silent or process in found.stacks) and f"  {name}" not in lines:
            lines += [f"all threads of process {process}, on {one.beat.host}:", f"  {name}"]
    return lines


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH - 10 else f"{line[: WIDTH - 13]}..."


def _wrapped(words: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        words,
        WIDTH - 10,
        initial_indent=indent,
        subsequent_indent=f"{indent}    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
