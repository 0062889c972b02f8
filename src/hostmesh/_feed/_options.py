"""What a feeder is asked for, checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import xxhash
from jax.sharding import Mesh

from .. import _jax, _spec, _values
from .._check import sharding_in_words
from .._config import config
from .._convert import mesh_for, processes_of, sharding_for
from .._coordination import call_site
from .._errors import SpecError, at, build
from .._recipes import mesh_of
from .._topology import Topology
from .._trees import Tree
from .._verdict import Call
from ._ends import Ends
from ._ragged import PadTo, parse
from ._rows import rows_of
from ._template import Layout

Check = Literal["first", "always"] | None


@dataclass(frozen=True)
class Options:
    """What a feeder was asked for."""

    prefetch: int
    ends: Ends
    chunk_rows: int | None
    check: Check
    buffers: int | None
    transform: Callable[[Any], Any] | None
    timeout: float
    topology: Topology
    members: tuple[int, ...]
    call: Call


def prepared(
    mesh: Mesh | None,
    specs: Tree,
    prefetch: int,
    ends: Ends,
    global_batch: int | None,
    transform: Callable[[Any], Any] | None,
    check: Check,
    buffers: int | None,
    pad_to: PadTo | None,
    timeout: float | None,
) -> tuple[Options, Layout]:
    """The options of `Feeder`, and where its batches go; raises `SpecError` for what cannot be."""
    _require(ends in ("drop", "pad", "error"), f"ends={ends!r}", "'drop', 'pad' or 'error'")
    _require(check in ("first", "always", None), f"check={check!r}", "'first', 'always' or None")
    _require(prefetch >= 0, f"prefetch={prefetch}", "a number of batches, 0 or more")
    _require(buffers is None or buffers > 0, f"buffers={buffers}", "a number above 0")
    mesh = mesh_for(mesh, jax.tree.leaves(specs), "Feeder")
    topology, axes = _batch_axis(mesh, specs)
    members = processes_of(mesh, specs)
    me = jax.process_index()
    _require(
        me in members,
        f"a mesh of {topology.who()} on process {me}",
        "one with devices of every process that makes the feeder",
    )
    one = rows_of(topology, axes, members, 1)
    held = len(one.held[members.index(me)])
    chunk_rows = None if global_batch is None else -(-global_batch // one.count)
    if global_batch is not None:
        _require(
            global_batch > 0 and (ends == "pad" or global_batch % one.count == 0),
            f"global_batch={global_batch}, ends={ends!r}",
            f"a multiple of the {one.count} chunks of the batch axis, or any with ends='pad'",
        )
    waits = config.timeout if timeout is None else timeout
    words = [sharding_in_words(sharding_for(mesh, spec)) for spec in jax.tree.leaves(specs)]
    padded = parse(pad_to)
    alike = xxhash.xxh3_64_hexdigest(f"{words} {sorted(padded.items())}".encode())[:8]
    what = f"Feeder(ends={ends!r}, global_batch={global_batch}, check={check!r}, layout {alike})"
    options = Options(
        # On public names alone a round is a collective, and these are the main thread's.
        prefetch=prefetch if len(members) == 1 or _jax.store() is not None else 0,
        ends=ends,
        chunk_rows=chunk_rows,
        check=check,
        buffers=buffers,
        transform=transform,
        timeout=math.inf if timeout is None and len(members) == 1 else waits,
        topology=topology,
        members=members,
        call=Call(what, call_site()),
    )
    layout = Layout(mesh, specs, axes, held, one.count, padded, _values.x64_enabled())
    return options, layout


def _batch_axis(mesh: Mesh | None, specs: Tree) -> tuple[Topology, tuple[str, ...]]:
    """The topology and the mesh axes that cut the batch axis, of all specs alike."""
    found: set[tuple[Topology, tuple[str, ...]]] = set()
    for path, spec in jax.tree_util.tree_leaves_with_path(specs, is_leaf=lambda x: x is None):
        try:
            sharding = sharding_for(mesh, spec)
        except SpecError as error:
            of = f"the spec of leaf {jax.tree_util.keystr(path)}, " if path else ""
            raise at(error, f"{of}Feeder on process {jax.process_index()}") from None
        topology = Topology.from_mesh(mesh_of(sharding))
        cut = _spec.normalize(topology, sharding.spec, max(1, len(sharding.spec)))
        found.add((topology, cut[0]))
    _require(
        len(found) == 1,
        f"specs that cut the first dimension by {sorted(axes for _, axes in found)}",
        "specs of one mesh, which cut the batch axis, the first of all leaves, alike",
    )
    return found.pop()


def _require(holds: bool, given: str, rule: str) -> None:
    if not holds:
        raise build(
            SpecError,
            where=f"Feeder on process {jax.process_index()}",
            given=given,
            rule=f"it takes {rule}",
            advice="correct it",
        )
