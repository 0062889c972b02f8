"""What the processes tell each other about themselves: JSON, whatever versions they have.

It lies in JAX's key-value store, where process 0 reads it. On public API alone it travels by
collectives. Each call waits for all first, and names those that do not come.
"""

from __future__ import annotations

import itertools
import json
import secrets
from typing import Any

from .. import _jax
from .._collectives import barrier
from .._coordination import agree
from .._objects import allgather_object, broadcast_object

_FOLDER = "hostmesh/doctor/"


class Meeting:
    """One look of all processes at themselves, process `me` of `processes`.

    `seconds` is how long each call waits for the others, before it raises `StragglerError`.
    """

    def __init__(self, me: int, processes: int, seconds: float) -> None:
        self.me = me
        self.processes = processes
        self.seconds = seconds
        self.store = _jax.store() if processes > 1 else None
        self._calls = itertools.count()
        drawn = secrets.token_bytes(24) if me == 0 else b""
        agreed = agree("hostmesh.doctor: begin", data=drawn, timeout=seconds).data[0]
        self.salt = agreed[:16]  # random, and the same on all
        self.folder = f"{_FOLDER}{agreed[16:].hex()}/"

    def wait(self, what: str) -> None:
        """Waits for all."""
        barrier(f"hostmesh.doctor: {what}", timeout=self.seconds)

    def gather(self, value: Any) -> list[Any] | None:
        """The values of all processes on process 0, and `None` on the others."""
        if self.processes == 1:
            return [value]
        if self.store is None:
            everyone = allgather_object(json.dumps(value), timeout=self.seconds)
            return None if self.me else [json.loads(told) for told in everyone]
        folder = f"{self.folder}{next(self._calls)}/"
        self.store.set_once(f"{folder}{self.me}", json.dumps(value).encode())
        self.wait("told")
        if self.me:
            return None
        told = self.store.list(folder)
        self.store.delete(folder)
        return [json.loads(told[str(process)]) for process in range(self.processes)]

    def share(self, value: Any) -> Any:
        """Process 0's value, on all."""
        if self.processes == 1:
            return value
        if self.store is None:
            return json.loads(broadcast_object(json.dumps(value), timeout=self.seconds))
        key = f"{self.folder}{next(self._calls)}"
        if self.me == 0:
            self.store.set_once(key, json.dumps(value).encode())
        self.wait("shared")
        message = self.store.get(key, self.seconds)
        assert message is not None  # it was there before all went on
        return json.loads(message)

    def end(self) -> None:
        """Leaves nothing in the store, when all are done."""
        self.wait("done")
        if self.store is not None and self.me == 0:
            self.store.delete(self.folder)
