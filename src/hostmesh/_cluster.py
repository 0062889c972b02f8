"""What a process of a local cluster is told by whoever starts it: the environment, written and read.

`hostmesh run`, `hostmesh.testing` and `hostmesh demo` write it; `hostmesh.initialize` reads it.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

COORDINATOR = "HOSTMESH_COORDINATOR"
PROCESSES = "HOSTMESH_PROCESSES"
PROCESS = "HOSTMESH_PROCESS"
DEVICES = "HOSTMESH_DEVICES"
FAULT = "HOSTMESH_FAULT"  # a process that is to stray, and how
SANITIZE = "HOSTMESH_SANITIZE"
WATCHDOG = "HOSTMESH_WATCHDOG"  # its time-out, and perhaps its action
FAILURES = "HOSTMESH_FAILURES"  # a file of numbers: of the processes that raised, in order

NOTES = "HOSTMESH_NOTES"  # a folder that a launcher shares with its processes, of these files:
ENDED = "ended"  # numbers of the processes that the launcher ends
WHY = "why"  # whom a watchdog found behind, that ended its process for it

# The status of a process that a watchdog has ended: EX_TEMPFAIL, "try again".
ABANDONED = 75


def is_asked_for(variable: str) -> bool:
    """Whether a variable of the environment is there, and neither empty nor 0."""
    return os.environ.get(variable, "") not in ("", "0")


@dataclass(frozen=True)
class Member:
    """One process's place in a local cluster: `devices` is its own number of CPU devices."""

    coordinator: str
    process: int
    processes: int
    devices: int

    def environment(self) -> dict[str, str]:
        """The variables to add to the environment of the process that takes this place."""
        return {
            COORDINATOR: self.coordinator,
            PROCESSES: str(self.processes),
            PROCESS: str(self.process),
            DEVICES: str(self.devices),
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(self.devices),
            **_without_proxy(self.coordinator.rpartition(":")[0]),
        }


def _without_proxy(host: str) -> dict[str, str]:
    """Keeps the coordinator off a proxy, to which gRPC would else go, and wait for ever."""
    names = {name.lower(): value for name, value in os.environ.items() if value}
    if not names.keys() & {"grpc_proxy", "https_proxy", "http_proxy"}:
        return {}
    exceptions = names.get("no_grpc_proxy") or names.get("no_proxy")
    listed = ",".join(filter(None, [exceptions, host]))
    return {"no_grpc_proxy": listed}


def members(
    devices: Sequence[int], *, port: int | None = None, host: str = "127.0.0.1"
) -> list[Member]:
    """The places of a cluster whose process p has `devices[p]` CPU devices.

    `host` is the address of process 0, which the coordinator takes; loopback by default.
    """
    coordinator = f"{host}:{port or free_port()}"
    return [Member(coordinator, p, len(devices), d) for p, d in enumerate(devices)]


def member_from_environment(environment: Mapping[str, str] = os.environ) -> Member | None:
    """The place that this process was given, or `None` where no hostmesh launcher started it."""
    if COORDINATOR not in environment:
        return None
    return Member(
        environment[COORDINATOR],
        int(environment[PROCESS]),
        int(environment[PROCESSES]),
        int(environment[DEVICES]),
    )


def free_port() -> int:
    """A TCP port that was free on loopback a moment ago.

    It is below the ports that systems hand out by themselves, so that no connection takes it
    between now and the coordinator's start.
    """
    draw = random.SystemRandom()  # neither moves the program's random numbers nor follows its seed
    for port in (draw.randrange(20000, 32768) for _ in range(100)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
