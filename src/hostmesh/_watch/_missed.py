"""Which collective, in which others wait, a process has not made. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .._verdict import name_processes
from ._judge import Judgement, Seen
from ._merge import Call


def missed(seen: Sequence[Seen], judged: Judgement, calls: Mapping[int, Sequence[Call]]) -> str:
    """The call that those behind have not made and all that wait have, as a sentence; or "".

    Where all have made the same calls otherwise. It may have been skipped, and who skipped it stands
    at some later line that is right; or the process has not come to it yet.
    """
    by = {one.beat.process: one.beat for one in seen}
    waiting = [p for p in by if by[p].phase == "agrees" and p not in judged.behind]
    behind = [p for p in judged.behind if calls.get(p)]
    last = {p: _last(calls.get(p, ())) for p in waiting}
    if not behind or len(set(last.values())) != 1:
        return ""
    call = last[waiting[0]]
    if call is None:
        return ""
    sentences: list[str] = []
    for process in behind:
        own = max((c.number for c in calls[process] if c.channel == call.channel), default=0)
        if own < call.number:
            made = f"its last: {own}" if own else "it made none"
            sentences.append(
                f"process {process} has not made agreed call {call.number}, {call.what}"
                f" at {call.site} ({made}), in which {name_processes(waiting)}"
                f" wait{'s' * (len(waiting) == 1)}: skipped, or it did not come there from"
                f" {by[process].place}"
            )
    return "; ".join(sentences[:3])


def _last(calls: Sequence[Call]) -> Call | None:
    return calls[-1] if calls else None
