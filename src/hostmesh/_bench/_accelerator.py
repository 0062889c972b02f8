"""Host to device, in a process that sees the accelerators: those of the other races have CPUs alone.

`python -m hostmesh._bench._accelerator ROUNDS WARM LEAST SECONDS` prints what it found as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ._race import Settings, Times, run_here
from ._result import Result, result
from .claims.host_to_device import CLAIMS, NAME, contestants

__all__ = ["NAME", "Found", "measure"]

_TIMEOUT = 200.0


@dataclass(frozen=True)
class Found:
    """The accelerators, what came out, and what is to be said where nothing could be measured."""

    devices: tuple[str, ...] = ()
    results: tuple[Result, ...] = ()
    said: str = ""


def measure(settings: Settings) -> Found:
    """Races in a process of its own, so that no backend is started in this one."""
    told = [settings.rounds, settings.warm, settings.least, settings.seconds]
    command = [sys.executable, "-m", __name__, *map(str, told)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        return Found(said=f"{NAME}: not ended after {_TIMEOUT:g} s")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return Found(said=f"{NAME}: status {done.returncode}: {last}")
    found = json.loads(done.stdout.splitlines()[-1])
    return found_of(found["devices"], found["times"])


def found_of(devices: list[str], times: Times) -> Found:
    """What such a process told."""
    if not devices:
        return Found(said=f"{NAME}: JAX sees no accelerator here, only CPUs")
    return Found(tuple(devices), tuple(result(claim, times) for claim in CLAIMS))


def _main(rounds: int, warm: int, least: int, seconds: float) -> None:
    import jax

    devices = [device for device in jax.local_devices() if device.platform != "cpu"]
    times: Times = {}
    if devices:
        settings = Settings(1, len(devices), rounds, warm, least, seconds)
        names = {name for claim in CLAIMS for name in claim.names}
        with tempfile.TemporaryDirectory() as folder:
            times = run_here(contestants, sorted(names), 1, settings, Path(folder))
    kinds = [f"{device.platform} {device.device_kind}" for device in devices]
    print(json.dumps({"devices": kinds, "times": times}))


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
