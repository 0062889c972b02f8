"""`hostmesh plan --reshard`: who sends what to whom between two layouts, and what XLA makes of it."""

from __future__ import annotations

from textwrap import wrap
from typing import Any

import numpy as np

from . import _plan_links, _transfers
from ._collective_rules import Route, route
from ._draw._words import spec_in_words
from ._errors import SpecError, build
from ._plan import Plan


def two_specs(words: str) -> tuple[str, str]:
    """The old and the new spec as they are typed.

    >>> two_specs("data,None -> None,model")
    ('data,None', 'None,model')
    """
    old, arrow, new = words.partition("->")
    if not arrow or "->" in new:
        raise build(
            SpecError,
            where="--reshard",
            given=repr(words),
            rule="it is an old and a new spec with one -> between",
            advice="write, for example, 'data,None -> None,model'",
        )
    return old.strip(), new.strip()


def hosts_of(processes: int, hosts: int | None) -> list[int] | None:
    """The host of each process, in blocks; `None` where nothing is known of hosts.

    >>> hosts_of(5, 2)
    [0, 0, 0, 1, 1]
    """
    if hosts is None:
        return None
    if hosts > processes:
        raise build(
            SpecError,
            where="--hosts",
            given=f"{hosts} hosts for {processes} processes",
            rule="each host has a process at least",
            advice=f"give --hosts 1 to {processes}",
        )
    return [process * hosts // processes for process in range(processes)]


def facts(old: Plan, new: Plan, dtype: np.dtype[Any], host_of: list[int] | None) -> dict[str, Any]:
    """The numbers of a reshard, in bytes."""
    size, processes = dtype.itemsize, old.topology.processes
    needs, way = _transfers.needs(old, new, host_of), route(old, new)
    table = {
        to: (_transfers.received(old, new, to) * size).tolist()
        for to in _plan_links.shown(processes)
    }
    return {
        **old.topology.to_dict(),
        "dtype": str(dtype),
        "global_shape": old.global_shape,
        "old": spec_in_words(old),
        "new": spec_in_words(new),
        "hosts": host_of,
        "bytes": {
            "array": int(np.prod(old.global_shape, dtype=object)) * size,
            "on_the_device": needs.own * size,
            "within_process": needs.process * size,
            "between_processes_of_a_host": needs.host * size,
            "between_hosts" if host_of else "between_processes": needs.far * size,
            "least_moved": needs.moved * size,
        },
        "sent_between_processes": _transfers.crossing(old, new) * size,
        "received_from": table,
        "xla": {
            "collectives": [
                {"kind": step.kind, "group": step.group, "bytes": step.moved * size}
                for step in way.steps
            ],
            "bytes": way.moved * size,
            "whole_array_on_each_device": way.is_whole,
            "sure": way.is_sure,
            "why": _why(way, needs.moved * size, way.moved * size),
        },
    }


def lines(found: dict[str, Any]) -> list[str]:
    """The numbers for people."""
    nbytes, xla = found["bytes"], found["xla"]
    total = nbytes["on_the_device"] + nbytes["least_moved"]
    rows = [("on the device already", nbytes["on_the_device"])]
    rows.append(("on another device of its process", nbytes["within_process"]))
    if found["hosts"]:
        rows.append(("in another process of its host", nbytes["between_processes_of_a_host"]))
        rows.append(("on another host", nbytes["between_hosts"]))
    else:
        rows.append(("in another process", nbytes["between_processes"]))
    rows.append(("least possible over links", nbytes["least_moved"]))
    wide = max(len(f"{size:,}") for _, size in rows)
    made = [f"  {words:33} {size:>{wide},}" for words, size in rows]
    said = [
        f"{step['kind']} in groups of {step['group']}: {step['bytes']:,}"
        if step["kind"] != "collective-permute"
        else f"{step['kind']} between pairs: {step['bytes']:,}"
        for step in xla["collectives"]
    ]
    return [
        f"Reshard {found['dtype']} {tuple(found['global_shape'])} from {found['old']}"
        f" to {found['new']}",
        "",
        f"Devices need {total:,} bytes in all. Where the nearest copy of them is:",
        *made,
        "",
        *_table(found),
        "",
        "XLA" + ("" if xla["sure"] else ", perhaps (three dimensions change)") + ":",
        *(f"  {words} bytes" for words in said or ["no collective: 0"]),
        *(
            line
            for why in xla["why"]
            for line in wrap(why, 78, initial_indent="  ", subsequent_indent="  ")
        ),
    ]


def _table(found: dict[str, Any]) -> list[str]:
    """Who sends to whom: a row for each sender and a column for each receiver."""
    sent = found["sent_between_processes"]
    if not sent:
        return ["Processes send each other nothing."]
    return [
        "Bytes from process (row) to process (column), each piece once to a process:",
        *_plan_links.table(found["received_from"], len(set(found["process_indices"]))),
        f"  {sent:,} bytes between processes in all",
    ]


def _why(way: Route, least: int, moved: int) -> list[str]:
    """Why XLA moves more than the least, in words."""
    if moved <= least:
        return ["the least possible"] if moved else []
    kinds = " and ".join(dict.fromkeys(step.kind for step in way.steps))
    said = [f"least possible {least:,} bytes; XLA's {kinds} {_move(kinds)} {moved:,}:"]
    if way.is_whole:
        return [
            *said,
            "it knows no way between these layouts, gathers the array on every device, and each then"
            " keeps its part (its involuntary full rematerialization)",
        ]
    for step, after in zip(way.steps, [*way.steps[1:], None], strict=True):
        if step.kind == "all-gather" and after is not None and after.kind != "all-gather":
            said.append("it gathers a dimension first, of which devices then keep a part")
        elif step.kind == "all-to-all" and after is not None:
            said.append(
                "its all-to-all leaves shards on other devices, and a permute moves them on"
            )
        elif step.kind == "all-to-all" and len(way.steps) == 1:
            said.append("it brings whole shards to replicas, which then keep a part")
        elif step.kind == "collective-permute" and (after is not None or len(way.steps) == 1):
            said.append("a permute moves whole shards, also to devices that have a part of them")
    return said


def _move(kinds: str) -> str:
    return "move" if " and " in kinds else "moves"
