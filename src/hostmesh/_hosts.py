"""Hosts on one machine: network namespaces with addresses and names of their own, on one bridge.

Each host is a namespace that reaches the other hosts and nothing else. `ip netns exec` lays the
hosts' names over /etc/hosts there, so that a host's own name resolves to its address on the link,
which is where gloo listens. The bridge has a namespace of its own, too: nothing of it all is seen
outside. Linux, root and iproute2 only.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ._errors import ClusterError, SpecError, build

FILES = Path("/etc/netns")  # what `ip netns exec` lays over /etc
_NAMESPACES = Path("/var/run/netns")
# Above loopback's: of a pair gloo's higher address connects, and a name on loopback then shows.
_NETWORK = "192.168.77"
_SECONDS = 60.0  # for one call of `ip`
_NAME = re.compile(r"hostmesh-(\d+-\d+)-\d+-\w+")
_number = itertools.count()


@dataclass(frozen=True)
class Host:
    """Where a process runs: a namespace, or without one this machine as it is, on loopback."""

    namespace: str
    name: str
    address: str

    def command(self, command: Sequence[str]) -> list[str]:
        """The command that runs `command` on this host, as the same process, under its name."""
        if not self.namespace:
            return list(command)
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.name]
        return ["ip", "netns", "exec", self.namespace, *named, *command]


@contextlib.contextmanager
def placed(processes: int, hosts: int | None) -> Generator[list[Host]]:
    """The host of each process, in blocks over `hosts` hosts; `None` stands for this machine.

    The hosts are there within the context. Those that a killed launcher left are removed first.
    Raises `SpecError` for more hosts than processes, `ClusterError` where hosts cannot be made.
    """
    if hosts is None:
        yield [Host("", "", "127.0.0.1")] * processes
        return
    if not 1 <= hosts <= min(processes, 250):
        raise build(
            SpecError,
            where="cluster over several hosts",
            given=f"{hosts} hosts for {processes} processes",
            rule=f"each of 1 to {min(processes, 250)} hosts has 1 or more processes",
            advice="ask for fewer hosts, or for more processes",
        )
    _require_means(hosts)
    _remove(_left_behind())
    base = f"hostmesh-{_mark(os.getpid())}-{next(_number)}"
    made = [Host(f"{base}-h{h}", f"host{h}", f"{_NETWORK}.{h + 1}") for h in range(hosts)]
    try:
        _make(made, f"{base}-bridge")
        yield [made[p * hosts // processes] for p in range(processes)]
    finally:
        _remove([f"{base}-bridge", *(host.namespace for host in made)])


def _make(hosts: Sequence[Host], bridge: str) -> None:
    names = "".join(f"{host.address} {host.name}\n" for host in hosts)
    lines = [f"netns add {name}" for name in (bridge, *(host.namespace for host in hosts))]
    ports = ["link add br0 type bridge", "link set br0 up"]
    for h, host in enumerate(hosts):
        lines.append(
            f"link add eth0 netns {host.namespace} type veth peer name h{h} netns {bridge}"
        )
        ports.append(f"link set h{h} master br0 up")
        folder = FILES / host.namespace
        while not folder.is_dir():  # another launcher may remove the empty folder around it
            with contextlib.suppress(FileNotFoundError):
                folder.mkdir(parents=True)
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
    _ip([], lines)
    _ip(["-n", bridge], ports)
    for host in hosts:
        address = f"addr add {host.address}/24 dev eth0"
        _ip(["-n", host.namespace], ["link set lo up", address, "link set eth0 up"])


def _remove(namespaces: Iterable[str]) -> None:
    for name in namespaces:
        if (_NAMESPACES / name).exists():
            with contextlib.suppress(ClusterError):  # another launcher was first
                _ip([], [f"netns delete {name}"])
        shutil.rmtree(FILES / name, ignore_errors=True)
    with contextlib.suppress(OSError):  # it is not empty, or not there
        FILES.rmdir()


def _left_behind() -> list[str]:
    """The namespaces of launchers that are gone."""
    names: set[str] = set()
    for folder in (_NAMESPACES, FILES):
        with contextlib.suppress(OSError):
            names |= set(os.listdir(folder))
    found = ((name, _NAME.fullmatch(name)) for name in sorted(names))
    return [n for n, match in found if match and match[1] != _mark(int(match[1].partition("-")[0]))]


def _mark(pid: int) -> str | None:
    """What tells a living process from all others, those that had its number before it too."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else f"{pid}-{fields[19]}"  # the time of its start
    return None


def _require_means(hosts: int) -> None:
    missing = [tool for tool in ("ip", "unshare", "hostname") if shutil.which(tool) is None]
    if sys.platform != "linux":
        lack, advice = f"this is {sys.platform}", "run it on Linux, as root, in a container say"
    elif os.geteuid() != 0:
        lack, advice = f"this is user {os.geteuid()}", "run it as root"
    elif missing:
        lack = f"there is no {', no '.join(missing)}"
        advice = "install it: apt-get install iproute2 util-linux hostname"
    else:
        return
    raise build(
        ClusterError,
        where=f"{hosts} hosts on this machine",
        given=lack,
        rule="hosts are network namespaces: they take Linux, root and iproute2",
        advice=f"{advice}; or leave hosts out, for processes on loopback",
    )


def _ip(options: Sequence[str], lines: Sequence[str]) -> None:
    """Runs lines of `ip`, one after the other. A Ctrl-C is not for it."""
    try:
        subprocess.run(
            ["ip", *options, "-batch", "-"],
            input="\n".join(lines),
            check=True,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            start_new_session=True,
        )
    except (subprocess.SubprocessError, OSError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise build(
            ClusterError,
            where=f"ip {' '.join(options)}",
            given="; ".join(lines),
            rule=f"iproute2 said: {str(said).strip()}",
            advice="see whether this machine (or container) may make network namespaces and links",
        ) from error
