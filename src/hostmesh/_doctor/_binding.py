"""How processes were bound to devices, hosts and networks by whoever started them. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from contextlib import suppress

from .._verdict import name_processes
from ._facts import Facts
from ._finding import Finding, grouped, outside_largest

_SIZES = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "HOSTMESH_PROCESSES", "WORLD_SIZE")
_STARTED = {"SLURM_STEP_ID": "SLURM", "OMPI_COMM_WORLD_SIZE": "Open MPI"}
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def findings(facts: Sequence[Facts]) -> list[Finding]:
    """What a launcher's options, a detector or a network's names make go wrong."""
    found = [*_detectors(facts), *_sizes(facts), *_networks(facts)]
    for who in hosts(facts).values():
        found += [*_hidden(who), *_shared(who), *_unused(who)]
    return found


def hosts(facts: Sequence[Facts]) -> dict[str, list[Facts]]:
    """The processes of each machine."""
    found: dict[str, list[Facts]] = {}
    for of in facts:
        found.setdefault(of.host.machine, []).append(of)
    return found


def is_loopback(address: str) -> bool:
    """Whether an address is one that only its own host can reach."""
    with suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return address == "localhost"


def _processes(facts: Sequence[Facts]) -> tuple[int, ...]:
    return tuple(of.process for of in facts)


def _hidden(here: Sequence[Facts]) -> list[Finding]:
    visible = {of.process: of.environment.get("CUDA_VISIBLE_DEVICES") for of in here}
    gpus = max(of.host.gpus for of in here)
    fewer = [p for p, value in visible.items() if value and len(value.split(",")) < gpus]
    if len(here) < 2 or len(set(visible.values())) < 2 or not fewer:
        return []
    return [
        Finding(
            "warning",
            tuple(fewer),
            f"CUDA_VISIBLE_DEVICES hides the other of the {gpus} GPUs of host {here[0].host.name}:"
            f" {grouped({p: value or 'all' for p, value in visible.items()})}",
            "let every process of a host see all its GPUs, so that NCCL can go from one to the other"
            " directly: leave out --gpus-per-task and --gpu-bind, ask with --gpus-per-node, and pass"
            " local_device_ids to hostmesh.initialize (under SLURM, JAX does it)",
        )
    ]


def _shared(here: Sequence[Facts]) -> list[Finding]:
    name, gpus = here[0].host.name, max(of.host.gpus for of in here)
    users: dict[str, list[int]] = {}
    for of in here:
        for number in of.gpu_numbers:
            users.setdefault(number, []).append(of.process)
    twice = {number: who for number, who in users.items() if len(who) > 1}
    if twice:
        listed = "; ".join(f"GPU {n}: {name_processes(who)}" for n, who in twice.items())
        return [
            Finding(
                "error",
                tuple(sorted({p for who in twice.values() for p in who})),
                f"processes of host {name} use the same devices: {listed}",
                "start one process a host, or give each its own with local_device_ids= of"
                " hostmesh.initialize",
            )
        ]
    if gpus and len(here) > gpus and any(of.platform in ("gpu", "cuda") for of in here):
        return [
            Finding(
                "error",
                _processes(here),
                f"host {name} has {len(here)} processes and {gpus} GPUs",
                f"start {gpus} tasks a node, or fewer (--ntasks-per-node, -npernode)",
            )
        ]
    return []


def _unused(here: Sequence[Facts]) -> list[Finding]:
    wanted = {of.environment.get("JAX_PLATFORMS", "") for of in here}
    gpus = max(of.host.gpus for of in here)
    on_cpu = [of for of in here if of.platform == "cpu"]
    if not gpus or not on_cpu or any("cpu" in value for value in wanted):
        return []
    return [
        Finding(
            "warning",
            _processes(on_cpu),
            f"JAX runs on CPU, and host {here[0].host.name} has {gpus} GPUs",
            "install jax[cuda13] or jax[cuda12], or set JAX_PLATFORMS=cpu if that is meant",
        )
    ]


def _detectors(facts: Sequence[Facts]) -> list[Finding]:
    by = {of.process: of.detector for of in facts}
    if len(set(by.values())) > 1:
        return [
            Finding(
                "error",
                outside_largest(by),
                f"the cluster was found in different ways: {grouped(by)}",
                "pass coordinator_address, num_processes and process_id to hostmesh.initialize",
            )
        ]
    found: list[Finding] = []
    for variable, launcher in _STARTED.items():
        who = [of for of in facts if variable in of.environment and of.detector != launcher]
        if who and who[0].detector in ("Kubernetes", "TPU", "Open MPI", "single process"):
            found.append(
                Finding(
                    "error" if who[0].detector == "single process" else "warning",
                    _processes(who),
                    f"{who[0].detector} was detected ({who[0].reason}), though {launcher} started"
                    f" the processes: {variable} is set",
                    f"have {launcher} found: pass coordinator_address, num_processes and process_id"
                    " to hostmesh.initialize, or unset the variables of the other",
                )
            )
    if not found and "Kubernetes" in by.values() and len(facts) == 1:
        found.append(
            Finding(
                "warning",
                _processes(facts),
                f"Kubernetes was detected ({facts[0].reason}), and there is one process",
                "for one process on purpose call hostmesh.initialize(num_processes=1); else make an"
                " indexed Job with as many completions as processes",
            )
        )
    return found


def _sizes(facts: Sequence[Facts]) -> list[Finding]:
    found: list[Finding] = []
    count = facts[0].processes
    for name in _SIZES:
        told = {of.process: of.environment.get(name, "") for of in facts}
        wrong = {p: n for p, n in told.items() if n.isdigit() and int(n) > count}
        if wrong:
            found.append(
                Finding(
                    "warning" if count > 1 else "error",
                    tuple(wrong),
                    f"the launcher tells of more processes ({name}: {grouped(wrong)}) than the"
                    f" cluster has, {count}",
                    "start the program with the launcher itself (srun, mpirun), each process calling"
                    " hostmesh.initialize(); or unset the variable",
                )
            )
    return found


def _networks(facts: Sequence[Facts]) -> list[Finding]:
    if len(hosts(facts)) < 2:
        return []
    found: list[Finding] = []
    names = {of.process: of for of in facts if is_loopback(of.host.resolves_to)}
    if names:
        shown = {p: f"{of.host.name!r} is {of.host.resolves_to}" for p, of in names.items()}
        found.append(
            Finding(
                "error" if any(of.platform == "cpu" for of in facts) else "warning",
                tuple(names),
                f"own host names resolve to loopback, on {len(hosts(facts))} hosts: {grouped(shown)}",
                "in /etc/hosts there, take the name out of the line that begins with 127., and add a"
                " line with the address on the network",
            )
        )
    for variable in _INTERFACES:
        on = {of.process: of.environment.get(variable, "") for of in facts}
        looped = {p: name for p, name in on.items() if name.lstrip("=") == "lo"}
        if looped:
            found.append(
                Finding(
                    "error",
                    tuple(looped),
                    f"{variable} names the loopback interface, on {len(hosts(facts))} hosts:"
                    f" {grouped(looped)}",
                    f"name an interface that reaches the other hosts (ip -br addr), or unset {variable}",
                )
            )
    at = {of.process: of.coordinator for of in facts}
    looped = {p: a for p, a in at.items() if is_loopback(a.rpartition(":")[0].strip("[]"))}
    if looped:
        found.append(
            Finding(
                "warning",
                tuple(looped),
                f"the coordinator's address is loopback, on {len(hosts(facts))} hosts:"
                f" {grouped(looped)}",
                "give the address of process 0's host on the network",
            )
        )
    return found
