"""Whether the processes of a cluster on CPU can connect: each listens where its own name says.

gloo, JAX's transport on CPU, binds to the address that the host's own name resolves to, and tells
it to the others. Where that is loopback (Debian's installer writes 127.0.1.1) the others connect to
themselves, and JAX's error, in the first collective, does not say why. Of each pair the one with the
higher address connects, so that some such clusters work by luck; none of them is let through.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import json
import socket
import time
from contextlib import suppress
from importlib.metadata import entry_points

import jax

from . import _jax, _machine
from ._errors import ClusterError, build

_FOLDER = "hostmesh/names/"
_SECONDS = 20.0  # all processes have just met: none is far behind


def require_reachable(
    process: int, processes: int, coordinator: str | None, where: str, timeout: float
) -> None:
    """Raises `ClusterError`, on every process, where one on another host cannot be connected to.

    To be called by all processes, once they have joined. Each tells the others its host and whether
    its name resolves to loopback, through JAX's coordination service; on public API alone each
    process looks at itself only. `timeout` is in seconds; a process that does not answer in time is
    not this function's to name.
    """
    if processes == 1 or coordinator is None or not _on_gloo():
        return
    host = coordinator.rpartition(":")[0].strip("[]")
    if host == "localhost" or _is_loopback(host):
        return  # all processes are on this host
    name = socket.gethostname()
    address = _machine.address(name)
    found = {process: (_machine.identity(), name, address if _is_loopback(address) else "")}
    several = not _is_loopback(_machine.address(host))
    if (store := _jax.store()) is not None:
        store.set_once(f"{_FOLDER}{process}", json.dumps(found[process]).encode())
        deadline = time.monotonic() + min(timeout, _SECONDS)
        while len(told := store.list(_FOLDER)) < processes and time.monotonic() < deadline:
            time.sleep(0.05)
        found = {int(p): tuple(json.loads(value)) for p, value in told.items()}
        several = len({machine for machine, _, _ in found.values()}) > 1
    wrong = {p: (n, at) for p, (_, n, at) in sorted(found.items()) if at}
    if several and wrong:
        shown = [f"process {p}: host {n!r} resolves to {at}" for p, (n, at) in wrong.items()]
        first = next(iter(wrong.values()))[0]
        raise build(
            ClusterError,
            where=where,
            given="; ".join(shown[:5]) + f"; and {len(shown) - 5} more" * (len(shown) > 5),
            rule="processes on several hosts connect to the address that each host's own name "
            f"resolves to there; {len(wrong)} of {processes} have a loopback address, where "
            "nobody else can connect",
            advice=f"in /etc/hosts on that host, take {first!r} out of the line that begins with "
            f"127., and add a line with its address on the network: ADDRESS {first}",
        )


def _on_gloo() -> bool:
    if getattr(jax.config, "jax_cpu_collectives_implementation", "gloo") != "gloo":
        return False
    if platforms := getattr(jax.config, "jax_platforms", None):
        return platforms.split(",")[0] == "cpu"
    plugins = map(importlib.util.find_spec, ("jax_plugins", "libtpu"))
    return not any(plugins) and not entry_points(group="jax_plugins")


def _is_loopback(address: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return False
