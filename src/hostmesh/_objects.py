"""Python values between processes, of any size: see `_encoding` for which, and how.

See `_collectives` for what all collectives share. With `unsafe_pickle=True`, which all processes
must pass, values travel by pickle: any that can be pickled, but whoever sends one decides what code
runs on those that get it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from . import _encoding
from ._coordination import members_of, rank_of, telling
from ._decisions import together
from ._messages import Incoming, one_each, trade
from ._stream import Stream


def allgather_object(
    value: Any,
    *,
    unsafe_pickle: bool = False,
    processes: Sequence[int] | None = None,
    timeout: float | None = None,
) -> list[Any]:
    """Gives every process the values of all, in process order.

    Args:
      value: None, a bool, number, string, bytes, date, NumPy array, `jax.Array` or key, or a list,
        tuple, dict or set of such; anything that can be pickled with `unsafe_pickle`.
      unsafe_pickle: sends by pickle, which lets each process run code on the others.

    Returns:
      The values in a list: of the same types, tuples as tuples; `jax.Array`s as NumPy.

    Raises:
      DivergenceError, StragglerError, ClusterError: as all collectives.
      ShapeError: for a value that cannot be packed; it names the part.

    >>> import hostmesh, jax
    >>> everywhere = hostmesh.allgather_object({"host": "a", "process": jax.process_index()})
    >>> [value["process"] for value in everywhere] == list(range(jax.process_count()))
    True
    """
    name = _named("allgather_object", None, unsafe_pickle)
    with telling(name, processes=processes):
        message = _encoded(value, unsafe_pickle, name)
    received = trade(name, "to all", [message], processes=processes, timeout=timeout)
    return _decoded(received, unsafe_pickle, name, processes, timeout)


def broadcast_object(
    value: Any = None,
    *,
    source: int = 0,
    unsafe_pickle: bool = False,
    processes: Sequence[int] | None = None,
    timeout: float | None = None,
) -> Any:
    """Gives every process the value of process `source`.

    Args:
      value: on `source`, what `allgather_object` takes. What the others pass is not read.
      source: the process whose value all get.
      unsafe_pickle: sends by pickle, which lets `source` run code on the others.

    Raises:
      DivergenceError, StragglerError, ClusterError: as all collectives.
      ShapeError: for a value that cannot be packed; it names the part.
      SpecError: for a source that does not take part.

    >>> import hostmesh, jax
    >>> config = {"layers": (64, 64)} if jax.process_index() == 0 else None
    >>> hostmesh.broadcast_object(config)
    {'layers': (64, 64)}
    """
    name = _named("broadcast_object", source, unsafe_pickle)
    with telling(name, processes=processes):
        root = rank_of(source, processes, name)
        messages: list[Stream] = []
        if source == jax.process_index():
            messages = [_encoded(value, unsafe_pickle, name)]
    received = trade(name, "to all", messages, source=root, processes=processes, timeout=timeout)
    return _decoded(received, unsafe_pickle, name, processes, timeout)[0]


def scatter_object(
    values: Sequence[Any] | None = None,
    *,
    source: int = 0,
    unsafe_pickle: bool = False,
    processes: Sequence[int] | None = None,
    timeout: float | None = None,
) -> Any:
    """Gives each process its value of those that process `source` passes: the i-th to the i-th.

    Args:
      values: on `source`, a list of one value for each process that takes part, of what
        `allgather_object` takes. What the others pass is not read.
      source: the process whose values are given.
      unsafe_pickle: sends by pickle, which lets `source` run code on the others.

    Raises:
      DivergenceError, StragglerError, ClusterError: as all collectives.
      ShapeError: for a value that cannot be packed; it names the part.
      SpecError: for another number of values than of processes.

    >>> import hostmesh, jax
    >>> files = [[f"part-{p}"] for p in range(jax.process_count())]
    >>> hostmesh.scatter_object(files) == [f"part-{jax.process_index()}"]
    True
    """
    name = _named("scatter_object", source, unsafe_pickle)
    with telling(name, processes=processes):
        root = rank_of(source, processes, name)
        messages: list[Stream] = []
        if source == jax.process_index():
            listed = one_each(values, members_of(processes, name), name)
            messages = [
                _encoded(value, unsafe_pickle, f"{name}, value {i}")
                for i, value in enumerate(listed)
            ]
    received = trade(name, "to each", messages, source=root, processes=processes, timeout=timeout)
    return _decoded(received, unsafe_pickle, name, processes, timeout)[0]


def _named(function: str, source: int | None, unsafe_pickle: bool) -> str:
    options = [f"source={source}"] * (source is not None) + ["unsafe_pickle=True"] * unsafe_pickle
    return f"{function}({', '.join(options)})" if options else function


def _encoded(value: object, unsafe_pickle: bool, name: str) -> Stream:
    return _encoding.encode_pickled(value) if unsafe_pickle else _encoding.encode(value, name)


def _decoded(
    received: Sequence[Incoming],
    unsafe_pickle: bool,
    name: str,
    processes: Sequence[int] | None,
    timeout: float | None,
) -> list[Any]:
    if not unsafe_pickle:
        return [_encoding.decode(message) for message in received]
    # What is unpickled may need modules that a process lacks.
    with together(f"unpickling of {name}", processes=processes, timeout=timeout):
        return [_encoding.decode_pickled(message) for message in received]
