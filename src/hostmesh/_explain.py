"""What hostmesh can add to an error of JAX: which variable, mesh axes and processes it is about.

JAX's text speaks of "a `jax.Array`" or of device numbers. The traceback still holds the variables:
an array that it means is looked for among them, innermost of the program's own frames first. Only
shardings are read, never values, and nothing is communicated.
"""

from __future__ import annotations

import dis
import re
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import NamedSharding

from . import _jax
from ._verdict import name_processes, site_of

_OURS = str(Path(__file__).parent / "_")[:-1]
_DEEPEST = 2  # attributes of objects, as in `self.state.params`
_MOST_LEAVES = 10_000  # of one variable
_STACKS = "HOSTMESH_WATCHDOG=60 writes the stacks of all processes where one makes no progress"


def explain(exception: BaseException) -> str | None:
    """Says which variable, mesh axes and processes an error of JAX is about.

    For arrays that other processes hold parts of, read or put where all of it would have to be
    here, or captured by a jitted function; for arguments on different devices, or on the same in
    another order; and for a time-out of the coordination service. After `hostmesh.initialize` what
    is said here stands under JAX's own text wherever an error ends the program, and under a failed
    test of `hostmesh.testing`, without a call.

    Args:
      exception: as caught, with its traceback. Its causes are looked at as well.

    Returns:
      One paragraph, or `None` where there is nothing to add. Nothing is communicated.

    >>> import hostmesh, jax
    >>> try:
    ...     jax.jit(lambda x: x + "one")(1)
    ... except TypeError as error:
    ...     print(hostmesh.explain(error))
    None
    """
    for error in _chain(exception):
        text = str(error)
        for pattern, said in _KINDS:
            if match := pattern.search(text):
                return said(error, match)
    return None


def annotate(exception: BaseException) -> None:
    """Adds what `explain` says as a note, once. What fails in here must not hide the error."""
    with suppress(Exception):
        said = explain(exception)
        note = f"hostmesh: {said}"
        if said and note not in getattr(exception, "__notes__", ()):
            exception.add_note(note)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


# Arrays of which other processes hold parts.


def _fetched(error: BaseException, _: re.Match[str]) -> str | None:
    traces = _traces(error)
    program = list(filter(_is_program, traces))
    inside = [trace.tb_frame.f_locals.get("self") for trace in traces if not _is_program(trace)]
    arrays = [array for array in inside if isinstance(array, jax.Array)]
    named = _name(program, lambda leaf: any(leaf is array for array in arrays) or not arrays)
    if named is None and arrays and program:  # an operator may have made it just before
        named = f"an array without a name ({_site(program[0])})", arrays[0]
    return named and (
        f"{_whose(*named)} For this process's part of it: hostmesh.to_local(x); for all of it, on "
        "every process: hostmesh.allgather(x), called by all of them."
    )


def _put(error: BaseException, _: re.Match[str]) -> str | None:
    named = _name(list(filter(_is_program, _traces(error))), lambda _: True)
    return named and (
        f"{_whose(*named)} To move it to another layout: hostmesh.reshard(x, mesh, specs); for this "
        "process's part: hostmesh.to_local(x)."
    )


def _captured(error: BaseException, match: re.Match[str]) -> str | None:
    program = list(filter(_is_program, _traces(error)))
    advice = "jit would build the values in as constants."
    for trace in program:
        for code, variables in _on_the_line(trace):
            if named := _named(variables, lambda leaf: _kind(leaf) == match[1]):
                name = "a lambda" if code.co_name == "<lambda>" else code.co_name
                return (
                    f"{name} ({site_of(code.co_filename, code.co_firstlineno)}) takes from outside:"
                    f" {_whose(*named)} Make it an argument of {name}: {advice}"
                )
    for trace in program:  # a function that went through other hands
        for function in _functions(trace.tb_frame.f_locals | _used_globals(trace.tb_frame)):
            if named := _named(_captures(function), lambda leaf: _kind(leaf) == match[1]):
                return (
                    f"a function that is traced at {_site(program[0])} takes from outside:"
                    f" {_whose(*named)} Make it an argument there: {advice}"
                )
    return None


