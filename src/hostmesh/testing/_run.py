"""`run`: a function in every process of a local cluster, without pytest."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, TypeVar

from .._errors import ClusterError, SpecError, build
from ._pickle import dumps
from ._pool import Shape, pool
from ._report import Done, Run, grouped, outputs, processes_text, unanswered

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

T = TypeVar("T")


def run(
    function: Callable[..., T],
    processes: int = 4,
    devices: int | Sequence[int] = 2,
    args: Sequence[Any] = (),
    *,
    timeout: float = 60.0,
    env: Mapping[str, str] | None = None,
    hosts: int | None = None,
) -> list[T]:
    """Calls `function(*args)` in every process of a local cluster; returns the results in order.

    The processes are real ones, joined by `jax.distributed`, with `devices` CPU devices each (one
    number for all, or a list with one for each process) and the extra environment variables `env`.
    They stay warm: the next call with the same `processes`, `devices`, `env` and `hosts` starts
    none. The function, its arguments and the results travel by cloudpickle, or without it
    by plain pickle, for what modules hold. With `hosts` the
    processes are spread, in blocks, over so many network namespaces, with names and addresses of
    their own (Linux, root and iproute2 only).

    Raises `ClusterError` when the function raises in a process, when a process dies, or when one
    has not ended after `timeout` seconds (starting apart). Its text shows each distinct traceback
    or stack once, with the processes that had it. Raises `SpecError` for counts that cannot be.

    >>> import jax
    >>> run(jax.process_index, processes=2, devices=1)
    [0, 1]
    """
    shape = shape_of(processes, devices, env, hosts=hosts)
    try:
        payload = dumps((function, tuple(args)))
    except ModuleNotFoundError as error:
        raise build(
            ClusterError,
            where="hostmesh.testing.run",
            given=str(error),
            rule="functions and results travel between processes by cloudpickle",
            advice="pip install cloudpickle",
        ) from None
    ended = pool.run(shape, ("call", payload), timeout)
    answers = [
        (p, pickle.loads(e.payload)) for p, e in enumerate(ended.endings) if isinstance(e, Done)
    ]
    if ended.passed:
        return [value for _, value in answers]
    failed = {p for p, e in enumerate(ended.endings) if isinstance(e, Done) and e.failed}
    tracebacks = [(p, text) for p, text in answers if p in failed]
    name = getattr(function, "__qualname__", repr(function))
    raise _error(f"{name} in {len(shape.devices)} processes", tracebacks, ended, timeout)


def shape_of(
    processes: int | None = None,
    devices: int | Sequence[int] = 2,
    env: Mapping[str, str] | None = None,
    owner: str = "",
    hosts: int | None = None,
) -> Shape:
    """The shape of a cluster, from the options that users give."""
    if processes is None:
        processes = 4 if isinstance(devices, int) else len(devices)
    counts = (devices,) * processes if isinstance(devices, int) else tuple(devices)
    if len(counts) != processes or processes < 1 or min(counts) < 1:
        raise build(
            SpecError,
            where="cluster",
            given=f"processes={processes}, devices={devices}",
            rule=f"each of {processes} processes has 1 or more devices",
            advice="give `devices` as one number for all, or as a list with one for each process",
        )
    return Shape(counts, tuple(sorted((env or {}).items())), owner, hosts)


def _error(
    where: str, tracebacks: list[tuple[int, str]], ended: Run, timeout: float
) -> ClusterError:
    parts = [f"{processes_text(p)}:\n{text}" for p, text in grouped(tracebacks)]
    parts += unanswered(ended)
    parts += [f"output of {processes_text(p)}:\n{text}" for p, text in outputs(ended)]
    return build(
        ClusterError,
        where=where,
        given="\n".join(part.rstrip() for part in parts),
        rule=f"the function returns in every process within {timeout:g} s",
        advice="start with the first traceback: processes that wait mostly wait for the failed one",
    )
