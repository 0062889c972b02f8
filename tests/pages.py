"""The pages of docs/ as what is to be run: their blocks of code, with what stands above them.

A block of Python runs after those above it, in one namespace a page, in each of 4 processes of 2
devices. Comments of HTML, which readers do not see, say more:

    <!-- setup          code that runs there, of names that the page takes for granted
    <!-- file: NAME     above a block: it is a program; a console block below shows its output
    <!-- shown only: WHY
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"

_PART = re.compile(
    r"^(?P<indent> *)(?:<!-- (?P<note>setup\n|file: |shown only: )(?P<text>.*?)-->\n"
    r"|```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^ *```$)",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A block of code: `line` is that of its first line in the page."""

    page: str
    line: int
    language: str
    code: str
    file: str = ""
    shown_only: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page in order; setups are blocks of the language "setup"."""
    text = page.read_text("utf-8")
    name = str(page.relative_to(ROOT))
    blocks: list[Block] = []
    notes: dict[str, str] = {}
    for part in _PART.finditer(text):
        kind = (part["note"] or "").strip(": \n")
        group = "text" if kind else "code"
        line = text.count("\n", 0, part.start(group)) + 1
        if kind == "setup":
            blocks.append(Block(name, line, "setup", part["text"]))
        elif kind:
            notes[kind.replace(" ", "_")] = part["text"].strip()
        else:
            code = textwrap.dedent(part["code"])
            blocks.append(Block(name, line, part["language"], code, **notes))
            notes = {}
    return blocks


def headings_of(page: Path) -> list[int]:
    """The levels of a page's headings, in order."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [len(marks) for marks in re.findall(r"^(#+) ", text, re.MULTILINE)]
