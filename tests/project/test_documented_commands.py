"""Every command that README.md, docs and the Makefile show can be typed as shown."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELLS = {"bash", "sh", "shell", "console"}
OPERATORS = re.compile(r"[|&;<>()]+")


def shell_lines(text: str) -> list[str]:
    """The commands in the fenced shell blocks of a document; one over several lines is joined."""
    lines = []
    for language, block in FENCE.findall(text):
        if language not in SHELLS:
            continue
        pending = ""
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            pending += line if pending else line.strip().removeprefix("$ ")
            if has_open_quote(pending):
                pending += "\n"
            else:
                lines.append(pending)
                pending = ""
        if pending:
            raise ValueError(f"a quotation is never closed: {pending}")
    return lines


def has_open_quote(line: str) -> bool:
    try:
        shlex.split(line, comments=True)
    except ValueError:
        return True
    return False


def simple_commands(line: str) -> list[list[str]]:
    """Split a shell line at its operators into words; NAME=value prefixes are dropped."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if OPERATORS.fullmatch(word):
            commands.append([])
        elif commands[-1] or not re.match(r"\w+=", word):
            commands[-1].append(word)
    return [command for command in commands if command]


def own_command(words: list[str]) -> tuple[str, list[str]] | None:
    """Return ("kit" or "bench", arguments) where the words call one of ours."""
    program = words[0].rsplit("/", 1)[-1]
    if program == "kit":
        return "kit", words[1:]
    if re.fullmatch(r"python[\d.]*", program) and words[1:2] == ["-m"]:
        module = words[2]
        if module == "bench":
            return "bench", words[3:]
        if module in ("kit", "kit.cli"):
            return "kit", words[3:]
    return None


def documented_commands() -> list[tuple[str, str]]:
    """(document, line) of each shell line that calls one of our commands."""
    shown = [
        (path.relative_to(ROOT).as_posix(), line)
        for path in DOCUMENTS
        for line in shell_lines(path.read_text())
    ]
    recipes = re.findall(
        r"^\t@(\$\(BIN\)/(?:kit|python -m bench) .*)$",
        (ROOT / "Makefile").read_text(),
        re.MULTILINE,
    )
    shown += [("Makefile", expand(recipe)) for recipe in recipes]
    return [
        (document, line)
        for document, line in shown
        if any(own_command(words) for words in simple_commands(line))
    ]


def expand(recipe: str) -> str:
    """Give every setting of make that may be empty a number."""
    filled = re.sub(r"\$\(addprefix (--[\w-]+ ),\$\(\w+\)\)", r"\g<1>7860", recipe)
    return filled.replace("$(BIN)", ".venv/bin")


def parser_of(program: str) -> argparse.ArgumentParser:
    if program == "kit":
        from kit.cli import build_parser
    else:
        from bench.__main__ import build_parser
    return build_parser()


@pytest.mark.parametrize(("document", "line"), documented_commands())
def test_command_parses(document: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    for program, arguments in filter(None, map(own_command, simple_commands(line))):
        try:
            parser_of(program).parse_args(arguments)
        except SystemExit as stop:  # --help and --version stop with 0
            if stop.code:
                pytest.fail(f"{document}: {line}\n{capsys.readouterr().err}")


@pytest.mark.parametrize(("document", "line"), documented_commands())
def test_configs_named_in_a_command_exist(document: str, line: str) -> None:
    named = re.findall(r"(?<![\w/])configs/[\w./-]+", line)
    assert [name for name in named if not (ROOT / name).exists()] == [], document


def test_readme_shows_how_to_start() -> None:
    readme = (ROOT / "README.md").read_text()
    assert {"install", "demo"} <= make_targets_named_in(readme)
    assert "README.md" in {document for document, _ in documented_commands()}


def make_targets_named_in(text: str) -> set[str]:
    """Targets of `make TARGET` in code spans and shell blocks; "make sure" in prose is not code."""
    code = shell_lines(text) + re.findall(r"`(make [^`\n]+)`", FENCE.sub("", text))
    words = [words for line in code for words in simple_commands(line)]
    return {
        word
        for command in words
        if command[0] == "make"
        for word in command[1:]
        if re.fullmatch(r"[a-z][a-z-]*", word)
    }


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_make_targets_exist(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, flags=re.MULTILINE))
    assert "install" in targets
    assert make_targets_named_in(path.read_text()) <= targets


def test_commands_are_found_in_every_spelling() -> None:
    text = (
        "make sure of `make check`\n"
        "```bash\n"
        "$ make install TORCH=torch==2.13.0\n"
        'OMP_NUM_THREADS=1 .venv/bin/kit generate "a cat" \\\n'
        "  -o out.png && kit doctor > report.txt  # a remark\n"
        ".venv/bin/python -m bench run golden | tee log\n"
        "curl localhost:8091/v1/chat/completions -d '{\n"
        '  "messages": []\n'
        "}' | .venv/bin/kit --help # what's left\n"
        "```\n"
        "```python\nkit = 1\n```\n"
    )
    calls = [own_command(words) for line in shell_lines(text) for words in simple_commands(line)]
    assert [call for call in calls if call] == [
        ("kit", ["generate", "a cat", "-o", "out.png"]),
        ("kit", ["doctor"]),
        ("bench", ["run", "golden"]),
        ("kit", ["--help"]),
    ]
    assert make_targets_named_in(text) == {"check", "install"}
