"""What every file of the repository must be free of, and what the ones beside the code must say."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Spelled so that no pattern matches its own line.
FORBIDDEN = {
    "a package registry's host": re.compile(
        r"\b(?:pypi|pythonhosted|download\.pytorch|conda\.anaconda|registry\.npmjs|registry\.yarnpkg"
        r"|deb\.debian|security\.debian|archive\.ubuntu)\.(?:org|com)\b"
    ),
    "a path of one machine": re.compile(r"(?<![\w.-])/(?:work|farm|root)/"),
    "an unfinished note": re.compile(r"\b(?:[T]ODO|[F]IXME)\b"),
}


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """Every text file that git tracks or would track, by its path in the repository."""
    if not (ROOT / ".git").exists():
        pytest.skip("this copy has no .git, so which files are tracked is unknown")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout.decode()
    found = {}
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        content = path.read_bytes() if path.is_file() else b"\0"
        if b"\0" not in content:
            found[name] = content.decode()
    return found


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_contains(what: str, texts: dict[str, str]) -> None:
    assert {"Makefile", "pyproject.toml", "kit/errors.py"} <= texts.keys()
    hits = [
        f"{name}:{number}: {line.strip()[:120]}"
        for name, text in texts.items()
        for number, line in enumerate(text.splitlines(), start=1)
        if FORBIDDEN[what].search(line)
    ]
    assert not hits, f"{what} in\n" + "\n".join(hits)


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("a package registry's host", "index = https://" + "pypi" + ".org/simple"),
        ("a package registry's host", "https://files." + "pythonhosted" + ".org/packages/x"),
        ("a package registry's host", "--index-url https://" + "download.pytorch" + ".org/whl/cpu"),
        ("a package registry's host", '"resolved": "https://registry.' + "npmjs" + '.org/x"'),
        ("a path of one machine", "cd /" + "work/main"),
        ("a path of one machine", '"/' + 'root/x.png"'),
        ("an unfinished note", "# TO" + "DO later"),
    ],
)
def test_the_patterns_find_what_they_are_for(what: str, line: str) -> None:
    assert FORBIDDEN[what].search(line)


@pytest.mark.parametrize(
    "line", ["https://keepachangelog.com/en/1.1.0/", "docs/work/plan.md", "a network/rooted tree"]
)
def test_the_patterns_leave_other_text_alone(line: str) -> None:
    assert not any(pattern.search(line) for pattern in FORBIDDEN.values())


def test_types_of_every_python_file_are_checked(texts: dict[str, str]) -> None:
    folders = {name.split("/")[0] for name in texts if name.endswith(".py")}
    project = tomllib.loads(texts["pyproject.toml"])
    assert folders == set(project["tool"]["mypy"]["files"])


def test_license_is_apache_2() -> None:
    words = " ".join((ROOT / "LICENSE").read_text().split())
    assert words.startswith("Apache License Version 2.0, January 2004")
    sections = (
        "1. Definitions.",
        "2. Grant of Copyright License.",
        "3. Grant of Patent License.",
        "4. Redistribution.",
        "5. Submission of Contributions.",
        "6. Trademarks.",
        "7. Disclaimer of Warranty.",
        "8. Limitation of Liability.",
        "9. Accepting Warranty or Additional Liability.",
        "END OF TERMS AND CONDITIONS",
    )
    places = [words.find(section) for section in sections]
    assert -1 not in places
    assert places == sorted(places)


def test_changelog_speaks_of_the_version_in_pyproject() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## \[([^\]]+)\]", changelog, flags=re.MULTILINE)
    assert headings[0] == "Unreleased"
    unreleased = changelog.split("## [Unreleased]", 1)[1].split("\n## [", 1)[0]
    assert version in headings or f"become {version}" in unreleased
