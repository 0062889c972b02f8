"""What a process knows of the machine that it runs on. Linux tells most; elsewhere less is known."""

from __future__ import annotations

import glob
import os
import platform
import resource
import socket
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .. import _machine


@dataclass(frozen=True)
class Disk:
    """A folder's file system: bytes in all and free, and whether this process can write there."""

    folder: str
    kind: str
    total: int
    free: int
    writable: bool


@dataclass(frozen=True)
class Host:
    """A process's machine and what of it the process may use. Sizes are bytes; 0 is "not known"."""

    name: str
    resolves_to: str
    machine: str
    system: str
    cpus: int
    usable_cpus: int
    load: float
    memory: int
    memory_free: int
    open_files: int
    open_files_hard: int
    shared_memory: Disk | None
    gpus: int


def host() -> Host:
    """This process's host."""
    name = socket.gethostname()
    memory, free = _memory()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Host(
        name=name,
        resolves_to=_machine.address(name),
        machine=_machine.identity(),
        system=f"{platform.system()} {platform.release()}",
        cpus=os.cpu_count() or 0,
        usable_cpus=_usable_cpus(),
        load=_machine.load(),
        memory=memory,
        memory_free=free,
        open_files=soft if soft != resource.RLIM_INFINITY else 2**31,
        open_files_hard=hard if hard != resource.RLIM_INFINITY else 2**31,
        shared_memory=disk("/dev/shm"),
        gpus=len(glob.glob("/dev/nvidia[0-9]*")),
    )


def disk(folder: str) -> Disk | None:
    """The file system that a folder is, or would be, on; `None` where nothing of it is there."""
    at = Path(folder).absolute()
    while not at.exists() and at != at.parent:
        at = at.parent
    with suppress(OSError):
        found = os.statvfs(at)
        size = found.f_frsize
        return Disk(
            folder, _kind(at), found.f_blocks * size, found.f_bavail * size, _is_writable(at)
        )
    return None


def _is_writable(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder):  # root may by the mode alone, and cannot
            return True
    except OSError:
        return False


def _kind(folder: Path) -> str:
    """The kind of the file system, such as `ext4` or `nfs4`: of the longest mount point above."""
    found, best = "", ""
    with suppress(OSError):
        for line in Path("/proc/mounts").read_text().splitlines():
            _, point, kind, *_ = line.split()
            point = point.replace("\\040", " ")
            if folder.is_relative_to(point) and len(point) >= len(best):
                found, best = kind, point
    return found


def _usable_cpus() -> int:
    """The CPUs that this process may run on, and by its control group has time for."""
    count = os.cpu_count() or 0
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        count = min(count, max(1, round(int(quota) / int(period))))
    return count


def _memory() -> tuple[int, int]:
    """Bytes of memory, in all and available: of the machine, or of the control group if that is less."""
    total, free = _machine.memory()
    with suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        stat = Path("/sys/fs/cgroup/memory.stat").read_text().split()
        used -= int(stat[stat.index("inactive_file") + 1])  # given back when it is asked for
        total, free = min(total, limit), min(free, limit - used)
    return total, free
