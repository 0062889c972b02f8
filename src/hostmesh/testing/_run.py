"""`run`: a function in every process of a local cluster, without pytest."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from .._errors import ClusterError, SpecError, build
from ._pool import Done, Run, Shape, pool
from ._report import endings_text, grouped, outputs_text, processes_text

T = TypeVar("T")


def shape_of(
    processes: int = 4,
    devices: int | Sequence[int] = 2,
    env: Mapping[str, str] | None = None,
    owner: str = "",
) -> Shape:
    """The shape of a cluster from the options that users give."""
    counts = (devices,) * processes if isinstance(devices, int) else tuple(devices)
    if len(counts) != processes or processes < 1 or min(counts) < 1:
        raise build(
            SpecError,
            where="cluster",
            given=f"processes={processes}, devices={devices}",
            rule=f"{processes} processes need {processes} counts of devices, each 1 or more",
            advice="give `devices` as one number for all, or a list with one for each process",
        )
    return Shape(counts, tuple(sorted((env or {}).items())), owner)


def run(
    function: Callable[..., T],
    processes: int = 4,
    devices: int | Sequence[int] = 2,
    args: Sequence[Any] = (),
    *,
    timeout: float = 60.0,
    env: Mapping[str, str] | None = None,
) -> list[T]:
    """Calls `function(*args)` in every process of a local cluster; returns the results in order.

    The processes are real, joined by `jax.distributed`, with `devices` CPU devices each (a number
    for all, or a list with one for each process) and the extra environment variables `env`. They
    stay warm: the next call with the same `processes`, `devices` and `env` does not start anew.
    Function, arguments and results travel by cloudpickle.

    Raises `ClusterError` when the function raises in a process, a process dies, or one has not
    ended after `timeout` seconds; its text shows each distinct traceback or stack once, with the
    processes that had it.

    >>> import jax
    >>> run(jax.process_index, processes=2, devices=1)
    [0, 1]
    """
    shape = shape_of(processes, devices, env)
    try:
        import cloudpickle
    except ImportError as error:
        raise build(
            ClusterError,
            where="hostmesh.testing.run",
            given=f"no module cloudpickle ({error})",
            rule="functions travel to the processes by cloudpickle",
            advice="pip install cloudpickle",
        ) from None
    outcome = pool.run(shape, ("call", cloudpickle.dumps((function, tuple(args)))), timeout)
    if outcome.whole and not _failures(outcome):
        return [pickle.loads(e.payload) for e in outcome.endings if isinstance(e, Done)]
    raise _error(function, shape, outcome, timeout)


def _failures(outcome: Run) -> list[tuple[int, str]]:
    return [
        (p, pickle.loads(e.payload))
        for p, e in enumerate(outcome.endings)
        if isinstance(e, Done) and e.failed
    ]


def _error(
    function: Callable[..., Any], shape: Shape, outcome: Run, timeout: float
) -> ClusterError:
    parts = [f"{processes_text(p)}:\n{text}" for p, text in grouped(_failures(outcome))]
    parts += [endings_text(outcome), outputs_text(outcome)]
    text = "\n".join(part.rstrip() for part in parts if part)
    return build(
        ClusterError,
        where=f"{getattr(function, '__qualname__', function)} in {len(shape.devices)} processes",
        given=text.replace("\n", "\n    "),
        rule=f"the function returns in every process within {timeout:g} s",
        advice="look at the first traceback; processes that wait usually wait for the one that failed",
    )
