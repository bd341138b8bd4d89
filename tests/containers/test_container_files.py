"""What can be said of the container files without an engine."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from container_engine import LOCKS, ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kit.telemetry.metrics import EngineMetrics

VERSION = re.findall(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[0]
DOCKERFILES = sorted(ROOT.glob("Dockerfile.*"))
COMPOSE = (ROOT / "docker-compose.yml").read_text()


def names_of(lock: str) -> dict[str, str]:
    """Locked name: version, of a requirements file of the images."""
    found = re.findall(r"^([\w.-]+)==([\w.]+)", (LOCKS / f"{lock}.txt").read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_finds_nothing(path: Path) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("hadolint"), path.name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout + done.stderr == ""
    assert done.returncode == 0


def test_there_is_one_dockerfile_for_each_platform() -> None:
    assert [path.name for path in DOCKERFILES] == [
        "Dockerfile.ascend",
        "Dockerfile.cpu",
        "Dockerfile.cuda",
    ]


def test_images_are_of_the_version_that_is_built() -> None:
    for path in DOCKERFILES:
        stated = re.findall(r"^ARG VERSION=(.*)$", path.read_text(), re.MULTILINE)
        assert set(stated) == {VERSION}
    assert set(re.findall(r"KIT_TAG:-([^}]+)", COMPOSE)) == {VERSION}


def test_example_env_names_every_variable_of_the_compose_file() -> None:
    valued = set(re.findall(r"\$\{(\w+)", COMPOSE))
    passed_on = set(re.findall(r"^ {4,6}([A-Z]\w+):$", COMPOSE, re.MULTILINE))
    example = re.findall(r"^#?([A-Z]\w*)=", (ROOT / ".env.example").read_text(), re.MULTILINE)
    assert sorted(example) == sorted(valued | passed_on)


def test_defaults_in_the_example_env_are_the_compose_files() -> None:
    shown = re.findall(r"^#([A-Z]\w*)=(.+)$", (ROOT / ".env.example").read_text(), re.MULTILINE)
    defaults = set(re.findall(r"\$\{(\w+):-([^}]*)\}", COMPOSE))
    assert set(shown) <= defaults


@pytest.mark.parametrize("lock", sorted(path.stem for path in LOCKS.glob("*.txt")))
def test_every_locked_requirement_has_hashes(lock: str) -> None:
    text = re.sub(r"\\\n\s*", "", (LOCKS / f"{lock}.txt").read_text())
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines
    assert [line for line in lines if not re.search(r"--hash=sha256:[0-9a-f]{64}\b", line)] == []


def test_locks_are_in_the_versions_of_constraints() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()[1:]
    constrained: dict[str, str] = {
        canonicalize_name(name): v for name, v in (line.split("==") for line in lines)
    }
    for lock in ("server", "full", "build"):
        locked = names_of(lock)
        both = locked.keys() & constrained.keys()
        assert {name: locked[name] for name in both} == {name: constrained[name] for name in both}


def test_locks_hold_what_pyproject_asks_for_and_no_torch() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    wanted = {
        "server": re.search(r"^dependencies = \[(.*?)^\]", project, re.MULTILINE | re.DOTALL),
        "full": re.search(r"^notebooks = \[(.*?)^\]", project, re.MULTILINE | re.DOTALL),
    }
    for lock, listed in wanted.items():
        assert listed is not None
        names = {
            canonicalize_name(Requirement(text).name) for text in re.findall('"(.+)"', listed[1])
        }
        assert names - {"torch"} <= names_of(lock).keys(), "run `make lock`"
    assert "gradio" in names_of("full")
    assert names_of("server").keys().isdisjoint(names_of("full"))
    heavy = [n for lock in ("server", "full") for n in names_of(lock) if n.startswith("nvidia")]
    assert heavy == []


def test_torch_of_the_cpu_image_is_the_default_of_make_install() -> None:
    makefile = (ROOT / "Makefile").read_text()
    [default] = re.findall(r"^TORCH +\?=.*torch==([\d.]+)\)$", makefile, re.MULTILINE)
    assert names_of("torch-cpu")["torch"] == default


def test_torch_npu_belongs_to_its_torch() -> None:
    assert names_of("npu")["torch-npu"].startswith(names_of("torch-ascend")["torch"])


def test_dashboard_asks_for_metrics_that_servers_have() -> None:
    exposed = EngineMetrics().exposition()[0].decode()
    shipped = json.loads((LOCKS / "grafana" / "dashboards" / "kit.json").read_text())
    asked = {
        name
        for panel in shipped["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\bkit_\w+", target["expr"])
    }
    assert asked
    assert [name for name in asked if not re.search(rf"^{name}[ {{]", exposed, re.MULTILINE)] == []


def test_prometheus_scrapes_every_server_of_the_compose_file() -> None:
    config = yaml.safe_load((LOCKS / "prometheus.yml").read_text())
    [job] = config["scrape_configs"]
    [found] = job["dns_sd_configs"]
    services = yaml.safe_load(COMPOSE)["services"]
    servers = {name for name, service in services.items() if "serve " in service.get("command", "")}
    assert set(found["names"]) == servers
    assert found["port"] == 8091


def test_ci_workflow_runs_targets_and_paths_that_exist() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    scripts = "\n".join(step.get("run", "") for step in steps)
    targets = set(re.findall(r"\bmake ([a-z-]+)", scripts))
    assert {"install", "test"} <= targets
    makefile = (ROOT / "Makefile").read_text()
    assert targets <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    assert "--nbmake" in scripts
    named = re.findall(r"bin/pytest (?:--nbmake )?(\S+)", scripts)
    assert named
    assert [path for path in named if not (ROOT / path).is_dir()] == []


def documented_lines() -> list[str]:
    """Every line with `docker compose` in the shell blocks of README.md and docs/."""
    texts = [(ROOT / "README.md").read_text()]
    texts += [path.read_text() for path in sorted((ROOT / "docs").rglob("*.md"))]
    blocks = [
        block for text in texts for block in re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S)
    ]
    return [line for block in blocks for line in block.splitlines() if "docker compose" in line]


@pytest.mark.parametrize("line", sorted(set(documented_lines())))
def test_documented_compose_command_names_what_there_is(line: str) -> None:
    words = shlex.split(line, comments=True)
    start = words.index("docker")
    example = (ROOT / ".env.example").read_text()
    for variable in words[:start]:
        assert re.search(rf"^#?{variable.split('=')[0]}=", example, re.MULTILINE), variable
    services = yaml.safe_load(COMPOSE)["services"]
    command = words[start + 2 :]
    if command[0] == "--profile":
        assert any(command[1] in service.get("profiles", ()) for service in services.values())
        command = command[2:]
    assert command[0] in {"build", "logs", "run", "up"}
    named = [word for word in command[1:] if not word.startswith("-")]
    # What follows the service of `run` is for the program in it.
    assert set(named[:1] if command[0] == "run" else named) <= services.keys()


def test_compose_commands_are_documented() -> None:
    assert len(documented_lines()) > 10


def as_table(numbers: dict[str, float]) -> str:
    """The sizes and times of a report, as docs/containers.md shows them."""
    rows = {
        "`cpu` image": f"{numbers['server_bytes'] / 1e9:.2f} GB",
        "`cpu-full` image, layers of `cpu` included": f"{numbers['full_bytes'] / 1e9:.2f} GB",
        "`cuda` image, beyond its base": f"{numbers['cuda_added_bytes'] / 1e9:.2f} GB",
        "`ascend` image, beyond its base": f"{numbers['ascend_added_bytes'] / 1e9:.2f} GB",
        "both CPU images from wheels, nothing cached": f"{numbers['build_s']:.0f} s",
        "engine started, images cached, `up` to the first picture": (
            f"{numbers['engine_start_to_first_image_s']:.0f} s"
        ),
        "one server, `up` to healthy": f"{numbers['server_up_to_healthy_s']:.0f} s",
    }
    lines = [f"| {what} | {measured} |" for what, measured in rows.items()]
    return "\n".join(["| what | measured |", "| --- | --- |", *lines])


def test_sizes_and_times_in_the_docs_are_the_records() -> None:
    record = json.loads((LOCKS / "measured.json").read_text())
    assert not record["environment"]["git"]["dirty"]
    table = as_table(record["numbers"])
    assert table in (ROOT / "docs" / "containers.md").read_text(), f"put this there:\n{table}"
