"""Says how many lines of the Ascend backend tier A's tests run.

python tools/ascend_coverage.py

A line counts if Python compiled it to something inside a function: those of definitions and
constants run at any import. Exit 1 below the limit.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

_ROOT = Path(__file__).parents[1]
SOURCES = (
    *sorted((_ROOT / "kit/attention/ascend").glob("*.py")),
    _ROOT / "kit/model/npu.py",
    _ROOT / "kit/platforms/ascend.py",
    _ROOT / "kit/doctor/npu.py",
)
TESTS = (
    "tests/attention/test_fia.py",
    "tests/attention/test_fia_start.py",
    "tests/model/test_npu_operators.py",
    "tests/doctor/test_npu_report.py",
    "tests/platforms/test_ascend_npus.py",
    "tests/worker/test_ascend_runner.py",
)
LIMIT = 0.95


def function_lines(path: Path) -> set[int]:
    """Return the lines of a file that belong to functions."""

    def below(code: CodeType) -> Iterator[CodeType]:
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield constant
                yield from below(constant)

    module = compile(path.read_text(encoding="utf-8"), str(path), "exec")
    functions = [code for code in below(module) if code.co_flags & 0x1]  # not a class's body
    return {
        line
        for code in functions
        for _, _, line in code.co_lines()
        if line is not None and line > code.co_firstlineno
    }


def run_traced(arguments: list[str]) -> tuple[int, dict[str, set[int]]]:
    """Run pytest; return its exit code and the lines that ran of each source."""
    seen: dict[str, set[int]] = {str(path): set() for path in SOURCES}

    def each_line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            seen[frame.f_code.co_filename].add(frame.f_lineno)
        return each_line

    def each_call(frame: FrameType, _: str, __: Any) -> Any:
        return each_line if frame.f_code.co_filename in seen else None

    sys.settrace(each_call)
    try:
        return int(pytest.main(arguments)), seen
    finally:
        sys.settrace(None)


def main() -> int:
    """Run the tests and print a line per file."""
    code, seen = run_traced(["-q", "-m", "not long", "-p", "no:cacheprovider", *TESTS])
    if code:
        return code
    num_run = num_lines = 0
    for path in SOURCES:
        lines = function_lines(path)
        missed = sorted(lines - seen[str(path)])
        num_run, num_lines = num_run + len(lines) - len(missed), num_lines + len(lines)
        note = f", not lines {missed}" if missed else ""
        print(f"{path.relative_to(_ROOT)}: {len(lines) - len(missed)} of {len(lines)}{note}")
    share = num_run / num_lines
    print(f"{num_run} of {num_lines} lines, {100 * share:.1f} %; the limit is {100 * LIMIT:.0f} %")
    return 0 if share >= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
