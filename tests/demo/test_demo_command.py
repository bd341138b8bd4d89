"""`kit demo`: flags it refuses, and what its process must not load or reach."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from queue import Queue

import pytest

from kit.cli import main
from kit.commands.demo import DEFAULT_PORT, DEFAULT_SERVER_PORT, compare_notice
from kit.demo.children import SERVER_BYTES, start, stop

DEMO = Path(__file__).parents[2] / "kit" / "demo"


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--compare-server", "http://localhost:1"], "--compare-server: stands alone"),
        (["--server", "localhost:8091"], "--server: is no URL"),
        (["--server", "ftp://localhost"], "--server: is no URL"),
        (
            ["--server", "http://localhost:1", "--compare-server", "http://:7"],
            "--compare-server: is no URL",
        ),
        (["--server", "http://localhost:99999"], "--server: is no URL"),
        (["--server", "http://local host:8091"], "--server: is no URL"),
        (["--server", "http://localhost:8091\n"], "--server: is no URL"),
        (
            ["--server", "http://localhost:1", "--server-port", "1"],
            "--server-port: is for a server to start",
        ),
        (["--port", "70000"], "--port: is no port"),
        (["--public-server", "http://localhost:1"], "--public-server: stands alone"),
        (
            ["--server", "http://localhost:1", "--public-compare-server", "http://localhost:2"],
            "--public-compare-server: stands alone",
        ),
        (
            ["--server", "http://localhost:1", "--public-server", "here"],
            "--public-server: is no URL",
        ),
    ],
)
def test_a_wrong_flag_is_refused_by_name(
    flags: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *flags]) == 2
    assert f"error: {named}" in capsys.readouterr().err


def test_a_server_port_in_use_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["demo", "--port", "0", "--server-port", str(port)]) == 2
    error = capsys.readouterr().err
    assert f"--server-port: is in use already (got {port}, set by the command line)" in error
    for way in ("--server-port,", "DEMO_SERVER_PORT=", "--server\n"):
        assert way in error


@pytest.mark.parametrize("offset", [0, 1])
def test_a_server_is_not_given_the_port_of_the_page(
    offset: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert main(["demo", "--port", str(port), "--server-port", str(port - offset)]) == 2
    error = capsys.readouterr().err
    assert "--server-port: " in error
    assert f"is in use already (got {port}, set by the command line)" in error


def test_the_port_of_the_second_server_is_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--port", "0", "--server-port", "65535"]) == 2
    error = capsys.readouterr().err
    assert "--server-port: the port after it, for the second server, is no port" in error


@pytest.mark.parametrize(
    ("flag", "port", "other", "setting"),
    [
        ("--port", DEFAULT_PORT, ["--server-port", "0"], " DEMO_PORT="),
        ("--server-port", DEFAULT_SERVER_PORT, ["--port", "0"], " DEMO_SERVER_PORT="),
    ],
)
def test_a_port_that_nobody_typed_is_called_a_default(
    flag: str, port: int, other: list[str], setting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # another program holds it: as good
            held.enter_context(socket.create_server(("127.0.0.1", port)))
        assert main(["demo", *other]) == 2
    error = capsys.readouterr().err
    assert f"error: {flag}: is in use already (got {port}, set by default)" in error
    assert setting in error


def test_compare_is_hidden_with_a_reason_when_memory_is_short() -> None:
    assert compare_notice(2 * SERVER_BYTES) == ""
    notice = compare_notice(2 * SERVER_BYTES - 1)
    assert "Compare is hidden" in notice
    assert "2.0 GiB of memory, 2.0 GiB are free" in notice


def test_servers_start_where_the_system_binds_no_process_to_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    stop([start("dense", 0, (), print)])


def test_a_server_that_ends_by_itself_is_said_to_stay_away() -> None:
    ended, stopped = Queue[str](), Queue[str]()
    start("paged", 0, ("--no-such-flag",), ended.put)
    stop([start("dense", 0, (), stopped.put)])
    line = ""
    while "ended" not in line:
        line = ended.get(timeout=60)
    assert line.startswith("paged | ended with code 2; the demo does not start it again")
    for thread in threading.enumerate():
        if thread.name == "kit-dense":
            thread.join()
    assert [line for line in stopped.queue if "ended" in line] == []


_TWO_WRITERS = """
import sys, threading
from kit.cli import _note

sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=lambda: [_note("x" * 40) for _ in range(2000)]) for _ in "12"]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_lines_of_two_servers_do_not_run_together() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _TWO_WRITERS], capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines() == ["x" * 40] * 4000


_BUILD = """
import sys

reached = []
def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo"):
        reached.append(arguments)
sys.addaudithook(watch)
import {modules}
from kit.demo.desk import Desk, Servers
from kit.demo.page import build_app, build_blocks
for servers in (
    Servers("http://127.0.0.1:9"),
    Servers("http://127.0.0.1:9", "http://127.0.0.1:10", notice="why"),
):
    desk = Desk(servers)
    build_app(desk)
    labels = [c["props"].get("label") for c in build_blocks(desk).get_config_file()["components"]]
    print("Compare" in labels, labels.count("Prompt"))
print("torch" in sys.modules, reached)
"""


def test_the_page_is_built_without_torch_and_without_the_network() -> None:
    modules = ", ".join(f"kit.demo.{path.stem}" for path in sorted(DEMO.glob("[!_]*.py")))
    done = subprocess.run(
        [sys.executable, "-c", _BUILD.format(modules=f"kit.cli, {modules}")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Without a second server there is no Compare tab.
    assert done.stdout.splitlines() == ["False 1", "True 2", "False []"]
