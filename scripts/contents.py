"""Compares the files of a wheel and of an sdist with those that git knows: nothing lacks, nothing is extra.

python scripts/contents.py dist
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

# What hatchling adds by itself.
ADDED = {"PKG-INFO", "pyproject.toml", ".gitignore"}


def tracked(*places: str) -> set[str]:
    told = subprocess.run(["git", "ls-files", "-z", *places], capture_output=True, check=True)
    return set(told.stdout.decode().split("\0")) - {""}


def differences(kind: str, found: set[str], expected: set[str]) -> list[str]:
    lacking = [f"{kind} lacks {name}" for name in sorted(expected - found)]
    return lacking + [f"{kind} has {name}" for name in sorted(found - expected)]


def wheel(path: Path) -> list[str]:
    names = set(zipfile.ZipFile(path).namelist())
    about = {name for name in names if PurePosixPath(name).parts[0].endswith(".dist-info")}
    code = {name.removeprefix("src/") for name in tracked("src")}
    lacking = [f"the wheel lacks {name}" for name in ("METADATA", "LICENSE", "entry_points.txt")
               if not any(PurePosixPath(one).name == name for one in about)]  # fmt: skip
    return lacking + differences("the wheel", names - about, code)


def sdist(path: Path) -> list[str]:
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    build = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["hatch"]["build"]
    expected = tracked(*build["targets"]["sdist"]["include"])
    return differences("the sdist", names - ADDED, expected - ADDED)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    found = [*wheel(next(folder.glob("*.whl"))), *sdist(next(folder.glob("*.tar.gz")))]
    sys.exit("\n".join(found) or 0)
