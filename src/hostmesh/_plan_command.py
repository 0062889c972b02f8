"""`hostmesh plan`: who holds what of an array, on a cluster that need not be there.

Plans and draws; starts no JAX backend, and asks no devices.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from textwrap import wrap
from typing import Any

import click
import ml_dtypes
import numpy as np
from rich.console import Console

from . import _plan_more
from ._draw._svg import svg
from ._draw._text import text
from ._draw._words import JAX, counted, jax_words, on_all, passing, sharing, spec_in_words
from ._errors import HostmeshError, ShapeError, SpecError, StorageError, build
from ._plan import Plan, plan
from ._topology import Topology

_SHORT = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}
_SHOWN = 6


@click.command()
@click.option("--mesh", metavar="AXIS=SIZE,...", help="Mesh axes, major first.")
@click.option("--processes", type=click.IntRange(min=1))
@click.option(
    "--order",
    default="block",
    show_default=True,
    metavar="block|interleaved|FILE",
    help="Whose devices stand where; FILE has a JSON list of the process of each device.",
)
@click.option("--spec", default="", metavar="SPEC", help="Such as 'data,None', '(data,model)'.")
@click.option("--shape", metavar="SIZE,...", help="Shape of the global array.")
@click.option("--dtype", default="float32", show_default=True)
@click.option("--process", type=click.IntRange(min=0), help="Show what this process passes.")
@click.option("--svg", "svg_file", metavar="FILE", help="Write the picture as SVG to a file.")
@click.option("--json", "as_json", is_flag=True, help="The numbers, for programs.")
@click.option("--plain", is_flag=True, help="No colour, ASCII only.")
@click.option("--html", metavar="FILE", help="Write a page to try layouts on; it needs no network.")
@click.option("--serve", is_flag=True, help="Show that page to browsers of this machine.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of --serve.")
@_plan_more.options
def command(
    mesh: str | None,
    processes: int | None,
    order: str,
    spec: str,
    shape: str | None,
    dtype: str,
    process: int | None,
    svg_file: str | None,
    as_json: bool,
    plain: bool,
    html: str | None,
    serve: bool,
    port: int,
    **others: Any,
) -> None:
    """Show who holds what of an array, without devices; or of a reshard, or a model's file.

    \b
    hostmesh plan --mesh data=4,model=2 --processes 4 --spec data,None --shape 64,128 --process 2
    hostmesh plan --mesh data=4,model=2 --processes 4 --shape 64,128 --reshard 'data -> None,model'
    hostmesh plan --mesh data=4,model=2 --processes 4 --file model.safetensors --rules rules.toml
    hostmesh plan --mesh data=4,model=2 --processes 4 --load model.safetensors --rules rules.toml
    hostmesh plan --serve
    """
    more = _plan_more.More(**others)
    _plan_more.check(more)
    console = Console(no_color=plain or None, highlight=False)
    try:
        if html is not None or serve:  # the page says itself what cannot be
            from . import _plan_reshard
            from ._draw import _page, _serve

            listed = "" if order in ("block", "interleaved") else json.dumps(_owners(order))
            start = _serve.start_of(mesh, processes, order, listed, spec, shape, dtype, process)
            both = None if more.reshard is None else _plan_reshard.two_specs(more.reshard)
            start |= _serve.start_of_reshard(both, more.hosts)
            if html is not None:
                _write("--html", html, _page.page(start))
            if serve:
                _serve.serve(port, start)
            return
        if mesh is None or processes is None or (shape is None and not more.of_files):
            missing = "mesh" if mesh is None else "processes" if processes is None else "shape"
            raise click.MissingParameter(param_hint=f"'--{missing}'", param_type="option")
        owners = order if order in ("block", "interleaved") else _owners(order)
        topology = Topology.build(mesh_axes(mesh), processes, owners)
        kind = _dtype(dtype)
        sizes = _shape(shape or "")
        if more.asked:
            sys.exit(_plan_more.run(more, topology, sizes, kind, parse_spec, as_json, console))
        if process is not None and process >= processes:
            raise build(
                SpecError,
                where="--process",
                given=str(process),
                rule=f"with --processes {processes} they are numbered 0 to {processes - 1}",
                advice="choose one of these, or raise --processes",
            )
        planned = plan(topology, parse_spec(spec), global_shape=sizes, process=process)
        if svg_file is not None:
            _write("--svg", svg_file, svg(planned, name=str(kind)))
    except HostmeshError as error:
        click.echo(f"hostmesh plan: {error}", err=True)
        sys.exit(2)
    facts = _facts(planned, kind, processes, order)
    if as_json:
        click.echo(json.dumps(facts, indent=1))
        return
    ascii_only = plain or not (sys.stdout.encoding or "").lower().startswith("utf")
    picture = text(planned, console.width, name=str(kind), ascii_only=ascii_only)
    console.print(picture, soft_wrap=True)
    said = [part for line in _lines(planned, facts) for part in _wrapped(line, console.width)]
    console.print("\n".join(["", *said, "", *facts["code"]]), markup=False, soft_wrap=True)


def parse_spec(words: str) -> tuple[str | tuple[str, ...] | None, ...]:
    """A spec as it is typed, with or without P(), quotes and spaces.

    >>> parse_spec("data,None"), parse_spec("P(('data', 'model'), None)"), parse_spec("")
    (('data', None), (('data', 'model'), None), ())
    """
    inner = re.sub(r"[\s'\"]", "", words)
    if found := re.fullmatch(r"(?:P|PartitionSpec)\((.*)\)", inner):
        inner = found[1]
    name = r"\w+"
    entry = rf"(?:{name}|\((?:{name}(?:,{name})*,?)?\))"
    if inner and not re.fullmatch(rf"{entry}(?:,{entry})*,?", inner):
        raise build(
            SpecError,
            where="--spec",
            given=repr(words),
            rule="an entry is None, an axis name or names in parentheses, with commas between",
            advice="write, for example, 'data,None' or '(data,model),None'",
        )
    entries = re.findall(entry, inner)
    return tuple(
        tuple(re.findall(name, e)) if e[0] == "(" else None if e == "None" else e for e in entries
    )


def mesh_axes(words: str) -> list[tuple[str, int]]:
    """Mesh axes as they are typed.

    >>> mesh_axes("data=4,model=2")
    [('data', 4), ('model', 2)]
    """
    found = [re.fullmatch(r"\s*(\w+)\s*=\s*(\d{1,9})\s*", part) for part in words.split(",")]
    pairs = [(match[1], int(match[2])) for match in found if match]
    if len(pairs) < len(found):
        raise build(
            SpecError,
            where="--mesh",
            given=repr(words),
            rule="axes are names with sizes, with commas between",
            advice="write, for example, data=4,model=2",
        )
    return pairs


def _shape(words: str) -> tuple[int, ...]:
    parts = [part.strip() for part in words.strip("() ").rstrip(",").split(",")]
    if parts == [""]:
        return ()
    if not all(re.fullmatch(r"\d{1,18}", part) for part in parts):
        raise build(
            ShapeError,
            where="--shape",
            given=repr(words),
            rule="a shape is whole numbers from 0, with commas between",
            advice="write, for example, 64,128",
        )
    return tuple(map(int, parts))


def _dtype(word: str) -> np.dtype[Any]:
    name = _SHORT.get(word, word)
    try:
        return np.dtype(getattr(ml_dtypes, name, name))
    except TypeError:
        raise build(
            ShapeError,
            where="--dtype",
            given=repr(word),
            rule="it is a dtype of NumPy or ml_dtypes",
            advice="write, for example, float32 or bf16",
        ) from None


def _owners(path: str) -> Any:
    try:
        return json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise build(
            SpecError,
            where="--order",
            given=f"{path!r}: {error}",
            rule="it is block, interleaved, or a file with a JSON list of process numbers",
            advice="write a file such as [0, 1, 1, 0]: the process of each device, row-major",
        ) from None


def _write(option: str, path: str, text: str) -> None:
    try:
        Path(path).write_text(text, "utf-8")
    except OSError as error:
        raise build(
            StorageError,
            where=option,
            given=f"{path!r}: {error.strerror or error}",
            rule="it is written to a new file, or in place of an old one",
            advice="name a file in a folder that is there and can be written",
        ) from None


def _facts(planned: Plan, kind: np.dtype[Any], processes: int, order: str) -> dict[str, Any]:
    topology = planned.topology
    each = planned.device_nbytes(kind)
    shapes: dict[str, list[int]] = {}
    for process in topology.processes:
        shapes.setdefault(str(planned.local_shape(process)), []).append(process)
    refused = next((p for p in topology.processes if not topology.is_subcube(p)), None)
    chosen = planned.process
    held = len(topology.positions(topology.processes[0] if chosen is None else chosen))
    return {
        **topology.to_dict(),
        "spec": spec_in_words(planned),
        "dtype": str(kind),
        "global_shape": planned.global_shape,
        "chunk_counts": planned.chunk_counts,
        "shard_shape": planned.shard_shape,
        "local_shapes": shapes,
        "process": chosen,
        "placements": []
        if chosen is None
        else [
            {
                "device": at.position,
                "chunk": at.chunk,
                "global": [[cut.start, cut.stop] for cut in at.global_index],
                "local": [[cut.start, cut.stop] for cut in at.local_index],
            }
            for at in planned.placements()
        ],
        "replicated_between_processes": planned.is_replicated,
        "replica_groups": _groups(planned),
        "bytes": {"device": each, "process": each * held, "all": each * topology.size},
        "jax_refuses_process": refused,
        "code": _code(planned, processes, order),
    }


def _groups(planned: Plan) -> list[dict[str, Any]]:
    groups: dict[tuple[int, ...], int] = {}
    for holders in planned.replica_groups.values():
        groups[holders] = groups.get(holders, 0) + 1
    return [{"processes": holders, "chunks": count} for holders, count in groups.items()]


def _code(planned: Plan, processes: int, order: str) -> list[str]:
    sizes = planned.topology.process_indices.shape
    names, count = planned.topology.axis_names, planned.topology.size
    devices = "np.array(jax.devices())"
    if order == "interleaved":
        devices += f".reshape({processes}, {count // processes}).T"
    elif order != "block":
        devices += "[np.argsort(np.argsort(owners, kind='stable'))]"
    code = [
        "import hostmesh as hm, jax, numpy as np; from jax.sharding import Mesh, PartitionSpec as P",
        f"mesh = Mesh({devices}.reshape({sizes}), {names})",
        f"x = hm.to_global(local, mesh, {spec_in_words(planned)})  # {_shapes(planned)}",
    ]
    if order not in ("block", "interleaved"):
        code.insert(1, f"owners = {planned.topology.process_indices.ravel().tolist()}")
    return code


def _shapes(planned: Plan) -> str:
    """What comes of the code: of the plan's process, or of all where they agree."""
    process = planned.topology.processes[0] if planned.is_uniform else planned.process
    local = None if process is None else planned.local_shape(process)
    before = "" if local is None else f"local.shape == {local}, "
    return f"{before}x.shape == {planned.global_shape}"


