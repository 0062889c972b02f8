"""Timelines of several processes read together: where their collectives first differ. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._verdict import name_processes


@dataclass(frozen=True)
class Call:
    """A collective: the channel, its number there, its words, and its line."""

    channel: str
    number: int
    what: str
    site: str


def first_divergence(calls: Mapping[int, Sequence[Call]]) -> str:
    """Where the order of collectives first differs between processes, as a sentence; or "".

    >>> a, b = Call("Main", 1, "barrier 'a'", "t.py:1"), Call("Main", 2, "barrier 'b'", "t.py:2")
    >>> other = Call("Main", 1, "barrier 'b'", "t.py:2")
    >>> first_divergence({0: [a, b], 1: [a, b], 2: [other]})
    "process 2 skipped barrier 'a' at t.py:1, the 1st call of Main: it went on to barrier 'b' at t.py:2"
    """
    channels = dict.fromkeys(call.channel for of in calls.values() for call in of)
    sentences = (_in_channel(channel, calls) for channel in channels)
    return next((sentence for sentence in sentences if sentence), "")


def _in_channel(channel: str, calls: Mapping[int, Sequence[Call]]) -> str:
    by = {
        process: {call.number: call for call in of if call.channel == channel}
        for process, of in calls.items()
    }
    by = {process: numbered for process, numbered in by.items() if numbered}
    if len(by) < 2:
        return ""
    first = max(min(numbered) for numbered in by.values())  # what all still remember
    last = max(max(numbered) for numbered in by.values())
    for number in range(first, last + 1):
        made = {p: numbered[number] for p, numbered in by.items() if number in numbered}
        kinds = Counter((call.what, call.site) for call in made.values())
        if len(kinds) > 1:
            return _told(number, made, by, kinds.most_common(1)[0][0])
    return ""


def _told(
    number: int,
    made: Mapping[int, Call],
    by: Mapping[int, Mapping[int, Call]],
    usual: tuple[str, str],
) -> str:
    odd = [p for p, call in made.items() if (call.what, call.site) != usual]
    call, expected = made[odd[0]], f"{usual[0]} at {usual[1]}"
    others = [p for p in made if p not in odd]
    which = f"the {_ordinal(number)} call of {call.channel}"
    later = {(c.what, c.site) for p in others for n, c in by[p].items() if n > number}
    if (call.what, call.site) in later or call.what != usual[0]:
        verb = "skipped" if (call.what, call.site) in later or len(odd) < len(others) else "made no"
        return (
            f"{name_processes(odd)} {verb} {expected}, {which}: "
            f"{'it' if len(odd) == 1 else 'they'} went on to {call.what} at {call.site}"
        )
    return f"{name_processes(odd)} made {which} at {call.site}, and the others at {usual[1]}"


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def merge(files: Sequence[str | Path]) -> list[str]:
    """What the timelines of several processes, files that a watchdog wrote, tell together.

    Sentences: where the order of collectives first differs, which steps the processes are at, what
    each did last. Raises `OSError` and `ValueError` for what is no timeline.
    """
    told: dict[int, dict[str, Any]] = {}
    for file in files:
        timeline = json.loads(Path(file).read_text())
        if not isinstance(timeline, dict) or "events" not in timeline:
            raise ValueError(f"{file} is no timeline of a watchdog")
        told[int(timeline["process"])] = timeline
    sentences: list[str] = []
    calls = {p: calls_of(timeline["events"]) for p, timeline in sorted(told.items())}
    if divergence := first_divergence(calls):
        sentences.append(divergence)
    elif len(told) > 1:
        sentences.append("the order of collectives is the same, as far as the timelines go")
    places: dict[str, list[int]] = {}
    for process, timeline in sorted(told.items()):
        places.setdefault(_last(timeline["events"]), []).append(process)
    sentences += [f"{name_processes(who)}: {words}" for words, who in places.items()]
    if told and (missing := set(range(max(t["processes"] for t in told.values()))) - set(told)):
        sentences.append(f"no timeline of {name_processes(missing)}")
    return sentences


def calls_of(events: Sequence[Mapping[str, Any]]) -> list[Call]:
    """The collectives among events."""
    return [
        Call(e["channel"], e["number"], e["what"], e["site"])
        for e in events
        if e["kind"] == "agree"
    ]


def _last(events: Sequence[Mapping[str, Any]]) -> str:
    steps = [event["what"] for event in events if event["kind"] == "step"]
    words = f"step {steps[-1]}, " if steps else ""
    if not events:
        return "nothing yet"
    failed = next((e["what"].partition(":")[0] for e in events if e["kind"] == "failed"), "")
    tail = f", then {failed}" if failed else ""
    last = next((e for e in reversed(events) if e["kind"] != "failed"), events[-1])
    at = f" at {last['site']}" if last["site"] else ""
    if last["kind"] == "agree":
        return f"{words}waits in {last['what']}{at}{tail}"
    if last["kind"] == "step":
        return f"{words}then no call{tail}"
    return f"{words}last {last['kind'].removesuffix(' done')}: {last['what']}{at}{tail}"
