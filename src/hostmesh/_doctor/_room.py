"""Whether machines have room for a job: files, memory, disks, CPUs. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ._binding import hosts
from ._facts import Facts
from ._finding import Finding, grouped
from ._units import size

_MIB, _GIB = 2**20, 2**30


def findings(facts: Sequence[Facts]) -> list[Finding]:
    """What a job would run out of."""
    found = [*_files(facts), *_caches(facts)]
    for here in hosts(facts).values():
        found += [*_shared_memory(here), *_memory(here), *_cpus(here)]
    return found


def enough_files(processes: int) -> int:
    """Open files that a process should be allowed: connections to all others, and its own data."""
    return 512 + 16 * processes


def _files(facts: Sequence[Facts]) -> list[Finding]:
    wanted = enough_files(facts[0].processes)
    few = {of.process: of.host.open_files for of in facts if of.host.open_files < wanted}
    if not few:
        return []
    hard = min(of.host.open_files_hard for of in facts)
    how = (
        f"ulimit -n {wanted} before the program starts"
        if hard >= wanted
        else f"raise the hard limit, {hard}, too (limits.conf, LimitNOFILE=, docker --ulimit nofile)"
    )
    return [
        Finding(
            "warning",
            tuple(few),
            f"few open files are allowed, and {facts[0].processes} processes want {wanted} each:"
            f" {grouped(few)}",
            how,
        )
    ]


def _shared_memory(here: Sequence[Facts]) -> list[Finding]:
    disk = here[0].host.shared_memory
    if disk is None or disk.free >= 256 * _MIB:
        return []
    gpu = any(of.platform in ("gpu", "cuda") for of in here)
    return [
        Finding(
            "warning" if gpu and len(here) > 1 else "note",
            tuple(of.process for of in here),
            f"/dev/shm of host {here[0].host.name} has {size(disk.free)} free of {size(disk.total)};"
            " NCCL and data loaders use it",
            "docker run --shm-size=8g (or --ipc=host), or a memory volume at /dev/shm in Kubernetes",
        )
    ]


def _memory(here: Sequence[Facts]) -> list[Finding]:
    total = max(of.host.memory for of in here)
    free = min(of.host.memory_free for of in here)
    if not total or free >= total / 10:
        return []
    return [
        Finding(
            "warning",
            tuple(of.process for of in here),
            f"host {here[0].host.name} has {size(free)} of its {size(total)} of memory left",
            "end what else runs there, or ask for more memory",
        )
    ]


def _cpus(here: Sequence[Facts]) -> list[Finding]:
    who, name = tuple(of.process for of in here), here[0].host.name
    usable = max(of.host.usable_cpus for of in here)
    load = max(of.host.load for of in here)
    found: list[Finding] = []
    if usable and len(here) > usable:
        found.append(
            Finding(
                "note",
                who,
                f"host {name} has {len(here)} processes and {usable} CPUs to run them on",
                "figures are low, and uneven, where processes wait for a CPU; ask for more"
                " (--cpus-per-task)",
            )
        )
    if usable and load > 2 * usable + len(here):
        found.append(
            Finding(
                "note",
                who,
                f"host {name} is busy: load {load:.0f} on {usable} CPUs",
                "see what else runs there, and look again when it has ended",
            )
        )
    return found


def _caches(facts: Sequence[Facts]) -> list[Finding]:
    closed = {
        of.process: of.cache.folder
        for of in facts
        if of.cache is not None and not of.cache.writable
    }
    full = {
        of.process: f"{of.cache.folder} ({size(of.cache.free)})"
        for of in facts
        if of.cache is not None and of.cache.writable and of.cache.free < _GIB
    }
    found: list[Finding] = []
    if closed:
        found.append(
            Finding(
                "warning",
                tuple(closed),
                f"the compilation cache cannot be written: {grouped(closed)}",
                "make the folder writable, or set JAX_COMPILATION_CACHE_DIR to another",
            )
        )
    if full:
        found.append(
            Finding(
                "warning",
                tuple(full),
                f"the compilation cache's file system is nearly full: {grouped(full)}",
                "free some space, or set JAX_COMPILATION_CACHE_DIR to another",
            )
        )
    return found