def _lines(planned: Plan, facts: dict[str, Any]) -> list[str]:
    shapes, groups, size = facts["local_shapes"], facts["replica_groups"], facts["bytes"]
    lines = [passing(shape, who) for shape, who in list(shapes.items())[:_SHOWN]]
    if len(shapes) > _SHOWN:
        lines.append(f"And {len(shapes) - _SHOWN:,} more shapes.")
    if facts["process"] is None:
        first = min(facts["process_indices"])
        lines.append(f"--process {first} shows which part of the array process {first} passes.")
    held = list(sharing([(group["processes"], group["chunks"]) for group in groups]))
    lines += held[:_SHOWN]
    if len(held) > _SHOWN:
        lines.append(f"And {counted(len(held) - _SHOWN, 'more group')}.")
    who = "process" if facts["process"] is None else f"process {facts['process']}"
    if facts["process"] is None and len(set(np.bincount(facts["process_indices"]))) > 1:
        who = f"process {min(facts['process_indices'])}"
    lines += [
        f"Bytes: {size['device']:,} on each device, {size['process']:,} on"
        f" {'each ' if who == 'process' else ''}{who}, {on_all(planned, size['device'])}.",
        f"{JAX} {jax_words(planned.topology)}",
    ]
    return lines


def _wrapped(line: str, width: int) -> list[str]:
    return wrap(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
