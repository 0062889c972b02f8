"""Clusters of worker processes that stay warm between tasks, and what becomes of each task.

A cluster is real processes joined by `jax.distributed` on loopback. One task at a time goes to all
of its processes. Whatever happens to a task (an exception here, a hang there, a dead process), it
ends within its time-out, and a cluster in which something was left undone is not used again.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from .._cluster import members
from .._errors import ClusterError, build

START_TIMEOUT = 120.0  # of a cluster: interpreters, JAX, and the first meeting
GRACE = 3.0  # for the others, once a process failed: they may wait for it in a collective
_CLOSE_TIMEOUT = 5.0
_STACKS_TIMEOUT = 2.0
_TICK = 0.2
_MAX_CLUSTERS = 3
_MAX_PROCESSES = 16
_BOOT = (
    "import sys; sys.path[:] = {path!r}; from hostmesh.testing._worker import main; main({args})"
)
_NOISE = re.compile(r"^\[Gloo\] Rank .*\n?", re.MULTILINE)


@dataclass(frozen=True)
class Shape:
    """What tells clusters apart: devices of each process, extra environment, and whose it is."""

    devices: tuple[int, ...]
    env: tuple[tuple[str, str], ...] = ()
    owner: str = ""


@dataclass(frozen=True)
class Done:
    """A process gave an answer: the pickled value, or, with `failed`, what went wrong."""

    failed: bool
    payload: bytes


@dataclass(frozen=True)
class Died:
    """A process ended on its own; `code` is its exit code, negative for a signal."""

    code: int

    def __str__(self) -> str:
        if self.code >= 0:
            return f"exit code {self.code}"
        try:
            return f"{signal.Signals(-self.code).name} (signal {-self.code})"
        except ValueError:
            return f"signal {-self.code}"


@dataclass(frozen=True)
class Waiting:
    """A process had not ended in time; `stack` is where its threads were."""

    stack: str


@dataclass(frozen=True)
class Stopped:
    """A process was stopped because another one died."""


Ending = Done | Died | Waiting | Stopped


@dataclass(frozen=True)
class Run:
    """What became of one task: an ending and the output of each process, and the time it took."""

    endings: list[Ending]
    outputs: list[str]
    seconds: float

    @property
    def whole(self) -> bool:
        """Whether every process gave an answer, so that the cluster can be used again."""
        return all(isinstance(ending, Done) for ending in self.endings)


class _Worker:
    """One process of a cluster, as its starter sees it."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.output = tempfile.TemporaryFile()
        self.stacks = tempfile.TemporaryFile()
        self.connection: Connection[Any, Any]
        self.connection, theirs = Pipe()
        numbers = (theirs.fileno(), self.stacks.fileno())
        args = f"{numbers[0]}, {numbers[1]}, {os.getpid()}"
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", _BOOT.format(path=sys.path, args=args)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            pass_fds=numbers,
        )
        theirs.close()

    def text(self, start: int) -> str:
        """The output since byte `start`, without what the transport prints on connecting."""
        raw = os.pread(self.output.fileno(), os.fstat(self.output.fileno()).st_size - start, start)
        return _NOISE.sub("", raw.decode(errors="replace"))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.connection.close()
        self.output.close()
        self.stacks.close()


