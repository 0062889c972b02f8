"""Stacks in a few words: where a thread is in the user's own code, and equal stacks together."""

from __future__ import annotations

import linecache
import os
import re
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType
from typing import NamedTuple

from .. import _jax
from .._verdict import groups, site_of

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_OURS_TOO = (os.path.join(_PACKAGE, "testing", ""), os.path.join(_PACKAGE, "_demo"))
_LIBRARIES = tuple(
    {os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "purelib", "platlib")}
)
_DEEPEST = 40


class Frame(NamedTuple):
    """One frame of a stack, with its source line."""

    file: str
    line: int
    function: str
    source: str

    @property
    def place(self) -> str:
        """Its file's last two parts and its line."""
        return site_of(self.file, self.line)


Stack = tuple[Frame, ...]


def stack_of(frame: FrameType | None) -> Stack:
    """The frames of a thread, innermost first."""
    frames: list[Frame] = []
    while frame is not None and len(frames) < _DEEPEST:
        file = frame.f_code.co_filename
        # An instruction of the compiler's own has no line, whatever the type says.
        line: int = frame.f_lineno or frame.f_code.co_firstlineno
        frames.append(
            Frame(file, line, frame.f_code.co_name, linecache.getline(file, line).strip())
        )
        frame = frame.f_back
    return tuple(frames)


def is_users(file: str) -> bool:
    """Whether a file is of the program itself: not of Python, of a package, or of hostmesh."""
    if file.startswith(_PACKAGE):
        return file.startswith(_OURS_TOO) and "_worker" not in file and "_session" not in file
    return not file.startswith((*_LIBRARIES, "<frozen", "<string>"))


def innermost(stack: Stack) -> Frame | None:
    """The innermost frame of the user's own code; of any code where there is none."""
    own = (frame for frame in stack if is_users(frame.file))
    return next(own, stack[0] if stack else None)


def is_compiling(stack: Stack) -> bool:
    """Whether a thread is in JAX's compiler."""
    return any(_jax.is_compiler(frame.file) for frame in stack)


def is_on_devices(stack: Stack) -> bool:
    """Whether a thread is in JAX, or in a method of an array that has no frame of its own."""
    if not stack:
        return False
    file = stack[0].file
    return _jax.is_jax(file) or file == _jax.__file__ or ".block_until_ready()" in stack[0].source


def users_part(stack: Stack) -> Stack:
    """The stack without the frames outside the user's own code, where it has such code."""
    own = tuple(frame for frame in stack if is_users(frame.file))
    return own or stack


def grouped(stacks: Mapping[int, Stack]) -> list[tuple[tuple[int, ...], Stack]]:
    """Processes with equal stacks together: larger groups first, then by their processes.

    >>> a, b = (Frame("a.py", 1, "f", "x"),), (Frame("b.py", 2, "g", "y"),)
    >>> [who for who, _ in grouped({0: a, 1: b, 2: a})]
    [(0, 2), (1,)]
    """
    shown = {process: users_part(stack) for process, stack in stacks.items()}
    return [(tuple(who), stack) for stack, who in groups(shown).items()]


_DUMPED = re.compile(r'^ {2}File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$')
_HEAD = re.compile(r"^(Current t|T)hread 0x(?P<ident>[0-9a-f]+)")


def read_dump(text: str, main: int) -> Stack:
    """The stack of a thread, by its identity, in the last dump that `faulthandler` wrote.

    Of any thread where that one is not among them.

    >>> text = 'Thread 0x1f (most recent call first):\\n  File "a.py", line 7 in work\\n'
    >>> read_dump(text, 31)[0].place
    'a.py:7'
    """
    threads: dict[int, list[Frame]] = {}
    current: list[Frame] = []
    for line in text.rpartition("Timeout (")[2].splitlines():
        if head := _HEAD.match(line):
            current = threads.setdefault(int(head["ident"], 16), [])
        elif frame := _DUMPED.match(line):
            file, number = frame["file"], int(frame["line"])
            source = linecache.getline(file, number).strip()
            current.append(Frame(file, number, frame["function"], source))
    return tuple(threads.get(main) or next(iter(threads.values()), []))


def packed(stack: Iterable[Frame]) -> list[tuple[str, int, str, str]]:
    """A stack as plain values."""
    return [(frame.file, frame.line, frame.function, frame.source) for frame in stack]


def unpacked(frames: Sequence[Sequence[object]]) -> Stack:
    """The inverse of `packed`."""
    return tuple(Frame(*frame) for frame in frames)  # type: ignore[arg-type]
