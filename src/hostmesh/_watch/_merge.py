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


@dataclass(frozen=True)
class Merged:
    """What timelines tell together; `parted` where processes went different ways."""

    sentences: list[str]
    parted: bool


def merge(files: Sequence[str | Path]) -> Merged:
    """What the timelines of several processes, files that a watchdog wrote, tell together.

    Of files of several runs those of the newest are read. Sentences: where the order of collectives
    first differs, who has made fewer, who alone reads data, what each did last. Raises `OSError` and
    `ValueError` for what is no timeline.
    """
    runs: dict[str, dict[int, dict[str, Any]]] = {}
    for file in files:
        timeline = json.loads(Path(file).read_text())
        if not isinstance(timeline, dict) or "events" not in timeline:
            raise ValueError(f"{file} is no timeline of a watchdog")
        run = runs.setdefault(timeline.get("run", ""), {})
        known = run.get(int(timeline["process"]))
        if known is None or _ended(known) <= _ended(timeline):  # a watchdog may follow another
            run[int(timeline["process"])] = timeline
    if not runs:
        return Merged([], False)
    newest = max(runs, key=lambda run: max(map(_ended, runs[run].values())))
    told = dict(sorted(runs[newest].items()))
    events: dict[int, Sequence[Mapping[str, Any]]] = {p: t["events"] for p, t in told.items()}
    calls = {process: calls_of(of) for process, of in events.items()}
    divergence = first_divergence(calls)
    parted = [divergence] * bool(divergence) or [*_short(calls, events), *_reading(events)]
    sentences = [*parted]
    if not parted and len(told) > 1:
        sentences = ["the order of collectives is the same, as far as the timelines go"]
    places: dict[str, list[int]] = {}
    for process, of in events.items():
        places.setdefault(_last(of), []).append(process)
    sentences += [f"{name_processes(who)}: {words}" for words, who in places.items()]
    if missing := set(range(max(t["processes"] for t in told.values()))) - set(told):
        sentences.append(f"no timeline of {name_processes(missing)}")
    if len(runs) > 1:
        sentences.insert(
            0, f"the newest of {len(runs)} runs, which began {newest or 'at an unknown time'}:"
        )
    return Merged(sentences, bool(parted))


def calls_of(events: Sequence[Mapping[str, Any]]) -> list[Call]:
    """The collectives among events."""
    return [
        Call(e["channel"], e["number"], e["what"], e["site"])
        for e in events
        if e["kind"] == "agree"
    ]


def _ended(timeline: Mapping[str, Any]) -> float:
    return max((event.get("at", 0.0) for event in timeline["events"]), default=0.0)


def _short(
    calls: Mapping[int, Sequence[Call]], events: Mapping[int, Sequence[Mapping[str, Any]]]
) -> list[str]:
    """Who has made fewer calls than others, of each channel; the order of those is the same."""
    found: list[str] = []
    for channel in dict.fromkeys(call.channel for of in calls.values() for call in of):
        last = {
            process: max(
                (c for c in of if c.channel == channel), key=lambda c: c.number, default=None
            )
            for process, of in calls.items()
        }
        made = {process: call.number if call else 0 for process, call in last.items()}
        most = max(made.values())
        ahead = [p for p, number in made.items() if number == most]
        behind = [p for p in made if p not in ahead]
        over = [
            process
            for process in ahead
            for e in events[process]
            if (e["kind"], e["channel"], e["number"]) == ("agree done", channel, most)
        ]
        if not behind or over:  # they are on their way
            continue
        groups: dict[int, list[int]] = {}
        for process in behind:
            groups.setdefault(made[process], []).append(process)
        few = ", ".join(
            f"{name_processes(who)} made {number} agreed call{'s' * (number != 1)}"
            for number, who in groups.items()
        )
        call = last[ahead[0]]
        assert call is not None
        at = f"in {'its' if len(ahead) == 1 else 'their'} {_ordinal(most)}"
        where = "" if channel == "MainThread" else f" of {channel}"
        verb = "is" if len(ahead) == 1 else "are"
        found.append(
            f"{few}{where}, {name_processes(ahead)} {verb} {at}: {call.what} at {call.site}"
        )
    return found


def _reading(events: Mapping[int, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Who alone waits for its own data, where others wait for its batch."""
    feeding = {p: e for p, of in events.items() if (e := _last_call(of)) and _kind(e) == "feed"}
    own = [process for process, event in feeding.items() if event.get("own")]
    if not own or len(own) == len(feeding):
        return []
    one = len(own) == 1
    others = name_processes(p for p in feeding if p not in own)
    return [
        f"{name_processes(own)} alone wait{'s' * one} for {'its' if one else 'their'} own data in"
        f" {feeding[own[0]]['what']}, and {others} for {'it' if one else 'them'}"
    ]


def _kind(event: Mapping[str, Any]) -> str:
    return event["kind"].partition(" ")[0]


def _last_call(events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The last event that is no failure: that is told besides."""
    return next((e for e in reversed(events) if e["kind"] != "failed"), None)


def _last(events: Sequence[Mapping[str, Any]]) -> str:
    steps = [event["what"] for event in events if event["kind"] == "step"]
    words = f"step {steps[-1]}, " if steps else ""
    if not events:
        return "nothing yet"
    failed = next((e["what"].partition(":")[0] for e in events if e["kind"] == "failed"), "")
    tail = f", then {failed}" if failed else ""
    last = _last_call(events) or events[-1]
    at = f" at {last['site']}" if last["site"] else ""
    kind, how = _kind(last), last["kind"].partition(" ")[2]
    if kind == "step":
        return f"{words}then no call{tail}"
    if kind == "ended":
        return f"{words}had finished its program{tail}"
    if kind in _WAITS and how != "done":
        verb = "waited" if how == "left" else "waits"
        whom = "for its own data in" if last.get("own") else _WAITS[kind] if how else "in"
        return f"{words}{verb} {whom} {last['what']}{at}{tail}"
    return f"{words}last {_CALLS.get(kind, kind)}: {last['what']}{at}{tail}"


_WAITS = {"agree": "in", "feed": "for others in", "move": "in"}
_CALLS = {"agree": "agreed call", "move": "agreed call", "feed": "batch"}
