"""Bytes are computed in one module; all else asks it, or reads what files and tensors hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FORMULAS = "kit/modelspec/footprint.py"
MEASURED = {
    "kit/modelspec/files.py": "math.prod(shape) * DTYPE_BYTES[dtype]",
    "kit/modelspec/fingerprint.py": "NUM_BLOCKS * BLOCK_BYTES",
    "kit/model/shard.py": "num_bytes // self.size",
    "kit/kv/store.py": "self.num_bytes // self.num_pages",
}
UNITS = {"_MIB", "_GIB", "utilization"}


def byte_products(source: str) -> Iterator[str]:
    """Products and whole quotients of a byte count that neither convert a unit nor take a share."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult | ast.FloorDiv):
            continue
        sides = [node.left, node.right]
        if any(is_byte_count(side) for side in sides) and not any(is_unit(s) for s in sides):
            yield ast.unparse(node)


def is_byte_count(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Subscript):
        node = node.value
    name = getattr(node, "attr", getattr(node, "id", ""))
    return "bytes" in name.lower() or name in {"element_size", "itemsize", "nbytes"}


def is_unit(node: ast.expr) -> bool:
    names = {getattr(part, "attr", getattr(part, "id", None)) for part in ast.walk(node)}
    return isinstance(node, ast.Constant) or names <= {None} or bool(names & UNITS)


def test_no_other_module_multiplies_bytes() -> None:
    found = {}
    for path in sorted((ROOT / "kit").rglob("*.py")):
        if path.parent.name == "kernels":  # they count the fast memory of one tile
            continue
        products = list(byte_products(path.read_text()))
        if products:
            found[path.relative_to(ROOT).as_posix()] = products
    assert len(found.pop(FORMULAS)) >= 8
    assert found == {name: [product] for name, product in MEASURED.items()}


@pytest.mark.parametrize(
    "planted",
    [
        "pool = num_pages * geometry.page_bytes",
        "pages = budget // page_bytes",
        "weights = elements * DTYPE_BYTES[dtype]",
        "rows = 2 * tokens * dtype_bytes",
        "kv = keys.numel() * keys.element_size()",
    ],
)
def test_a_second_formula_is_found(planted: str) -> None:
    assert list(byte_products(planted))


@pytest.mark.parametrize(
    "other", ["a = num_bytes / 2**30", "a = 64 * _MIB", "a = int(total_bytes * utilization)"]
)
def test_units_and_shares_are_none(other: str) -> None:
    assert not list(byte_products(other))
