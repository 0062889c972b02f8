"""`draw`: pictures of arrays, plans and trees of them, in a terminal, a notebook or a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from jax.sharding import Mesh
from rich.console import Console
from rich.text import Text

from .. import _jax
from .._errors import HostmeshError, SpecError, at, build
from .._plan import Plan
from .._topology import Topology
from .._trees import Matched
from ._html import fragment, page, title_of
from ._known import plan_of
from ._svg import svg
from ._text import text
from ._words import counted

Style: TypeAlias = Literal["auto", "text", "svg", "html"]
Tree: TypeAlias = Any


@dataclass(frozen=True)
class Drawn:
    """One array of a picture: its name, its plan and, where it is known, its dtype."""

    name: str
    plan: Plan
    dtype: np.dtype[Any] | None


@dataclass(frozen=True, repr=False)
class Picture:
    """What `hostmesh.draw` returns: `str()` of it is the text, the SVG or the HTML.

    A notebook shows it by itself, in the `style` that was asked for.

    >>> import hostmesh
    >>> topology = hostmesh.Topology.build({"x": 2}, processes=2)
    >>> picture = hostmesh.draw(hostmesh.plan(topology, "x", global_shape=(4,)), style="svg")
    >>> picture, str(picture)[:4]
    (Picture(1 array), '<svg')
    """

    arrays: tuple[Drawn, ...]
    style: Style

    def text(self, width: int = 80, *, ascii_only: bool = False) -> Text:
        """In lines of at most `width`, with the colours of a terminal."""
        drawn = (text(a.plan, width, name=a.name, ascii_only=ascii_only) for a in self.arrays)
        return Text("\n\n").join(drawn)

    def svgs(self) -> tuple[str, ...]:
        """One SVG for each array."""
        return tuple(svg(a.plan, name=a.name) for a in self.arrays)

    def html(self) -> str:
        """A part of a page that needs nothing from elsewhere: pictures, with tables of facts."""
        return "".join(fragment(a.plan, name=a.name, dtype=a.dtype) for a in self.arrays)

    def save(self, path: str | Path) -> None:
        """Writes a file, whose name ends in `.svg` (of one array), `.html` or `.txt`."""
        path = Path(path)
        if path.suffix == ".svg" and len(self.arrays) == 1:
            whole = self.svgs()[0]
        elif path.suffix == ".html":
            whole = page([self.html()], title_of([(a.name, a.plan) for a in self.arrays]))
        elif path.suffix == ".txt":
            whole = f"{self.text().plain}\n"
        else:
            raise build(
                SpecError,
                where="Picture.save",
                given=f"{str(path)!r} for {counted(len(self.arrays), 'array')}",
                rule="a file is .svg of one array, .html or .txt",
                advice="change the ending: .html takes any number of arrays",
            )
        path.write_text(whole, "utf-8")

    def __str__(self) -> str:
        if self.style in ("auto", "text"):
            return self.text().plain
        return "".join(self.svgs()) if self.style == "svg" else self.html()

    def __repr__(self) -> str:
        return (
            str(self) if self.style == "text" else f"Picture({counted(len(self.arrays), 'array')})"
        )

    # None where a notebook is to show the other.
    def _repr_svg_(self) -> str | None:
        return self.svgs()[0] if self.style in ("auto", "svg") and len(self.arrays) == 1 else None

    def _repr_html_(self) -> str | None:
        alone = self.style in ("auto", "svg") and len(self.arrays) == 1
        return None if alone or self.style == "text" else self.html()


def draw(
    x: Tree,
    mesh: Mesh | Topology | None = None,
    spec: Tree = None,
    *,
    process: int | None = None,
    style: Style = "auto",
) -> Picture:
    """Draws who holds what: the mesh, and the global array in chunks, with processes and devices.

    Made of shardings and shapes alone: values are never read, and nothing communicates, so that one
    process may draw without the others, also while `jax.jit` and `jax.shard_map` trace.

    Args:
      x: an array, a `jax.ShapeDtypeStruct` or a `Plan`, or a pytree of these, each with a picture.
      mesh, spec: the layout to draw, where that is not the array's own: for what has none, such as
        NumPy arrays, and for what is traced. `spec` is a `PartitionSpec` or `NamedSharding`, or a
        prefix pytree of them. Under
        `shard_map` it is what the block was cut by. A `Topology` serves as mesh.
      process: shows also what this process passes to `to_global`, and what it does not hold.
      style: `"auto"` prints in a terminal, in its colours, and shows SVG in a notebook, where the
        picture is the last value of a cell (HTML for several arrays). The others print nothing.

    Returns:
      A `Picture`: `str()` of it is in the style that was asked for, and `save` writes a file.

    Raises:
      SpecError: where no sharding is known, or one that is not of a mesh and a spec; for a spec that
        is none of this mesh.
      ShapeError: for a leaf without a shape, or whose size the chunks do not divide.

    >>> import hostmesh
    >>> topology = hostmesh.Topology.build({"x": 2}, processes=2)
    >>> plan = hostmesh.plan(topology, "x", global_shape=(8,))
    >>> print(hostmesh.draw(plan, style="text"))
    Mesh x=2
    2 devices of 2 processes; dN = place N in the mesh, counted row by row; pN = its
    process
      x →
         0       1
     ┌───────┬───────┐
     │ p0 d0 │ p1 d1 │
     └───────┴───────┘
    <BLANKLINE>
    Global array (8,)
    cut by P('x') in 2 chunks of shape (4,); a chunk is the part of the array that
    one device stores; each is on one device
      dim 0 (x) →
        0:4     4:8
     ┌───────┬───────┐
     │ p0 d0 │ p1 d1 │
     └───────┴───────┘
    """
    if style not in ("auto", "text", "svg", "html"):
        raise build(
            SpecError,
            where="draw",
            given=f"style={style!r}",
            rule="it is 'auto', 'text', 'svg' or 'html'",
            advice="choose one of these",
        )
    matched = Matched(x, spec, "draw", "spec")
    arrays: list[Drawn] = []
    try:
        for leaf, item in zip(matched.leaves, matched.items, strict=True):
            arrays.append(_drawn(matched.path(len(arrays)), leaf, mesh, item, process))
    except HostmeshError as error:
        path = matched.path(len(arrays))
        where = f"{f'leaf {path}' if path else 'value'} on process {_jax.place()[0]} (draw)"
        raise at(error, where) from error.__cause__
    picture = Picture(tuple(arrays), style)
    if style == "auto":
        console = Console(highlight=False)
        if not console.is_jupyter:
            plain = not console.encoding.startswith("utf")
            console.print(picture.text(console.width, ascii_only=plain), soft_wrap=True)
    return picture


def _drawn(path: str, leaf: Any, mesh: Any, spec: Any, process: int | None) -> Drawn:
    planned = plan_of(leaf, mesh, spec, process)
    count = max(planned.topology.processes[-1] + 1, _jax.place()[1])
    if process is not None and not 0 <= process < count:
        raise build(
            SpecError,
            where="draw",
            given=f"process={process}",
            rule=f"processes are numbered 0 to {count - 1}",
            advice="name one of them, or leave it out",
        )
    dtype = getattr(leaf, "dtype", None)
    name = " ".join(part for part in (path, "" if dtype is None else str(dtype)) if part)
    return Drawn(name, planned, dtype if isinstance(dtype, np.dtype) else None)