class Cluster:
    """The started processes of one shape."""

    def __init__(self, shape: Shape) -> None:
        inherited = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
        self.shape = shape
        self._workers: list[_Worker] = []
        for member in members(shape.devices):
            environment = {**inherited, **member.environment(), **dict(shape.env)}
            self._workers.append(_Worker(environment))
        started = self._gather(START_TIMEOUT, START_TIMEOUT)
        if not started.whole:
            self.close()
            raise _start_error(shape, started)

    def run(self, message: Sequence[Any], timeout: float) -> Run:
        """Sends one task to all processes and waits for their endings, at most `timeout` seconds."""
        data = pickle.dumps(tuple(message))
        for worker in self._workers:
            with contextlib.suppress(OSError):  # its death is told by its ending
                worker.connection.send_bytes(data)
        return self._gather(timeout, GRACE)

    def alive(self) -> bool:
        return all(worker.process.poll() is None for worker in self._workers)

    def close(self) -> None:
        """Ends all processes: by request, and those that do not follow by SIGKILL."""
        for worker in self._workers:
            with contextlib.suppress(OSError):
                worker.connection.send_bytes(pickle.dumps(None))
        deadline = time.monotonic() + _CLOSE_TIMEOUT
        for worker in self._workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.0, deadline - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        for worker in self._workers:
            worker.close()

    def _gather(self, timeout: float, grace: float) -> Run:
        begin = time.monotonic()
        deadline = begin + timeout
        starts = [os.fstat(worker.output.fileno()).st_size for worker in self._workers]
        endings: dict[int, Ending] = {}
        while len(endings) < len(self._workers):
            pending = [p for p in range(len(self._workers)) if p not in endings]
            ready = wait([self._workers[p].connection for p in pending], _TICK)
            for p in pending:
                worker = self._workers[p]
                if worker.connection in ready:
                    ending = _receive(worker)
                elif (code := worker.process.poll()) is not None:
                    ending = Died(code)
                else:
                    continue
                endings[p] = ending
                if isinstance(ending, Done) and ending.failed:
                    deadline = min(deadline, time.monotonic() + grace)
            if any(isinstance(ending, Died) for ending in endings.values()):
                endings = {p: Stopped() for p in range(len(self._workers))} | endings
            elif time.monotonic() > deadline:
                endings |= self._stacks([p for p in pending if p not in endings])
        seconds = time.monotonic() - begin
        outputs = [worker.text(start) for worker, start in zip(self._workers, starts, strict=True)]
        return Run([endings[p] for p in sorted(endings)], outputs, seconds)

    def _stacks(self, processes: list[int]) -> dict[int, Ending]:
        """Has each process write its threads' stacks, and reads them."""
        from ._report import stack_text
        from ._worker import STACKS

        for p in processes:
            self._workers[p].process.send_signal(STACKS)
        sizes: list[int] = []
        deadline = time.monotonic() + _STACKS_TIMEOUT
        while time.monotonic() < deadline:
            time.sleep(_TICK)
            before, sizes = (
                sizes,
                [os.fstat(self._workers[p].stacks.fileno()).st_size for p in processes],
            )
            if all(sizes) and before == sizes:
                break
        found: dict[int, Ending] = {}
        for p, size in zip(processes, sizes, strict=True):
            raw = os.pread(self._workers[p].stacks.fileno(), size, 0)
            found[p] = Waiting(stack_text(raw.decode(errors="replace")))
        return found


class Pool:
    """Warm clusters, the least recently used of which make room for new ones."""

    def __init__(self) -> None:
        self._clusters: OrderedDict[Shape, Cluster] = OrderedDict()
        self._lock = threading.RLock()
        self._owner = os.getpid()

    def run(self, shape: Shape, message: Sequence[Any], timeout: float) -> Run:
        """Runs one task on a cluster of this shape, started if there is none."""
        with self._lock:
            cluster = self.get(shape)
            run = cluster.run(message, timeout)
            if not run.whole:
                self.drop(shape)
            return run

    def get(self, shape: Shape) -> Cluster:
        """The cluster of this shape, new where none is warm and whole."""
        with self._lock:
            cluster = self._clusters.get(shape)
            if cluster is not None and not cluster.alive():
                self.drop(shape)
                cluster = None
            if cluster is None:
                self._make_room(len(shape.devices))
                cluster = self._clusters[shape] = Cluster(shape)
            self._clusters.move_to_end(shape)
            return cluster

    def has(self, shape: Shape) -> bool:
        """Whether a whole cluster of this shape is warm."""
        cluster = self._clusters.get(shape)
        return cluster is not None and cluster.alive()

    def drop(self, shape: Shape) -> None:
        """Kills the cluster of this shape."""
        if (cluster := self._clusters.pop(shape, None)) is not None:
            cluster.kill()

    def close(self) -> None:
        """Ends all clusters."""
        if os.getpid() == self._owner:  # a fork of this process leaves them alone
            while self._clusters:
                self._clusters.popitem()[1].close()

    def _make_room(self, processes: int) -> None:
        def count() -> int:
            return processes + sum(len(shape.devices) for shape in self._clusters)

        while self._clusters and (len(self._clusters) >= _MAX_CLUSTERS or count() > _MAX_PROCESSES):
            self._clusters.popitem(last=False)[1].close()


pool = Pool()
atexit.register(pool.close)


def _receive(worker: _Worker) -> Ending:
    try:
        failed = worker.connection.recv()
        return Done(failed, worker.connection.recv_bytes())
    except (EOFError, OSError):
        try:
            return Died(worker.process.wait(_STACKS_TIMEOUT))
        except subprocess.TimeoutExpired:
            worker.process.kill()
            return Died(worker.process.wait())


def _start_error(shape: Shape, run: Run) -> ClusterError:
    from ._report import endings_text, outputs_text

    return build(
        ClusterError,
        where=f"cluster of {len(shape.devices)} processes with {list(shape.devices)} devices",
        given=f"environment {dict(shape.env)}\n{endings_text(run)}\n{outputs_text(run)}",
        rule=f"every process joins within {START_TIMEOUT:g} s",
        advice="see the output above; an option in `env` or XLA_FLAGS may be wrong",
    )
