"""The code in docs/ runs and prints what the pages show; pages in two languages are in step."""

from __future__ import annotations

import contextlib
import dataclasses
import doctest
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from hostmesh import _cli
from hostmesh._config import Config
from hostmesh.testing import run
from pages import DOCS, ROOT, Block, blocks_of, headings_of

PAGES = sorted(page for page in DOCS.rglob("*.md") if page.parent.name != "zh")
BLOCKS = [block for page in PAGES for block in blocks_of(page)]
CONSOLES = [block for block in BLOCKS if block.language == "console" and not block.shown_only]
TRANSLATED = {"zh/start.md": "index.md", "zh/concepts.md": "concepts.md"}


def runs(block: Block) -> bool:
    is_code = block.language in ("python", "pycon", "setup")
    return is_code and not block.shown_only and not block.file


def commands(block: Block) -> dict[str, str]:
    """What is typed in a console, and what is shown below it."""
    found: dict[str, str] = {}
    for part in re.split(r"^\$ ", block.code.replace("\\\n", ""), flags=re.MULTILINE)[1:]:
        typed, _, shown = part.partition("\n")
        found[typed.partition("  #")[0].strip()] = shown
    return found


TYPED = [
    pytest.param(block, typed, shown, id=f"{block}:{typed}")
    for block in CONSOLES
    for typed, shown in commands(block).items()
    if typed.startswith("hostmesh ")
]


def follow(blocks: list[Block], folder: str) -> int:
    """Runs the blocks of a page in this process; returns how many there were."""
    names: dict[str, object] = {"__name__": "page"}
    with contextlib.chdir(folder):
        for block in blocks:
            if ">>> " in block.code:
                follow_session(block, names)
            else:
                code = "\n" * (block.line - 1) + block.code  # so that errors tell lines of the page
                exec(compile(code, block.page, "exec"), names)
        for name in [name for name in names if name.startswith("test_")]:
            names[name]()  # type: ignore[operator]
    return len(blocks)


def follow_session(block: Block, names: dict[str, object]) -> None:
    test = doctest.DocTestParser().get_doctest(block.code, names, str(block), block.page, 0)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    failed, _ = runner.run(test, out=report.append, clear_globs=False)
    assert not failed, "".join(report)
    names.update(test.globs)


@pytest.mark.parametrize(
    "page", [p for p in PAGES if any(map(runs, blocks_of(p)))], ids=lambda p: p.stem
)
def test_blocks_run_in_four_processes(page: Path, tmp_path: Path) -> None:
    blocks = [block for block in blocks_of(page) if runs(block)]
    assert run(follow, 4, 2, (blocks, str(tmp_path))) == [len(blocks)] * 4


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "python"], ids=str)
def test_blocks_that_are_only_shown_are_python(block: Block) -> None:
    if ">>> " not in block.code:
        compile(block.code, str(block), "exec")


# Options that write, serve or need a file: their own tests run these.
OF_FILES = {"--serve", "--html", "--svg", "--file", "--load"}


@pytest.mark.parametrize(("block", "typed", "shown"), TYPED)
def test_commands_are_those_of_hostmesh(block: Block, typed: str, shown: str) -> None:
    """Their options at least; `hostmesh plan` draws what is shown."""
    _, name, *options = shlex.split(typed)
    command = _cli.main.get_command(click.Context(_cli.main), name)
    assert command is not None, f"{block}: no command {name}"
    if name in ("run", "doctor"):  # a file that is there
        files = (".py", "timeline.json")
        options = [ROOT.joinpath("README.md").name if o.endswith(files) else o for o in options]
    context = command.make_context(name, [*options])
    context.close()
    if name == "plan" and not OF_FILES & set(options):
        drawn = CliRunner().invoke(_cli.main, [name, *options]).output
        told = doctest.OutputChecker().check_output(shown, drawn, doctest.ELLIPSIS)
        assert told, f"{block} shows\n{shown}\nand it draws\n{drawn}"


PROGRAMS = [
    pytest.param(program, typed, shown, id=str(program))
    for program in BLOCKS
    if program.file and program.language == "python"
    for console in CONSOLES
    if console.page == program.page
    for typed, shown in commands(console).items()
    if typed.startswith("hostmesh run ") and typed.endswith(program.file)
]


@pytest.mark.parametrize(("program", "typed", "shown"), PROGRAMS)
def test_programs_print_what_is_shown(
    program: Block, typed: str, shown: str, tmp_path: Path
) -> None:
    (tmp_path / program.file).write_text(program.code)
    command = [sys.executable, "-m", *shlex.split(typed)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if "Gloo" not in line and line[3:].strip()]
    assert sorted(lines) == sorted(shown.splitlines())


def test_each_program_is_run() -> None:
    programs = [str(block) for block in BLOCKS if block.file and block.language == "python"]
    assert programs
    assert sorted(param.id for param in PROGRAMS) == sorted(programs)


@pytest.mark.parametrize(("theirs", "ours"), TRANSLATED.items())
def test_chinese_pages_are_in_step(theirs: str, ours: str) -> None:
    """Headings of the same levels, and the same code, in the same order."""
    assert headings_of(DOCS / theirs) == headings_of(DOCS / ours)
    code, original = (
        [(b.language, b.code, b.file) for b in blocks_of(DOCS / page)] for page in (theirs, ours)
    )
    assert code == original


def test_all_chinese_pages_are_held_to_an_english_one() -> None:
    assert {str(page.relative_to(DOCS)) for page in DOCS.glob("zh/*.md")} == TRANSLATED.keys()


def test_the_reference_has_every_public_name_once() -> None:
    stub = (ROOT / "src/hostmesh/__init__.pyi").read_text()
    public = {name for name in re.findall(r" as (\w+)$", stub, re.MULTILINE) if name[0] != "_"}
    pages = "\n".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    shown = re.findall(r"^::: hostmesh\.(\w+)$", pages, re.MULTILINE)
    assert sorted({*shown} | {"multihost_utils"}) == sorted(public | {"testing"})
    assert len(shown) == len({*shown})


def test_the_page_of_settings_has_every_setting_and_every_variable() -> None:
    page = (DOCS / "configuration.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| `(.*?)` \| \w", page, re.MULTILINE)
    assert rows == [
        (f.name, f"HOSTMESH_{f.name.upper()}", repr(f.default)) for f in dataclasses.fields(Config)
    ]
    sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r"\bHOSTMESH_[A-Z_]*[A-Z]", sources))
    assert {*re.findall(r"HOSTMESH_[A-Z_]*[A-Z]", page)} == named | {row[1] for row in rows}


def test_the_map_of_layers_is_in_the_order_of_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(c["layers"] for c in contracts["contracts"] if c["type"] == "layers")
    level = {name: n for n, layer in enumerate(layers) for name in re.findall(r"\w+", layer)}
    drawn = next(b for b in blocks_of(DOCS / "architecture.md") if b.language == "text").code
    names = [name for name in re.findall(r"\b_\w+", drawn) if name]
    assert {*names} <= level.keys()
    assert [level[name] for name in names] == sorted(level[name] for name in names)
