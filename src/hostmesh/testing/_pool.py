"""Clusters of worker processes that stay warm between tasks.

A cluster is real processes joined by `jax.distributed` on loopback. One task at a time goes to all
of its processes. Whatever happens to it (an exception here, a hang there, a dead process), it ends
within its time-out, and a cluster in which something was left undone is not used again.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from .._cluster import members
from .._errors import ClusterError, build
from .._hosts import Host, placed
from ._report import Died, Done, Ending, Run, Stopped, Waiting, outputs, processes_text, stack_text
from ._report import unanswered as unanswered_text
from ._worker import STACKS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

START_TIMEOUT = 120.0  # for interpreters, JAX, and the first meeting
GRACE = 3.0  # for the others once one has failed: they may wait for it in a collective
_EXIT_TIMEOUT = float(os.environ.get("HOSTMESH_TEST_EXIT", "5"))
_STACKS_TIMEOUT = 2.0
_TICK = 0.2  # how often a process is looked at that may be dead while its connection is not
_MAX_CLUSTERS = 3
_MAX_PROCESSES = 16
_MAX_OUTPUT = 1 << 16
_BOOT = "import sys; sys.path[:] = {path!r}; from hostmesh.testing._worker import main; main{args}"
_NOISE = re.compile(r"^\[Gloo\] Rank .*\n?", re.MULTILINE)


@dataclass(frozen=True)
class Shape:
    """What tells clusters apart: devices of each process, environment, owner, number of hosts."""

    devices: tuple[int, ...]
    env: tuple[tuple[str, str], ...] = ()
    owner: str = ""
    hosts: int | None = None


class Worker:
    """One process of a cluster, as its starter sees it."""

    def __init__(self, environment: dict[str, str], home: Host) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        self._stacks = tempfile.TemporaryFile()  # noqa: SIM115
        self.connection: Connection[Any, Any]
        self.connection, theirs = Pipe()
        numbers = (theirs.fileno(), self._stacks.fileno())
        boot = _BOOT.format(path=sys.path, args=(*numbers, os.getpid()))
        self.process = subprocess.Popen(
            home.command([sys.executable, "-u", "-c", boot]),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            pass_fds=numbers,
            start_new_session=True,  # Ctrl-C is for the starter, which then ends this one
        )
        theirs.close()

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # its end is told by `ending`
            self.connection.send_bytes(data)

    def ending(self, *, ready: bool) -> Ending | None:
        """The answer that is there (`ready`), or the process's end, if it has come to one."""
        try:
            if ready:
                failed, clean = self.connection.recv()
                return Done(failed, clean, self.connection.recv_bytes())
            code = self.process.poll()
            return None if code is None else Died(code)
        except (EOFError, OSError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                return Died(self.process.wait(_EXIT_TIMEOUT))
            self.process.kill()
            return Died(self.process.wait())

    def written(self) -> int:
        """How many bytes the process has written so far."""
        return os.fstat(self._output.fileno()).st_size

    def output(self, start: int) -> str:
        """The output since byte `start`, without what the transport prints on connecting."""
        end = self.written()
        first = max(start, end - _MAX_OUTPUT)
        text = os.pread(self._output.fileno(), end - first, first).decode(errors="replace")
        note = f"[{first - start} bytes before this]\n" if first > start else ""
        return note + _NOISE.sub("", text)

    def ask_stacks(self) -> None:
        self.process.send_signal(STACKS)

    def stacks(self) -> str:
        """What the process has written of its stacks so far."""
        number = self._stacks.fileno()
        return os.pread(number, os.fstat(number).st_size, 0).decode(errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.connection.close()
        self._output.close()
        self._stacks.close()


class Cluster:
    """The started processes of one shape. Raises `ClusterError` where one cannot be started."""

    def __init__(self, shape: Shape) -> None:
        inherited = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
        self._workers: list[Worker] = []
        self._hosts = contextlib.ExitStack()
        try:
            homes = self._hosts.enter_context(placed(len(shape.devices), shape.hosts))
            for member, home in zip(
                members(shape.devices, host=homes[0].address), homes, strict=True
            ):
                environment = {**inherited, **member.environment(), **dict(shape.env)}
                self._workers.append(Worker(environment, home))
            started = self._gather(START_TIMEOUT)
            if not started.passed:
                raise _start_error(shape, started)
        except BaseException:
            self.kill()
            raise

    def run(self, message: Sequence[Any], timeout: float) -> Run:
        """Sends one task to all processes and waits for their endings, at most `timeout` seconds."""
        data = pickle.dumps(tuple(message))
        starts = [worker.written() for worker in self._workers]
        for worker in self._workers:
            worker.send(data)
        return self._gather(timeout, starts)

    def alive(self) -> bool:
        return all(worker.process.poll() is None for worker in self._workers)

    def close(self) -> None:
        """Ends all processes: by request, and those that do not follow by SIGKILL."""
        for worker in self._workers:
            worker.send(pickle.dumps(None))
        deadline = time.monotonic() + _EXIT_TIMEOUT
        for worker in self._workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.0, deadline - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        with self._hosts:  # which go last
            for worker in self._workers:
                worker.kill()

    def _gather(self, timeout: float, starts: Sequence[int] | None = None) -> Run:
        deadline, limit = time.monotonic() + timeout, f"after {timeout:g} s"
        endings: dict[int, Ending] = {}
        while pending := {p: w for p, w in enumerate(self._workers) if p not in endings}:
            ready = wait([worker.connection for worker in pending.values()], _TICK)
            for p, worker in pending.items():
                ending = worker.ending(ready=worker.connection in ready)
                if ending is None:
                    continue
                endings[p] = ending
                soon = time.monotonic() + GRACE
                if isinstance(ending, Done) and ending.failed and soon < deadline:
                    deadline, limit = soon, f"{GRACE:g} s after process {p} failed"
            if any(isinstance(ending, Died) for ending in endings.values()):
                endings = dict.fromkeys(range(len(self._workers)), Stopped()) | endings
            elif time.monotonic() > deadline:
                endings |= _stacks({p: w for p, w in pending.items() if p not in endings})
        texts = [
            worker.output(start)
            for worker, start in zip(self._workers, starts or [0] * len(self._workers), strict=True)
        ]
        return Run([endings[p] for p in sorted(endings)], texts, limit)


class Pool:
    """Warm clusters, of which the least recently used make room for new ones."""

    def __init__(self) -> None:
        self._clusters: OrderedDict[Shape, Cluster] = OrderedDict()
        self._lock = threading.RLock()
        self._process = os.getpid()

    def run(self, shape: Shape, message: Sequence[Any], timeout: float) -> Run:
        """Runs one task on the cluster of this shape, which is started if it is not there."""
        with self._lock:
            cluster = self._get(shape)
            try:
                run = cluster.run(message, timeout)
            except BaseException:  # an interrupt: the processes are still at it
                self.drop(shape)
                raise
            if not run.reusable:
                self.drop(shape)
            return run

    def has(self, shape: Shape) -> bool:
        """Whether a cluster of this shape is warm."""
        cluster = self._clusters.get(shape)
        return cluster is not None and cluster.alive()

    def drop(self, shape: Shape) -> None:
        """Kills the cluster of this shape."""
        if (cluster := self._clusters.pop(shape, None)) is not None:
            cluster.kill()

    def close(self, owner: str | None = None) -> None:
        """Ends all clusters, or those of one owner."""
        if os.getpid() == self._process:  # a fork of this process leaves them alone
            for shape in list(self._clusters):
                if owner in (None, shape.owner):
                    self._clusters.pop(shape).close()

    def _get(self, shape: Shape) -> Cluster:
        if not self.has(shape):
            self.drop(shape)
            self._make_room(len(shape.devices))
            self._clusters[shape] = Cluster(shape)
        self._clusters.move_to_end(shape)
        return self._clusters[shape]

    def _make_room(self, processes: int) -> None:
        def too_many() -> bool:
            warm = sum(len(shape.devices) for shape in self._clusters)
            return len(self._clusters) >= _MAX_CLUSTERS or warm + processes > _MAX_PROCESSES

        while self._clusters and too_many():
            self._clusters.popitem(last=False)[1].close()


pool = Pool()
atexit.register(pool.close)


def _stacks(workers: dict[int, Worker]) -> dict[int, Ending]:
    """Has each process write its threads' stacks, and reads them once they no longer grow."""
    for worker in workers.values():
        worker.ask_stacks()
    deadline = time.monotonic() + _STACKS_TIMEOUT
    before: list[str] = []
    texts = [""]
    while (before != texts or not all(texts)) and time.monotonic() < deadline:
        time.sleep(_TICK)
        before, texts = texts, [worker.stacks() for worker in workers.values()]
    return {p: Waiting(stack_text(text)) for p, text in zip(workers, texts, strict=True)}


def _start_error(shape: Shape, run: Run) -> ClusterError:
    said = [f"output of {processes_text(p)}:\n{text.rstrip()}" for p, text in outputs(run)]
    return build(
        ClusterError,
        where=f"cluster of {len(shape.devices)} processes with {list(shape.devices)} devices",
        given="\n".join([f"extra environment {dict(shape.env)}", *unanswered_text(run), *said]),
        rule=f"every process starts and joins within {START_TIMEOUT:g} s",
        advice="read the output above; an option in `env` or XLA_FLAGS may be wrong",
    )
