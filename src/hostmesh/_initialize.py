"""`initialize`: joins this process to its cluster, whoever started it, and says how it was found."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import jax

from . import _backend_start, _exit, _jax, _names
from ._cluster import FAULT, SANITIZE, WATCHDOG, is_asked_for, member_from_environment
from ._errors import ClusterError, build

_log = logging.getLogger("hostmesh")

# JAX's name of a detector -> ours, and the variables that it goes by.
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
_DETECTORS = {
    "slurm": ("SLURM", _SLURM),
    "ompi": ("Open MPI", ("OMPI_MCA_orte_hnp_uri", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")),
    "gketpu": ("TPU", ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID")),
    "gcetpu": ("TPU", ()),
    "K8sCluster": ("Kubernetes", ("KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX")),
}
# What else says that this is one of several processes, and what to do where JAX does not detect it.
_SIGNS = {
    "OMPI_COMM_WORLD_SIZE": "install mpi4py, by which JAX finds Open MPI from version 5 on",
    "PMI_SIZE": "install mpi4py and call jax.distributed.initialize with its detector, mpi4py",
    "JOB_COMPLETION_INDEX": "install the package kubernetes, by which JAX finds the job",
    "JAX_COORDINATOR_ADDRESS": "unset it",
}
_ALL_THREE = "coordinator_address, num_processes and process_id"
_ONE_PROCESS = "to run as one process, call hostmesh.initialize(num_processes=1)"


@dataclass(frozen=True)
class Cluster:
    """This process's place in its cluster: `coordinator` is `None` for a single process.

    `detector` says how the cluster was found ("hostmesh run", "arguments", "SLURM", "Open MPI",
    "TPU", "Kubernetes", "jax.distributed.initialize", "single process"), `reason` what told so.
    """

    process: int
    processes: int
    coordinator: str | None
    detector: str
    reason: str


_cluster: Cluster | None = None
_device_ids: tuple[int, ...] | None = None
_backend_start.watch()


def initialize(
    *,
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    local_device_ids: int | Sequence[int] | None = None,
    timeout: float = 300.0,
    shutdown_timeout: float = 300.0,
) -> Cluster:
    """Joins this process to its cluster: `jax.distributed.initialize`, whoever started the process.

    Under `hostmesh run` nothing need be passed; under SLURM, Open MPI, Kubernetes and on TPU, JAX
    finds what is not passed; where there is no cluster, or `num_processes` is 1, the program goes
    on as a single process. Call it first: before any call that needs a device. A second call with
    the same layout, or without arguments, returns the same.

    All processes are waited for at the start, for `timeout` seconds, and at the end, for
    `shutdown_timeout`, so that process 0 does not take the coordinator away from the others. After
    an exception none is: its traceback is published, and the others say which process failed.
    They then fail in their next collective, or end.

    `HOSTMESH_WATCHDOG=300` in the environment starts a `Watchdog` with that time-out, and
    `HOSTMESH_WATCHDOG=300,raise` one with that action.

    Raises `ClusterError` where the layout is another than before, a JAX backend is up already,
    SLURM's variables are incomplete, the coordinator is not there in time, or, on CPU, the own name
    of one of several hosts resolves to loopback, so that the others could not connect to it.

    >>> import hostmesh
    >>> hostmesh.initialize().detector
    'single process'
    """
    global _cluster, _device_ids
    if isinstance(local_device_ids, int):
        local_device_ids = [local_device_ids]
    ids = None if local_device_ids is None else tuple(local_device_ids)
    asked = (coordinator_address, num_processes, process_id)
    if _cluster is not None:
        _require_same(_cluster, asked, ids)
        return _cluster
    if jax.distributed.is_initialized():
        _cluster = Cluster(*_jax.place(), "jax.distributed.initialize", "it was called before")
        _require_same(_cluster, asked, ids)
        _begin_as_asked()
        return _cluster

    found = _find(*asked)
    if found.processes == 1 and found.coordinator is None:
        cluster = Cluster(0, 1, None, found.detector, found.reason)
    else:
        cluster = _join(found, ids, timeout, shutdown_timeout)
        _exit.arrange(shutdown_timeout)
        _names.require_reachable(
            cluster.process,
            cluster.processes,
            cluster.coordinator,
            f"hostmesh.initialize(): {found}",
            timeout,
        )
    _cluster, _device_ids = cluster, ids
    _begin_as_asked()
    _log.info("process %d of %d: %s", cluster.process, cluster.processes, found)
    return cluster


def _begin_as_asked() -> None:
    """Begins what the environment asks for."""
    if text := os.environ.get(FAULT):
        from ._faults import Fault, install  # costs no import where none is asked for

        install(Fault.parse(text))
    if is_asked_for(SANITIZE):
        from ._sanitize import begin

        begin()
    if os.environ.get(WATCHDOG):
        from ._watch._watchdog import start_as_asked  # costs no import where none is asked for

        start_as_asked()


@dataclass(frozen=True)
class _Found:
    """What is known before JAX is called. JAX itself finds out what is `None`."""

    process: int | None
    processes: int | None
    coordinator: str | None
    detector: str
    reason: str

    def __str__(self) -> str:
        return f"{self.detector} ({self.reason})"


def _find(address: str | None, processes: int | None, process: int | None) -> _Found:
    if address is not None and processes is not None and process is not None:
        return _Found(process, processes, address, "arguments", f"{_ALL_THREE} were passed")
    if processes == 1 and address is None:
        return _Found(0, 1, None, "single process", "num_processes=1 was passed")
    if member := member_from_environment():
        return _Found(
            member.process if process is None else process,
            member.processes if processes is None else processes,
            member.coordinator if address is None else address,
            "hostmesh run",
            f"HOSTMESH_COORDINATOR={member.coordinator}",
        )
    if name := _jax.detected_cluster():
        detector, variables = _DETECTORS.get(name, (name, ()))
        seen = [f"{v}={os.environ[v][:60]}" for v in variables if v in os.environ]
        reason = ", ".join(seen) or f"JAX's detector {name}"
        return _Found(process, processes, address, detector, reason)
    _refuse_half_a_cluster()
    if (address, processes, process) != (None, None, None):
        raise build(
            ClusterError,
            where="hostmesh.initialize()",
            given=f"coordinator_address={address!r}, num_processes={processes!r}, "
            f"process_id={process!r}",
            rule="no launcher was detected that tells what is None",
            advice=f"pass {_ALL_THREE}; {_ONE_PROCESS}",
        )
    return _Found(0, 1, None, "single process", "no launcher was detected")


def expected() -> Cluster | None:
    """The place that `initialize()` will give this process; `None` where only JAX finds out.

    Raises `ClusterError` where a launcher left half of what is needed, as `initialize` does.
    """
    if _cluster is not None or jax.distributed.is_initialized():
        return initialize()
    found = _find(None, None, None)
    place = (found.process, found.processes, found.coordinator)
    if found.process is None or found.processes is None:
        with contextlib.suppress(Exception):  # it is for initialize to say what is wrong there
            place = _jax.detected_place() or place
    process, processes, coordinator = place
    if process is None or processes is None:
        return None
    return Cluster(process, processes, coordinator, found.detector, found.reason)


def _refuse_half_a_cluster() -> None:
    given = rule = advice = None
    if present := [v for v in _SLURM if v in os.environ]:
        missing = [v for v in _SLURM if v not in os.environ]
        given = f"SLURM's {', '.join(present)} without {', '.join(missing)}"
        rule = f"a task of SLURM has all {len(_SLURM)}; a shell or script inside an allocation not"
        advice = "start the program with srun"
    for variable, remedy in _SIGNS.items():
        value = os.environ.get(variable)
        if value is not None and not (variable.endswith("_SIZE") and value == "1"):
            given = f"{variable}={value}"
            rule = "this is one of several processes, and JAX does not detect the others"
            advice = f"pass {_ALL_THREE}, or {remedy}"
    if given and rule and advice:
        raise build(
            ClusterError,
            where="hostmesh.initialize()",
            given=given,
            rule=rule,
            advice=f"{advice}; {_ONE_PROCESS}",
        )


def _join(found: _Found, ids: Sequence[int] | None, timeout: float, ending: float) -> Cluster:
    where = f"hostmesh.initialize(): {found}"
    if _jax.backends_started():
        raise build(
            ClusterError,
            where=where,
            given=_backend_start.description(),
            rule="a process joins its cluster before its first backend: 1 is up",
            advice="call hostmesh.initialize() first, above that line and those imports",
        )
    if found.coordinator is not None and found.process:
        _await_coordinator(found.coordinator, timeout, where)
    # JAX aborts the process when its time is up. This says what it was that took too long.
    warning = threading.Timer(timeout, _warn, (where, timeout))
    warning.daemon = True
    warning.start()
    try:
        jax.distributed.initialize(
            found.coordinator,
            found.processes,
            found.process,
            ids,
            initialization_timeout=math.ceil(timeout) + 2,
            shutdown_timeout_seconds=math.ceil(ending) + 2,
            # The launcher's coordinator is at that address only; JAX would open it on all.
            coordinator_bind_address=found.coordinator
            if found.detector == "hostmesh run"
            else None,
        )
    except (RuntimeError, ValueError, TypeError, OSError) as error:
        raise build(
            ClusterError,
            where=where,
            given=f"process {found.process} of {found.processes} at {found.coordinator}",
            rule=f"jax.distributed.initialize raised {type(error).__name__}: {error}",
            advice=f"correct the arguments or the launcher; {_ONE_PROCESS}",
        ) from error
    finally:
        warning.cancel()
    if None in (found.process, found.processes, found.coordinator):
        return Cluster(*_jax.place(), found.detector, found.reason)
    assert found.process is not None
    assert found.processes is not None
    return Cluster(found.process, found.processes, found.coordinator, found.detector, found.reason)


def _await_coordinator(address: str, timeout: float, where: str) -> None:
    """Returns once the coordinator's port answers. JAX would abort this process if it does not."""
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        return
    deadline = time.monotonic() + timeout
    while True:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=5.0):
                return
        except OSError as error:
            if time.monotonic() > deadline:
                raise build(
                    ClusterError,
                    where=where,
                    given=f"the coordinator's address {address}",
                    rule=f"nothing answered there within {timeout:g} s: {error}",
                    advice="see whether process 0 was started, at this address, and has failed",
                ) from error
            time.sleep(0.1)


def _warn(where: str, timeout: float) -> None:
    sys.stderr.write(
        f"hostmesh: {where}\nhostmesh: not all processes have come within {timeout:g} s. "
        "JAX ends this one now; see the output of the others.\n"
    )
    sys.stderr.flush()


def _require_same(
    known: Cluster, asked: tuple[str | None, int | None, int | None], ids: tuple[int, ...] | None
) -> None:
    wanted = {
        "coordinator_address": (asked[0], known.coordinator),
        "num_processes": (asked[1], known.processes),
        "process_id": (asked[2], known.process),
        "local_device_ids": (ids, _device_ids),
    }
    other = {name: pair for name, pair in wanted.items() if pair[0] not in (None, pair[1])}
    if other:
        raise build(
            ClusterError,
            where=f"hostmesh.initialize() on process {known.process} of {known.processes}, again",
            given=", ".join(f"{name}={new!r}" for name, (new, _) in other.items()),
            rule="a process joins one cluster once: it has "
            + ", ".join(f"{name}={old!r}" for name, (_, old) in other.items()),
            advice="call it without arguments, or in a new process",
        )
