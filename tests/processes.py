"""Processes of a cluster that a test starts by itself, as they may stop, be killed or abort."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from pathlib import Path

from hostmesh._cluster import Member
from hostmesh._hosts import Host


@contextlib.contextmanager
def started(
    script: Path, places: Sequence[Member], hosts: Sequence[Host] | None = None, **environment: str
) -> Generator[list[subprocess.Popen[str]]]:
    """A script in a process at each place, on the host that goes with it; killed at the end."""
    command = [sys.executable, str(script)]
    commands = [host.command(command) for host in hosts] if hosts else [command] * len(places)
    found = [
        subprocess.Popen(
            own,
            env={**os.environ, **place.environment(), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for own, place in zip(commands, places, strict=True)
    ]
    try:
        yield found
    finally:
        for process in found:
            process.send_signal(signal.SIGKILL)
            process.wait()
            if process.stdout:
                process.stdout.close()
