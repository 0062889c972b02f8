"""Divergence between processes, found where it arises rather than where it hangs."""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Generator

import jax
import xxhash

from . import _jax, _moments
from ._check import assert_equal, check_global
from ._config import config
from ._convert import processes_of
from ._coordination import agree, is_called_by_us
from ._errors import SpecError, build
from ._packing import is_global
from ._trees import Matched, Tree


@contextlib.contextmanager
def sanitize() -> Generator[None]:
    """Within the block, processes that go different ways are an error where they part.

    To be entered in every process, best before the first program is compiled; or with
    `HOSTMESH_SANITIZE=1` in the environment, by `hostmesh.initialize`, for all of the program, and
    for all multiprocess tests. It checks, besides what hostmesh's own calls always agree on:

    * each program over devices of several processes, when it is compiled: its name and all of its
      code (StableHLO, constants included) are the same, compiled in the same order,
    * the number of the step (told to `should_stop` or `watchdog.step`, or counted by a `Feeder`) at
      each call that is agreed on, and at the end of the block,
    * values that a spec replicates, at each `to_global`, as by `check="replicas"`: other random
      keys, or an order that depends on Python's hash seed, are found there.

    Raises:
      DivergenceError, StragglerError: on all processes, with what each of them does at which line.

    Costs one round trip for each program that is compiled and for each `to_global`, with a digest
    of what is replicated; steps cost nothing. Programs are compared when they are compiled, not
    each time that they run; without JAX's private names they are not compared at all. Where a
    process hangs elsewhere the others wait here, `config.timeout` seconds: use it with a `Watchdog`.

    >>> import hostmesh
    >>> with hostmesh.sanitize():
    ...     hostmesh.barrier("here")
    """
    with watched():
        yield
        agree("the end of hostmesh.sanitize()")


def begin() -> None:
    """Sanitizes what is left of the program. Nothing is agreed on at its end: an error may be its end."""
    if _moments.watcher is not None:
        return  # it is sanitized already
    rest = contextlib.ExitStack()
    rest.enter_context(watched())
    atexit.register(rest.close)


@contextlib.contextmanager
def watched() -> Generator[None]:
    """What `sanitize` does, without an agreement at its end."""
    steps = _Steps(_moments.watcher)
    with _jax.compiles_told(_compare), config.set(check="replicas"):
        _moments.watcher = steps
        try:
            yield
        finally:
            _moments.watcher = steps.before


class _Steps:
    """The step that this thread is in, for what is agreed on."""

    def __init__(self, before: _moments.Watcher | None) -> None:
        self.before = before
        self._thread = threading.current_thread()
        self._number: int | None = None
        self._count = 0

    def step(self, number: int) -> None:
        """A step begins."""
        if threading.current_thread() is self._thread:
            self._number, self._count = number, self._count + 1
        if self.before is not None:
            self.before.step(number)

    def in_words(self) -> str:
        """What is added to the words of a call."""
        if self._number is None or threading.current_thread() is not self._thread:
            return ""
        return f", in step {self._number}, the {self._count}. of this process"


def _compare(name: str, code: str, processes: tuple[int, ...]) -> None:
    """Agrees on a program that is about to be compiled."""
    if len(processes) < 2 or is_called_by_us():
        return
    digest = xxhash.xxh3_64_hexdigest(code.encode())
    words = f"the compilation of {name}, {len(code)} characters of StableHLO, digest {digest}"
    agree(words, processes=processes)


_checks: dict[str, int] = {}


def check_tree(tree: Tree, *, every: int = 1, name: str = "tree") -> None:
    """Raises on all processes where those that hold the same part of a tree hold other values.

    For parameters and optimiser states, in a training loop: of global arrays, the chunks that
    several processes hold; of host-local values, all. To be called in every process.

    Args:
      tree: a pytree of global arrays with a `NamedSharding`, and of host-local values.
      every: the calls that check: each `every`-th by this `name`, beginning with the first. The
        others cost nothing.
      name: what the tree is, in words, for errors.

    Raises:
      DivergenceError: with the leaf, the mesh axis, the processes, the first index and both values.
      StragglerError, ClusterError: where a process does not come, or fails.

    Communicates a digest of each process, in two round trips at most.

    >>> import hostmesh, jax, numpy as np
    >>> from jax.sharding import Mesh, PartitionSpec as P
    >>> params = hostmesh.to_global({"w": np.ones(3)}, Mesh(jax.devices(), "x"), P())
    >>> for step in range(200):
    ...     hostmesh.check_tree(params, every=100)
    """
    if every < 1:
        raise build(
            SpecError,
            where=f"check_tree {name!r}",
            given=f"every={every}",
            rule="it is a number of calls, of at least 1",
            advice="pass 1 to check at each call",
        )
    number = _checks[name] = _checks.get(name, -1) + 1
    if number % every:
        return
    arrays = jax.tree.map(lambda leaf: leaf if is_global(leaf) else None, tree)
    local = jax.tree.map(lambda leaf: None if is_global(leaf) else leaf, tree)
    if jax.tree.leaves(arrays):
        matched = Matched(arrays, jax.tree.map(lambda array: array.sharding, arrays), name, "specs")
        processes = processes_of(None, matched.items)
        check_global("replicas", arrays, matched, matched.leaves, processes, f"check_tree {name!r}")
    if jax.tree.leaves(local):
        assert_equal(local, name=name)
