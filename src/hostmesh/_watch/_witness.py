"""A small process beside this one, which tells of its sudden end, and ends it where it is deaf.

It also stays where the program has finished and no thread of Python runs any more: what hangs there,
such as the destructor of a computation that waits for another process, nobody else can tell.

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

from .._cluster import NOTES

AGO = "\x01"  # stands on both sides of a number of seconds, to which those since then are added
_PROGRAM = r"""
import contextlib, json, os, select, signal, sys, time
parent, limit, first, own = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4]
process, notes = sys.argv[5], os.environ.get(sys.argv[6], "")
text, rest, last, open_ = "", b"", time.monotonic(), True

def facts():
    try: return open(f"/proc/{parent}/stat").read().rpartition(")")[2].split()
    except OSError: return [""] + 12 * ["0"]

def state(): return facts()[0]
def used(): return (int(facts()[11]) + int(facts()[12])) / os.sysconf("SC_CLK_TCK")

def tell(words, brief=""):
    ago, parts = time.monotonic() - last, words.split(sys.argv[7])
    parts[1::2] = [f"{float(part) + ago:.1f}" for part in parts[1::2]]
    words = "".join(parts)
    try:
        os.makedirs(os.path.dirname(own), exist_ok=True)
        with open(own, "a") as file: file.write(words)
    except OSError: pass
    try:
        if time.time() - os.stat(first).st_mtime > 60: os.unlink(first)
    except OSError: pass
    try: os.close(os.open(first, os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError: words = brief
    except OSError: pass
    os.write(2, words.encode())

def is_expected():
    # A launcher that ends the process has said so before.
    try: return process in open(f"{notes}/ended").read().split()
    except OSError: return False

def kill(words):
    head = words.partition("\nhostmesh:   process")[0].replace("hostmesh: ", "")
    with contextlib.suppress(OSError), open(f"{notes}/why", "x") as file:
        file.write(" ".join(head.split()))
    os.kill(parent, signal.SIGKILL)
    os._exit(0)

def follow(words, brief, seconds, kills):
    # One that takes a CPU is still at something, as on a busy host; but not for ever.
    began = start = time.monotonic()
    before = used()
    while os.getppid() == parent and time.monotonic() < start + seconds:
        time.sleep(0.1)
        busy = used() > before + 0.1 and time.monotonic() < began + 10 * seconds
        if busy or state() in ("T", "t"): start, before = time.monotonic(), used()
    if os.getppid() == parent:
        tell(words, brief)
        if kills: kill(words)
    os._exit(0)

while os.getppid() == parent:
    if open_ and select.select([0], [], [], 0.2)[0]:
        data = os.read(0, 65536)
        open_ = bool(data)
        if data: last = time.monotonic()
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            text = json.loads(line)
            if text is None: os._exit(0)
            if len(text) > 2: follow(*text)
        continue
    if not open_: time.sleep(0.02)
    if open_ and limit and time.monotonic() - last > limit and state() not in ("T", "t"):
        tell(text[1])
        kill(text[1])
if text and not is_expected(): tell(text[0])
"""


class Witness:
    """Started with the process that it is to tell of. `limit` is how many seconds that may be deaf
    before it is killed; 0 lets it be. `first` is a file that the witnesses of a run on a host
    share, `own` is where the words are left in any case."""

    def __init__(self, limit: float, first: str, own: str, process: int) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        arguments = [str(os.getpid()), str(limit), first, own, str(process), NOTES, AGO]
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

    def follow(self, words: str, brief: str, seconds: float, kills: bool) -> None:
        """Says `words` where this process, whose program has finished, is there in so many seconds,
        or `brief` where another of its host has said so; and kills it then, if it is to."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        self._send([words, brief, seconds, kills], process.stdin)
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.returncode = 0  # it outlives this process: nobody waits for it

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
