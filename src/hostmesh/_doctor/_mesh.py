"""A mesh of all devices: what its axes cross, and what JAX's own functions would refuse. Pure."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .._topology import Topology
from .._verdict import name_processes
from ._finding import Finding


@dataclass(frozen=True)
class Axis:
    """A mesh axis, and whether two places that differ in it alone are of two processes, or hosts."""

    name: str
    size: int
    crosses_processes: bool
    crosses_hosts: bool

    def __str__(self) -> str:
        if self.crosses_hosts:
            return "crosses hosts"
        return "crosses processes of a host" if self.crosses_processes else "within a process"


def axes_of(topology: Topology, hosts: Mapping[int, Hashable]) -> tuple[Axis, ...]:
    """What each axis crosses; `hosts` tells the host of each process.

    >>> topology = Topology.build({"data": 4, "model": 2}, processes=4)
    >>> [str(axis) for axis in axes_of(topology, {0: "a", 1: "a", 2: "b", 3: "b"})]
    ['crosses hosts', 'within a process']
    """
    numbers = {host: n for n, host in enumerate(dict.fromkeys(hosts.values()))}
    owners = np.asarray(topology.process_indices)
    places = np.vectorize(lambda process: numbers[hosts[process]], otypes=[int])(owners)
    return tuple(
        Axis(name, size, _varies(owners, at), _varies(places, at))
        for at, (name, size) in enumerate(topology.axes)
    )


def _varies(values: npt.NDArray[Any], axis: int) -> bool:
    return bool((values != values.take([0], axis=axis)).any())


def fits(axes: Mapping[str, int], owners: Sequence[int]) -> bool:
    """Whether the mesh has as many places as there are devices."""
    return math.prod(axes.values()) == len(owners)


def findings(
    axes: Mapping[str, int], owners: Sequence[int], hosts: Mapping[int, Hashable]
) -> list[Finding]:
    """What to know of a mesh whose places, in order, have the devices of `owners`."""
    size = math.prod(axes.values())
    words = " x ".join(f"{name}={n}" for name, n in axes.items())
    if not fits(axes, owners):
        return [
            Finding(
                "error",
                (),
                f"the mesh {words} has {size} places, and there are {len(owners)} devices",
                "choose sizes whose product is the number of devices, or name fewer devices when the"
                " mesh is made",
            )
        ]
    topology = Topology(list(axes.items()), owners)
    found: list[Finding] = []
    refused = [process for process in topology.processes if not topology.is_subcube(process)]
    if refused:
        found.append(
            Finding(
                "warning",
                tuple(refused),
                f"JAX's own functions refuse the mesh {words}: the devices of"
                f" {name_processes(refused)} do not form one rectangle of it",
                "use hostmesh's to_global and to_local, which take it; or order the devices with"
                " mesh_utils.create_hybrid_device_mesh",
            )
        )
    crossing = axes_of(topology, hosts)
    last = crossing[-1]
    inner = [axis.name for axis in crossing[:-1] if not axis.crosses_hosts and axis.size > 1]
    if last.crosses_hosts and inner:
        found.append(
            Finding(
                "note",
                (),
                f"the last axis of the mesh, {last.name}={last.size}, crosses hosts, and"
                f" {', '.join(inner)} does not",
                "put the axis that talks most (model, tensor) last: neighbours in it are then on one"
                " host",
            )
        )
    return found
