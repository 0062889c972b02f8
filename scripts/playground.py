"""A hook of mkdocs: the page of `hostmesh plan --html` goes on the site, for its start page to show."""

from __future__ import annotations

from typing import Any

from mkdocs.structure.files import File, Files

from hostmesh._draw._page import page
from hostmesh._draw._serve import start_of

INTERLEAVED = ("data=4,model=2", 4, "interleaved", "", "(data,model)", "64,128", "float32", None)


def on_files(files: Files, config: Any) -> Files:
    files.append(File.generated(config, "playground.html", content=page(start_of(*INTERLEAVED))))
    return files
