"""Makes mutants of a module (by cosmic-ray), and tries them with tests: see `scripts/mutation`.

A mutant that differs in annotations alone is none. Caches are left as they are: a value is the same
without one. So are modules' type aliases and the branches that only type checkers read.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.abc
import importlib.util
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

SECONDS = 90  # a mutant that takes longer than this loops, and so is noticed
PURE = ["tests/test_bad_input.py::test_wrong_plans", "tests/test_topology.py", "tests/test_plan.py"]
TESTS = {"_convert": ["tests/test_convert_rules.py"]}
# Of `_convert`, what decides; the rest moves bytes, and is tested on several processes.
DECIDES = {
    "_convert": [
        "_level_of",
        "processes_of",
        "_layouts",
        "_shardings",
        "_is_shape",
        "_shapes_for",
        "mesh_for",
        "sharding_for",
        "_where",
    ]
}
# Operators whose mutants would be tried twice over, or that only break a name.
SKIPPED = ("Variable", "RemoveDecorator", "ExceptionReplacer")


def path_of(module: str) -> Path:
    return Path("src/hostmesh") / f"{module}.py"


class _Bare(ast.NodeTransformer):
    """Drops what is not run."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        if isinstance(node.target, ast.Name) and node.target.id[:1].isupper():
            node.value = None  # a type alias
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST:
        if "TYPE_CHECKING" in ast.dump(node.test):
            return ast.Pass()
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if ast.dump(node.func).endswith("id='cast', ctx=Load())"):
            node.args[0] = ast.Constant(None)
        return self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        if node.arg == "maxsize":
            node.value = ast.Constant(None)
        return self.generic_visit(node)


def meaning(source: str, only: list[str] | None) -> str:
    """What of a module is tried, as text: equal for versions that run alike."""
    tree = ast.parse(source)
    if only:
        tree.body = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in only]
    return ast.dump(_Bare().visit(tree))


def made(module: str) -> Iterator[dict[str, str]]:
    """Distinct mutants: of each operator two at a place, drawn by a fixed seed."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    source = path_of(module).read_text()
    only = DECIDES.get(module)
    seen = {meaning(source, only)}
    places: dict[tuple[str, object], list[dict[str, str]]] = {}
    for name in sorted(operator_names()):
        if any(word in name for word in SKIPPED):
            continue
        operator = get_operator(name)()
        nodes = list(ast_nodes(get_ast(source)))
        where = [place for node in nodes for place in operator.mutation_positions(node)]
        for number, place in enumerate(where):
            text = mutate_code(source, operator, number)
            with contextlib.suppress(SyntaxError):
                if text and (same := meaning(text, only)) not in seen:
                    seen.add(same)
                    family = name.split("/")[1].split("_")[0]
                    line = place[0][0]
                    what = f"{module}.py:{line} {name.split('/')[1]}: {text.splitlines()[line - 1].strip()}"
                    mutant = {"what": what, "source": text}
                    places.setdefault((family, place), []).append(mutant)
    rng = random.Random(0)
    for found in places.values():
        yield from found if os.environ.get("EVERY") else rng.sample(found, min(2, len(found)))


class _Mutant(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Has one module imported from the text of a mutant."""

    def __init__(self, module: str, source: str) -> None:
        self._name, self._source = f"hostmesh.{module}", source
        self._path = str(path_of(module).resolve())

    def find_spec(self, fullname: str, path: object = None, target: object = None):
        if fullname == self._name:
            return importlib.util.spec_from_file_location(fullname, self._path, loader=self)
        return None

    def get_filename(self, fullname: str) -> str:
        return self._path

    def get_data(self, path: str) -> bytes:
        if path != self._path:
            raise OSError  # no compiled file
        return self._source.encode()


def survives(module: str, source: str) -> bool:
    """Whether the tests pass with this text as the module."""
    import pytest

    child = os.fork()
    if not child:
        nothing = os.open(os.devnull, os.O_WRONLY)
        if not os.environ.get("VERBOSE"):
            os.dup2(nothing, 1)
            os.dup2(nothing, 2)
        sys.meta_path.insert(0, _Mutant(module, source))
        options = [
            "-x",
            "-q",
            "--assert=plain",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "--hypothesis-seed=0",
        ]
        status = 1
        try:
            tests = [*TESTS.get(module, PURE), "--doctest-modules", str(path_of(module))]
            status = int(pytest.main([*options, *tests]))
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(status)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def main() -> None:
    way, module = sys.argv[1:]
    if way == "make":
        for mutant in made(module):
            print(json.dumps(mutant))
        return
    mutants = [json.loads(line) for line in sys.stdin]
    import hypothesis  # noqa: F401, what each child needs is loaded once
    import jax  # noqa: F401

    if not survives(module, path_of(module).read_text()):
        raise SystemExit(f"the tests of {module} fail without a mutation: try them with VERBOSE=1")
    left = 0
    for mutant in mutants:
        if survives(module, mutant["source"]):
            left += 1
            print("survived:", mutant["what"], flush=True)
    killed = len(mutants) - left
    print(
        f"{module}: {killed}/{len(mutants)} killed, {100 * killed / len(mutants):.1f} %", flush=True
    )


if __name__ == "__main__":
    main()
