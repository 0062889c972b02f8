"""Pictures as HTML: the SVG with a table of facts, as a part of a page or as a page of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

import numpy.typing as npt

from .._plan import Plan
from ._svg import headline, svg
from ._words import JAX, counted, jax_words, listed, on_all, spec_in_words

_SHOWN = 6
_STYLE = (
    ".hostmesh{margin:0 0 1.5em;overflow-x:auto;font:14px system-ui,sans-serif}"
    ".hostmesh table{border-collapse:collapse;margin-top:.5em}"
    ".hostmesh th,.hostmesh td{padding:.2em .8em .2em 0;text-align:left;vertical-align:top}"
)
_PAGE = (
    ":root{color-scheme:light dark}body{margin:1em;background:#fff;color:#1b1f24}"
    "@media screen and (prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}}"
)


def fragment(plan: Plan, *, name: str = "", dtype: npt.DTypeLike | None = None) -> str:
    """A figure for a page: picture and facts. It needs nothing from elsewhere."""
    rows = "".join(
        f'<tr><th scope="row">{escape(what)}</th><td>{escape(value)}</td></tr>'
        for what, value in _facts(plan, dtype)
    )
    return (
        f'<figure class="hostmesh"><style>{_STYLE}</style>{svg(plan, name=name)}'
        f"<table>{rows}</table></figure>\n"
    )


def page(fragments: Iterable[str], title: str) -> str:
    """A whole document of figures."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_PAGE}</style></head><body>\n"
        f"{''.join(fragments)}</body></html>\n"
    )


def title_of(plans: list[tuple[str, Plan]]) -> str:
    """A page's title."""
    if len(plans) == 1:
        return headline(plans[0][1], plans[0][0])
    return f"Layouts of {counted(len(plans), 'array')}"


def _facts(plan: Plan, dtype: npt.DTypeLike | None) -> Iterator[tuple[str, str]]:
    topology = plan.topology
    yield "global shape", str(plan.global_shape)
    yield "spec", spec_in_words(plan)
    yield "shape on each device", str(plan.shard_shape)
    shapes: dict[str, list[int]] = {}
    for process in topology.processes:
        shapes.setdefault(str(plan.local_shape(process)), []).append(process)
    for shape, processes in list(shapes.items())[:_SHOWN]:
        who = "process" if len(processes) == 1 else "each of processes"
        yield f"shape that {who} {listed(processes)} passes", shape
    if len(shapes) > _SHOWN:
        yield "other shapes", counted(len(shapes) - _SHOWN, "more")
    if dtype is not None:
        each = plan.device_nbytes(dtype)
        yield "bytes", f"{each:,} on each device, {on_all(plan, each)}"
    yield "on several processes", "yes: equal copies" if plan.is_replicated else "no"
    yield JAX, jax_words(topology)