def _whose(name: str, array: jax.Array) -> str:
    """Which array, how it is cut, and which processes hold it."""
    here = jax.process_index()
    others = {d.process_index for d in array.sharding.device_set} - {here}
    sharding = array.sharding
    cut = ""
    if isinstance(sharding, NamedSharding):
        axes = ", ".join(f"{axis}={size}" for axis, size in sharding.mesh.shape.items())
        entries = ", ".join(map(repr, sharding.spec))
        cut = f", cut by P({entries}) over mesh {axes}"
    shards = len(array.addressable_shards)
    part = f"{shards} of its {len(sharding.device_set)} shards are on this process ({here})"
    return f"{name} is {_kind(array)}{cut}: {part}, the others on {name_processes(others)}."


def _kind(array: jax.Array) -> str:
    """As JAX writes it: float32[8,2]."""
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"


# Arguments on different devices.


_ARGUMENT = re.compile(
    r"(?:Got|and) (?:argument (?P<name>\S+) of .*? with shape \S+ and|(?P<other>[^,[\]]+?)) "
    r"with device ids \[(?P<ids>[\d, ]*)\]"
)


def _incompatible(_: BaseException, match: re.Match[str]) -> str | None:
    found = list(_ARGUMENT.finditer(match[0]))
    if len(found) != 2:
        return None
    (a, first), (b, second) = (
        (m["name"] or "the " + m["other"], [int(i) for i in m["ids"].split(",") if i.strip()])
        for m in found
    )
    moved = b if found[1]["name"] and len(second) <= len(first) else a
    processes = _processes()
    local = len({processes.get(i) for i in (first if moved == a else second)}) == 1
    way = "to_global" if local else "reshard"
    advice = f"Use one mesh for both, or move one: hostmesh.{way}({moved}, mesh, specs)."
    if sorted(first) == sorted(second):
        at = next(i for i, pair in enumerate(zip(first, second, strict=True)) if pair[0] != pair[1])
        return (
            f"{a} and {b} are on the same {len(first)} devices in different orders: the first "
            f"difference is at place {at}, {_device(first[at])} for {a} and {_device(second[at])} "
            f"for {b}. {advice}"
        )
    only = [(a, set(first) - set(second)), (b, set(second) - set(first))]
    parts = [f"{name} alone is on {_devices(ids)}" for name, ids in only if ids]
    return f"{a} and {b} are not on the same devices: {'; '.join(parts)}. {advice}"


def _processes() -> dict[int, int]:
    return {device.id: device.process_index for device in jax.devices()}


def _device(number: int) -> str:
    process = _processes().get(number)
    return f"device {number}" + ("" if process is None else f" of process {process}")


def _devices(numbers: set[int]) -> str:
    listed = ", ".join(map(str, sorted(numbers)[:8])) + (", ..." if len(numbers) > 8 else "")
    known = _processes()
    owners = {known[number] for number in numbers if number in known}
    word = "device" if len(numbers) == 1 else "devices"
    return f"{word} {listed}" + (f" of {name_processes(owners)}" if owners else "")


# Time-outs of the coordination service.


def _barrier(_: BaseException, match: re.Match[str]) -> str:
    late = [
        int(number) for number in re.findall(r"^\s*(?:\S*/task:)?(\d+)\s*$", match["late"], re.M)
    ]
    came, of = int(match["came"]), int(match["of"])
    missing = f"{name_processes(late)} did not" if late else f"{of - came} did not"
    if 0 < len(late) < of - came:
        missing += f", nor did {of - came - len(late)} more"
    return (
        f"{came} of {of} processes came to the barrier {match['name']!r}, process {match['first']} "
        f"first; {missing}. Look at what they do: {_STACKS}."
    )


def _key(_: BaseException, match: re.Match[str]) -> str | None:
    if match[1].startswith("hostmesh/"):
        return None  # a wait of hostmesh's own, which says itself what it means
    return (
        f"no process wrote the key {match[1]!r} in {match[2]}, or the one that should has not come "
        f"so far. Look at what it does: {_STACKS}."
    )


_KINDS: tuple[tuple[re.Pattern[str], Callable[[BaseException, re.Match[str]], str | None]], ...] = (
    (
        re.compile(r"Closing over jax\.Array that spans non-addressable.* jax\.Array: (\S+)"),
        _captured,
    ),
    (re.compile(r"Fetching value for `jax\.Array` that spans non-addressable"), _fetched),
    (re.compile(r"first argument must be a fully addressable array"), _put),
    (re.compile(r"Received incompatible devices for jitted computation\..*", re.S), _incompatible),
    (
        re.compile(
            r"Barrier timed out\. Id: (?P<name>.*?)(?:::\d+)?\. .*reached the barrier: "
            r"(?P<came>\d+)/(?P<of>\d+)\.\s*The first task at the barrier: (?:\S*/task:)?"
            r"(?P<first>\d+)\. Some timed out task names:\n(?P<late>.*?)(?:\n\n|$)",
            re.S,
        ),
        _barrier,
    ),
    (re.compile(r"GetKeyValue\(\) timed out with key: (\S+) and duration: (\S+)"), _key),
)


