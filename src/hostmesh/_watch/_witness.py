"""A small process beside this one, which tells of its sudden end, and ends it where it is deaf.

Nothing in a process can say that it was killed; and where process 0 is, JAX aborts the others at
once, before any of them can speak. The witness has read what there was to say. It knows nothing of
JAX, takes 8 MB, and ends with its parent. Of several processes of a host that end so one after the
other, the first is told of: the others mostly follow from it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from typing import IO

_PROGRAM = r"""
import json, os, select, signal, sys, time
parent, limit, first, own = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4]
text, rest, last, open_ = "", b"", time.monotonic(), True

def state():
    try: return open(f"/proc/{parent}/stat").read().rpartition(")")[2].split()[0]
    except OSError: return ""

def tell(words):
    try:
        with open(own, "a") as file: file.write(words)
    except OSError: pass
    try:
        if time.time() - os.stat(first).st_mtime > 60: os.unlink(first)
    except OSError: pass
    try: os.close(os.open(first, os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError: return
    except OSError: pass
    os.write(2, words.encode())

while os.getppid() == parent:
    if open_ and select.select([0], [], [], 0.2)[0]:
        data = os.read(0, 65536)
        open_ = bool(data)
        last = time.monotonic()
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            text = json.loads(line)
            if text is None: os._exit(0)
        continue
    if not open_: time.sleep(0.02)
    if open_ and limit and time.monotonic() - last > limit and state() not in ("T", "t"):
        tell(text[1])
        os.kill(parent, signal.SIGKILL)
        os._exit(0)
if text: tell(text[0])
"""


class Witness:
    """Started with the process that it is to tell of. `limit` is how many seconds that may be deaf
    before it is killed; 0 lets it be. `first` is a file that the witnesses of a run on a host
    share, `own` is where the words are left in any case."""

    def __init__(self, limit: float, first: str, own: str) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        arguments = [str(os.getpid()), str(limit), first, own]
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # a launcher that ends this group must not end it
            )
            assert self._process.stdin is not None
            os.set_blocking(self._process.stdin.fileno(), False)

    def know(self, ended: str, deaf: str) -> None:
        """Gives what it is to say where this process ends, and where it is killed for being deaf."""
        self._send([ended, deaf])

    def close(self) -> None:
        """This process ends as it should, or needs no witness any more."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        self._send(None, process.stdin)
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(1.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _send(self, words: object, to: IO[bytes] | None = None) -> None:
        stream = to or (self._process.stdin if self._process else None)
        if stream is not None:
            # A full pipe means that it is stopped itself: it then knows what it read before.
            with contextlib.suppress(OSError, ValueError):
                os.write(stream.fileno(), json.dumps(words).encode() + b"\n")
