"""Imports point one way, and a finished run can be read where no model can be loaded."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import kingpost

PACKAGE = Path(kingpost.__file__).parent
# What a part may import: itself and what stands before it.
ORDER = [
    ["errors"],
    ["models"],
    ["texts"],
    ["ablations"],
    ["engine"],
    ["measures"],
    ["study"],
    ["figures"],
    ["scanning"],
    ["verification"],
    ["reference"],
    ["cli"],
    ["__main__"],
]
RANK = {part: i for i, parts in enumerate(ORDER) for part in parts}


def imports() -> list[tuple[str, str, str]]:
    """Every import between parts: file, the part it is in, the module it imports."""
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        relative = file.relative_to(PACKAGE)
        part = relative.parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kingpost."):
                found.append((str(relative), part, str(node.module)))
    return found


def test_every_part_has_its_place() -> None:
    parts = {p.name.removesuffix(".py") for p in PACKAGE.iterdir() if p.suffix in ("", ".py")}
    assert parts - {"__init__", "__pycache__"} == set(RANK)


def test_imports_point_one_way() -> None:
    found = imports()
    assert len(found) > 50
    wrong = [
        (file, module) for file, part, module in found if RANK[module.split(".")[1]] > RANK[part]
    ]
    assert wrong == []


def test_parts_are_entered_through_their_front_door() -> None:
    inside = [
        (file, module)
        for file, part, module in imports()
        if module.count(".") > 1 and module.split(".")[1] != part
    ]
    assert inside == []


@pytest.mark.parametrize("module", ["study", "figures"])
def test_a_study_is_read_and_drawn_without_torch(module: str) -> None:
    code = (
        f"import sys, kingpost.{module}; "
        "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert out.strip() == "[]"


def test_the_public_api_is_a_short_list_and_all_of_it_is_there() -> None:
    assert len(kingpost.__all__) <= 20
    for name in kingpost.__all__:
        assert callable(getattr(kingpost, name))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = kingpost.nothing
