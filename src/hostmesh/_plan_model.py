"""`hostmesh plan --file`: a whole model by rules, from its header alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from ._draw._words import counted
from ._errors import SpecError, build
from ._plan_rules import Rules, Tensor, unused
from ._spec import Axes
from ._topology import Topology

_SHOWN = 10


def chosen(tensors: Sequence[Tensor], pattern: str | None, sort: str) -> list[Tensor]:
    """The tensors whose names a regular expression is found in, in the order asked for."""
    try:
        wanted = re.compile(pattern or "")
    except re.error as error:
        raise build(
            SpecError,
            where="--filter",
            given=f"{pattern!r}: {error}",
            rule="it is a regular expression, looked for in names",
            advice="write, for example, 'layer.0.' or 'weight$'",
        ) from None
    found = [tensor for tensor in tensors if wanted.search(tensor.name)]
    if sort == "bytes":
        found.sort(key=lambda tensor: (-tensor.device_nbytes, tensor.name))
    elif sort == "name":
        found.sort(key=lambda tensor: tensor.name)
    return found


def facts(tensors: Sequence[Tensor], topology: Topology, rules: Rules) -> dict[str, Any]:
    """The numbers of a model, in bytes."""
    devices = {p: len(topology.positions(p)) for p in topology.processes}
    each = sum(tensor.device_nbytes for tensor in tensors)
    whole = sum(t.device_nbytes for t in tensors if t.plan and set(t.plan.chunk_counts) <= {1})
    most = max(devices, key=lambda p: (devices[p], -p))
    least = min(devices, key=lambda p: (devices[p], p))
    return {
        "axes": [list(pair) for pair in topology.axes],
        "tensors": [_row(tensor) for tensor in tensors],
        "rules": dict(rules),
        "unused_rules": unused(rules, tensors),
        "wrong": [
            {"name": t.name, "rule": t.rule, "why": t.wrong} for t in tensors if t.plan is None
        ],
        "bytes": {
            "stored": sum(tensor.nbytes for tensor in tensors),
            "device": each,
            "whole_on_each_device": whole,
            "all": each * topology.size,
        },
        # All shards of a layout have one shape: devices hold as much, processes may not.
        "least_balanced": {
            "most": {"process": most, "devices": devices[most], "bytes": each * devices[most]},
            "least": {"process": least, "devices": devices[least], "bytes": each * devices[least]},
        },
    }


def _row(tensor: Tensor) -> dict[str, Any]:
    made = tensor.plan
    return {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "dtype": str(tensor.native),
        "stored_dtype": str(tensor.dtype),
        "rule": tensor.rule,
        "spec": None if made is None else _typed(made.axes),
        "shard_shape": None if made is None else list(made.shard_shape),
        "device_bytes": tensor.device_nbytes,
    }


def _typed(axes: Axes) -> str:
    """A spec as it is typed, without what cuts nothing at its end.

    >>> _typed((("data", "model"), (), ("x",), ()))
    '(data,model),None,x'
    """
    entries = [
        f"({','.join(names)})" if len(names) > 1 else names[0] if names else "None"
        for names in axes
    ]
    while entries and entries[-1] == "None":
        entries.pop()
    return ",".join(entries)


def table(found: dict[str, Any]) -> Table:
    """A row for each tensor."""
    drawn = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=True)
    drawn.add_column("tensor", overflow="fold", ratio=1)
    for name in ("shape", "dtype", "spec", "shard"):
        drawn.add_column(name, no_wrap=name != "spec", overflow="fold")
    drawn.add_column("bytes", justify="right", no_wrap=True)
    for row in found["tensors"]:
        fits = row["spec"] is not None
        drawn.add_row(
            row["name"],
            _by(row["shape"]),
            _SHORT.get(row["dtype"], row["dtype"]),
            row["spec"] if fits else "wrong",
            _by(row["shard_shape"]) if fits else "",
            f"{row['device_bytes']:,}" if fits else "",
            style=None if fits else "red",
        )
    return drawn


_SHORT = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"} | {
    f"{sign}int{bits}": f"{sign or 'i'}{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}


def _by(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def lines(found: dict[str, Any], topology: Topology) -> list[str]:
    """What is under the table."""
    size, wrong = found["bytes"], found["wrong"]
    good = len(found["tensors"]) - len(wrong)
    said = [
        f"{counted(good, 'tensor')} of {size['stored']:,} stored bytes"
        + (f", and {len(wrong):,} that cannot be laid out" if wrong else ""),
        f"Bytes: {size['device']:,} a device, of which {size['whole_on_each_device']:,} of tensors"
        " that are not cut;",
        f"  {size['all']:,} on {counted(topology.size, 'device')} in all",
        _balance(found["least_balanced"]),
    ]
    if found["unused_rules"]:
        said.append(f"Rules that no tensor goes by: {', '.join(found['unused_rules'][:_SHOWN])}")
    if wrong:
        said.append("Cannot be laid out:")
    for each in wrong[:_SHOWN]:
        rule = "" if each["rule"] is None else f" (rule {each['rule']!r})"
        said.append(f"  {each['name']}{rule}: {each['why']}")
    if len(wrong) > _SHOWN:
        said.append(f"  and {len(wrong) - _SHOWN:,} more; --json lists all")
    return said


def _balance(found: dict[str, Any]) -> str:
    most, least = found["most"], found["least"]
    if most["devices"] == least["devices"]:
        return f"Balance: all devices hold as much, and so do all processes: {most['bytes']:,}"
    return (
        f"Balance: all devices hold as much; process {most['process']} has {most['devices']} of"
        f" them and {most['bytes']:,} bytes, process {least['process']} {least['devices']} and"
        f" {least['bytes']:,}"
    )


def show(found: dict[str, Any], topology: Topology, console: Console) -> None:
    """Prints the table, page by page where a terminal is too low for it."""
    rest = "\n".join(["", *lines(found, topology)])

    def all_of_it() -> None:
        console.print(table(found))
        console.print(rest, markup=False, soft_wrap=True)

    if console.is_terminal and len(found["tensors"]) + 8 > console.height:
        with console.pager(styles=True):
            all_of_it()
    else:
        all_of_it()
