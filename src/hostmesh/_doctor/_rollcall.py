"""Who has come, asked before JAX starts: JAX aborts all that wait for a process that never comes.

Process 0 listens where the coordinator will be. The others connect, say their number, and wait for
its answer. The port is free again when all have heard who is missing.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections.abc import Callable

from .._errors import ClusterError, StragglerError, build
from .._verdict import name_processes

_HELLO = b"hostmesh doctor "
_LONGEST = 4096
_SETTLE = 1.0
_GRACE = 5.0  # that process 0 has to answer, when the time of the others is up


def call(
    process: int,
    processes: int,
    address: str,
    seconds: float,
    *,
    only_there: bool = True,
    came: Callable[[int], None] = lambda count: None,
) -> None:
    """Returns when all processes have come to this call, `seconds` from its start at most.

    Args:
      address: host and port of the coordinator that JAX will start in process 0 later.
      only_there: has process 0 listen at this address, and not on all that its host has.
      came: is told on process 0 how many have come.

    Raises:
      StragglerError: where some did not come; it names them, on all that came.
      ClusterError: on the others, where process 0 did not come, or cannot be reached.

    >>> call(0, 1, "127.0.0.1:0", 1.0)
    """
    host, _, port = address.rpartition(":")
    place = (host.strip("[]"), int(port))
    if process == 0:
        missing = _collect(processes, place, place[0] if only_there else "", seconds, came)
    else:
        missing = _report(process, processes, place, seconds)
    if missing:
        raise build(
            StragglerError,
            where=f"hostmesh doctor on process {process} of {processes}",
            given=f"{processes - len(missing)} of {processes} processes came to {address}",
            rule=f"{name_processes(missing)} did not come within {seconds:g} s",
            advice="see on its host whether it was started, and what it printed; whether it has the"
            f" same number of processes and can reach {address}",
        )


def _collect(
    processes: int,
    place: tuple[str, int],
    bind: str,
    seconds: float,
    came: Callable[[int], None],
) -> list[int]:
    deadline = time.monotonic() + seconds
    present: dict[int, socket.socket] = {}
    waiting: dict[socket.socket, bytes] = {}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_listen((bind, place[1]), processes))
        while len(present) < processes - 1 and (left := deadline - time.monotonic()) > 0:
            for ready in select.select([server, *waiting], [], [], left)[0]:
                if ready is server:
                    guest, _ = server.accept()
                    stack.enter_context(guest)
                    waiting[guest] = b""
                    continue
                received = _received(ready)
                said = waiting.pop(ready) + received
                if said.startswith(_HELLO) and said.endswith(b"\n"):
                    present[int(said[len(_HELLO) :])] = ready
                    came(len(present) + 1)
                elif received and len(said) < _LONGEST:
                    waiting[ready] = said
        server.close()  # who goes on connects to the coordinator that JAX starts here next
        missing = sorted(set(range(1, processes)) - set(present))
        answer = json.dumps(missing).encode() + b"\n"
        for guest in present.values():
            with contextlib.suppress(OSError):
                guest.sendall(answer)
        for (
            guest
        ) in present.values():  # who hears it closes first: the port is not kept by the past
            guest.settimeout(_GRACE)
            _received(guest)
    return missing


def _listen(place: tuple[str, int], processes: int) -> socket.socket:
    try:
        if place[0]:
            kind = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server(place, family=kind, backlog=max(128, processes))
        both = socket.has_dualstack_ipv6()  # as JAX's own coordinator listens
        return socket.create_server(
            place,
            family=socket.AF_INET6 if both else socket.AF_INET,
            dualstack_ipv6=both,
            backlog=max(128, processes),
        )
    except OSError as error:
        raise build(
            ClusterError,
            where="hostmesh doctor on process 0",
            given=f"the coordinator's address {place[0] or '(any)'}:{place[1]}",
            rule=f"process 0 cannot listen there: {error}",
            advice="give an address of process 0's own host, and a port that nothing else uses",
        ) from error


def _report(process: int, processes: int, place: tuple[str, int], seconds: float) -> list[int]:
    deadline = time.monotonic() + seconds
    error: OSError | None = None
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(place, timeout=5.0) as link:
                link.sendall(_HELLO + b"%d\n" % process)
                link.settimeout(seconds + _GRACE)
                if answer := _line(link):
                    return [int(number) for number in json.loads(answer)]
        except (OSError, ValueError) as problem:
            error = problem if isinstance(problem, OSError) else OSError(str(problem))
        time.sleep(0.1)
    raise build(
        ClusterError,
        where=f"hostmesh doctor on process {process} of {processes}",
        given=f"process 0 at {place[0]}:{place[1]}",
        rule=f"process 0 did not answer there within {seconds:g} s: {error or 'it hung up'}",
        advice="see whether process 0 was started, at this address, and has failed; whether a"
        " firewall or a wrong interface is between",
    )


def _line(link: socket.socket) -> bytes:
    said = b""
    while not said.endswith(b"\n"):
        received = link.recv(_LONGEST)
        if not received:
            return b""
        said += received
    return said


def _received(link: socket.socket) -> bytes:
    with contextlib.suppress(OSError):
        return link.recv(_LONGEST)
    return b""
