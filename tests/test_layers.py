"""The layers: the product knows nothing of its optimizer, what talks to the world nothing of the program, and nothing goes in circles."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import crag_dspy

PACKAGE = Path(crag_dspy.__file__).parent
FILES = {path.stem: path for path in sorted(PACKAGE.glob("*.py"))}
WORLD = "index search fetch extract ingest models local_lm sandbox settings errors types split".split()


def imports(source: str, package: str = "crag_dspy") -> set[str]:
    """Return every module that a source imports, wherever in the file, e.g. {"dspy", "crag_dspy.types"}."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(filter(None, [package if node.level else None, node.module]))
            found |= {f"{base}.{alias.name}" for alias in node.names} if base == package else {base}
    return found


def inside(name: str) -> set[str]:
    """Return the files of crag_dspy that one of them imports; `__init__` where it takes a name from the package."""
    found = set()
    for module in imports(FILES[name].read_text(encoding="utf-8")):
        if module.split(".")[0] == "crag_dspy":
            part = module.split(".")[1] if "." in module else "__init__"
            found.add(part if part in FILES else "__init__")
    return found - {name}


def reached(name: str) -> set[str]:
    found: set[str] = set()
    todo = [name]
    while todo:
        new = inside(todo.pop()) - found
        found |= new
        todo += new
    return found


@pytest.mark.parametrize(
    ("source", "modules"),
    [
        ("import dspy, os.path", {"dspy", "os.path"}),
        ("from crag_dspy.types import Answer", {"crag_dspy.types"}),
        ("from crag_dspy import cite, build", {"crag_dspy.cite", "crag_dspy.build"}),
        ("def f():\n    from .grade import grade", {"crag_dspy.grade"}),
        ("from . import cite", {"crag_dspy.cite"}),
        ("if True:\n    import optimize.metrics as m", {"optimize.metrics"}),
    ],
)
def test_every_form_of_import_is_seen(source: str, modules: set[str]) -> None:
    assert imports(source) == modules


@pytest.mark.parametrize("name", FILES)
def test_the_product_never_imports_its_optimizer_or_tests(name: str) -> None:
    roots = {module.split(".")[0] for module in imports(FILES[name].read_text(encoding="utf-8"))}
    assert not roots & {"optimize", "data", "tests", "conftest", "fake_lm", "pytest"}


@pytest.mark.parametrize("name", WORLD)
def test_what_talks_to_the_world_knows_no_program(name: str) -> None:
    for file in {name} | reached(name):
        assert "dspy" not in {module.split(".")[0] for module in imports(FILES[file].read_text(encoding="utf-8"))}, file
    assert not reached(name) & {"program", "app", "state", "serving", "cli", "__init__"}


@pytest.mark.parametrize("name", ["errors", "settings", "types"])
def test_the_lowest_layer_imports_nothing_above_errors(name: str) -> None:
    assert inside(name) <= {"errors"}


def test_imports_form_no_cycle() -> None:
    try:
        order = list(TopologicalSorter({name: inside(name) for name in FILES}).static_order())
    except CycleError as exc:
        raise AssertionError(" -> ".join(exc.args[1])) from None
    assert set(order) == set(FILES) and order.index("types") < order.index("program") < order.index("app")
