"""The page: one HTML text that plans in the browser, with no network.

Its scripts are files of `page/`, put into the text here. Its security policy allows these by their
digests and nothing else, so that no request can leave it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from ._palette import COLOURS

_FOLDER = Path(__file__).parent / "page"
# In this order: each uses those before it.
_SCRIPTS = (
    "words",
    "planning",
    "sentences",
    "moves",
    "model",
    "dom",
    "layout",
    "reshard",
    "files",
    "page",
)


def page(start: Mapping[str, str]) -> str:
    """The page, which begins with a state: names and texts as in its link.

    >>> "data=8" in page({"mesh": "data=8", "processes": "2"})
    True
    """
    style = _read("page.css") + "".join(
        f".c{number} {{ --c: {colour}; --i: {ink}; }}\n"
        for number, (colour, ink) in enumerate(COLOURS)
    )
    scripts = [_read(f"{name}.js") for name in _SCRIPTS]
    allowed = " ".join(map(_digest, scripts))
    parts = {
        "POLICY": f"default-src 'none'; script-src {allowed}; style-src {_digest(style)};"
        " img-src data:; base-uri 'none'; form-action 'none'",
        "STYLE": style,
        # Within a script element nothing but this sign could end it.
        "START": json.dumps(dict(start)).replace("<", "\\u003c"),
        "SCRIPTS": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    whole = _read("page.html")
    for name, text in parts.items():
        whole = whole.replace(f"@{name}@", text, 1)
    return whole


def _read(name: str) -> str:
    return (_FOLDER / name).read_text("utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