# Variables.


def _traces(error: BaseException) -> list[types.TracebackType]:
    """Those of the error, the innermost first."""
    traces: list[types.TracebackType] = []
    trace = error.__traceback__
    while trace is not None:
        traces.insert(0, trace)
        trace = trace.tb_next
    return traces


def _is_program(trace: types.TracebackType) -> bool:
    file = trace.tb_frame.f_code.co_filename
    return not (_jax.is_jax(file) or file.startswith((_OURS, "<frozen")))


def _site(trace: types.TracebackType) -> str:
    return site_of(trace.tb_frame.f_code.co_filename, trace.tb_lineno)


def _name(
    program: list[types.TracebackType], meant: Callable[[jax.Array], bool]
) -> tuple[str, jax.Array] | None:
    """The first variable of the program, or leaf of one, that is meant, with where it is used."""
    for trace in program:
        for variables in (trace.tb_frame.f_locals, _used_globals(trace.tb_frame)):
            if named := _named(variables, meant):
                return f"{named[0]} ({_site(trace)})", named[1]
    return None


def _named(
    variables: Mapping[str, Any], meant: Callable[[jax.Array], bool]
) -> tuple[str, jax.Array] | None:
    for name, value in variables.items():
        for path, leaf in _leaves(value, _DEEPEST):
            if not leaf.is_fully_addressable and meant(leaf):
                return name + path, leaf
    return None


def _leaves(value: Any, depth: int) -> Iterator[tuple[str, jax.Array]]:
    """The arrays of a pytree, and of objects' attributes, by how one writes them."""
    if isinstance(value, (types.ModuleType, type, str, int, float)):
        return
    try:
        leaves = jax.tree_util.tree_leaves_with_path(value)[:_MOST_LEAVES]
    except Exception:  # a pytree of somebody else's that does not flatten
        return
    for path, leaf in leaves:
        written = jax.tree_util.keystr(path)
        if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer):
            if not leaf.is_deleted():
                yield written, leaf
        elif depth and isinstance(getattr(leaf, "__dict__", None), dict) and not callable(leaf):
            for name, attribute in vars(leaf).items():
                for deeper, array in _leaves(attribute, depth - 1):
                    yield f"{written}.{name}{deeper}", array


def _used_globals(frame: types.FrameType) -> dict[str, Any]:
    return {name: frame.f_globals[name] for name in _names(frame.f_code) if name in frame.f_globals}


def _names(code: types.CodeType) -> set[str]:
    """The globals and attributes that a function's code names, and those that functions in it do."""
    inner = [_names(part) for part in code.co_consts if isinstance(part, types.CodeType)]
    return set(code.co_names).union(*inner)


def _on_the_line(
    trace: types.TracebackType,
) -> Iterator[tuple[types.CodeType, Mapping[str, Any]]]:
    """The functions that the failed expression names, and those written in it; what they capture."""
    frame = trace.tb_frame
    code, known = frame.f_code, {**frame.f_globals, **frame.f_locals}
    first, last, *_ = list(code.co_positions())[trace.tb_lasti // 2]
    if first is None or last is None:
        return
    values = [
        instruction.argval
        for instruction in dis.get_instructions(code)
        if (at := instruction.positions) and at.lineno is not None and first <= at.lineno <= last
    ]
    named = {name: known[name] for name in values if isinstance(name, str) and name in known}
    for function in _functions(named):
        yield function.__code__, _captures(function)
    for written in values:
        if isinstance(written, types.CodeType):
            names = _names(written) | set(written.co_freevars)
            yield written, {name: known[name] for name in names if name in known}


def _functions(variables: Mapping[str, Any]) -> Iterator[types.FunctionType]:
    """The functions among some variables, without what wraps them."""
    for value in variables.values():
        while hasattr(value, "__wrapped__"):
            value = value.__wrapped__
        value = getattr(value, "__func__", value)
        if isinstance(value, types.FunctionType):
            yield value


def _captures(function: types.FunctionType) -> dict[str, Any]:
    """The variables that a function takes from outside."""
    found = {
        n: function.__globals__[n] for n in _names(function.__code__) if n in function.__globals__
    }
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # not yet assigned
            found[name] = cell.cell_contents
    return found
