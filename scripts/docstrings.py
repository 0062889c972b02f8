"""An extension of griffe, for mkdocs: shows the examples in docstrings as code."""

from __future__ import annotations

import re
from typing import Any

import griffe

# From a line with a prompt to the next empty one: what doctest takes for an example.
EXAMPLE = re.compile(r"^([ ]*)>>> .*(?:\n[ ]*\S.*)*", re.MULTILINE)


def fenced(docstring: str) -> str:
    """The docstring with a fence around each example.

    >>> print(fenced("Adds.\\n\\n>>> 1 + 1\\n2"))
    Adds.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    return EXAMPLE.sub(lambda found: f"{found[1]}```pycon\n{found[0]}\n{found[1]}```", docstring)


class Examples(griffe.Extension):
    """Changes each docstring as it is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
