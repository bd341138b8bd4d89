"""Run one tier of the tests; fail when the tier ran no test.

usage: run_tier.py NAME [pytest arguments]

pytest prints its slowest tests; its report goes to build/tiers/NAME.xml, the tier's one line to
standard output and to build/tiers/NAME.txt.
"""

from __future__ import annotations

import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

REPORTS = Path("build/tiers")
NO_TESTS_COLLECTED = 5  # pytest's exit code
SLOWEST_SHOWN = 15


@dataclass(frozen=True)
class Counts:
    """What pytest reports about one run; an expected failure counts as skipped."""

    passed: int
    failed: int
    skipped: int


def main(arguments: list[str]) -> int:
    """Run the tier named first with the pytest arguments that follow; return the exit code."""
    if not arguments or arguments[0].startswith("-"):
        print("usage: run_tier.py NAME [pytest arguments]", file=sys.stderr)
        return 2
    name, *pytest_arguments = arguments
    REPORTS.mkdir(parents=True, exist_ok=True)
    report = REPORTS / f"{name}.xml"
    report.unlink(missing_ok=True)

    start_s = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}"]
    command += [f"--durations={SLOWEST_SHOWN}", *pytest_arguments]
    code = subprocess.run(command, check=False).returncode
    duration_s = time.monotonic() - start_s

    counts = read_counts(report) if report.exists() else None
    if counts is None and code != NO_TESTS_COLLECTED:
        outcome = f"pytest stopped with exit code {code} before it ran a test"
    elif counts is None or counts.passed + counts.failed == 0:
        outcome = "no test ran; a tier without a test proves nothing"
    else:
        outcome = (
            f"{counts.passed} passed, {counts.failed} failed, {counts.skipped} skipped"
            f" in {duration_s:.0f} s"
        )
    proven = counts is not None and counts.passed > 0 and counts.failed == 0
    line = f"tier {name}: {outcome}"
    (REPORTS / f"{name}.txt").write_text(line + "\n")
    print(line)
    return code or (0 if proven else 1)


def read_counts(report: Path) -> Counts:
    """Add up the suites of a JUnit report."""
    suites = list(ET.parse(report).getroot().iter("testsuite"))
    tests, failures, errors, skipped = (
        sum(int(suite.get(key, "0")) for suite in suites)
        for key in ("tests", "failures", "errors", "skipped")
    )
    failed = failures + errors
    return Counts(passed=tests - failed - skipped, failed=failed, skipped=skipped)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
