"""What compose makes of every profile, and the services that run once and leave files behind."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from container_engine import ROOT, Compose, Engine, free_ports

from bench.records import load

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

DEMO = {"server", "dense", "ui"}
PROFILES = {
    "cuda": {"cuda", "cuda-ui"},
    "ascend": {"ascend", "ascend-ui"},
    "notebooks": {"notebooks"},
    "cuda-notebooks": {"cuda-notebooks"},
    "ascend-notebooks": {"ascend-notebooks"},
    "bench": {"bench"},
    "cuda-bench": {"cuda-bench"},
    "ascend-bench": {"ascend-bench"},
    "monitoring": {"prometheus", "grafana"},
}


def config(engine: Engine, *arguments: str, **environment: str) -> dict[str, Any]:
    """The services as compose resolves them; needs no image."""
    with TemporaryDirectory() as folder:
        compose = Compose(engine, Path(folder), Path(folder))
        shown = compose(*arguments, "config", "--format", "json", check=True, **environment)
    services: dict[str, Any] = json.loads(shown)["services"]
    return services


def test_the_default_is_the_demo(engine: Engine) -> None:
    assert config(engine).keys() == DEMO


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_adds_its_services(profile: str, engine: Engine) -> None:
    assert config(engine, "--profile", profile).keys() == DEMO | PROFILES[profile]


def test_profiles_of_the_file_are_these() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert {name for service in services.values() for name in service.get("profiles", ())} == (
        PROFILES.keys()
    )


def test_every_service_of_ours_is_guarded(engine: Engine) -> None:
    for name, service in config(engine, "--profile", "*").items():
        assert service["logging"]["options"] == {"max-file": "3", "max-size": "10m"}, name
        for port in service.get("ports", ()):
            assert port["host_ip"] == "127.0.0.1", name
        if service["image"].startswith("hunyuan-paged-kit:"):
            assert service["read_only"], name
            assert service["cap_drop"] == ["ALL"], name
            assert service["security_opt"] == ["no-new-privileges:true"], name


@pytest.mark.parametrize("service", ["cuda", "cuda-bench", "cuda-notebooks"])
def test_cuda_services_reserve_every_card(service: str, engine: Engine) -> None:
    found = config(engine, "--profile", "*")[service]
    [reserved] = found["deploy"]["resources"]["reservations"]["devices"]
    assert (reserved["driver"], reserved["count"], reserved["capabilities"]) == (
        "nvidia",
        -1,
        ["gpu"],
    )
    assert int(found["shm_size"]) == 8 << 30


@pytest.mark.parametrize("service", ["ascend", "ascend-bench", "ascend-notebooks"])
def test_ascend_services_map_the_card_the_driver_and_its_variables(
    service: str, engine: Engine
) -> None:
    found = config(engine, "--profile", "*", ASCEND_DEVICE="3")[service]
    assert [device["source"] for device in found["devices"]] == [
        "/dev/davinci3",
        "/dev/davinci_manager",
        "/dev/devmm_svm",
        "/dev/hisi_hdc",
    ]
    mounted = {volume["source"] for volume in found["volumes"] if volume["type"] == "bind"}
    assert {"/usr/local/Ascend/driver", "/usr/local/dcmi"} <= mounted
    for name in ("ASCEND_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"):
        assert found["environment"][name] == "3"


@pytest.mark.parametrize("service", ["cuda", "ascend"])
def test_large_servers_get_time_to_load_and_to_stop(service: str, engine: Engine) -> None:
    found = config(engine, "--profile", "*")[service]
    assert found["healthcheck"]["start_period"] == "30m0s"
    assert found["stop_grace_period"] == "10m0s"


@pytest.mark.parametrize("service", ["server", "dense", "cuda", "ascend"])
def test_compose_waits_longer_than_the_server_does(service: str, engine: Engine) -> None:
    found = config(engine, "--profile", "*")[service]
    flag = found["command"].index("--shutdown-grace-s")
    minutes = int(found["stop_grace_period"].split("m")[0])
    # The server's answers may take 5 s more.
    assert float(found["command"][flag + 1]) + 5 < 60 * minutes


def test_model_and_deployment_come_from_the_environment(engine: Engine) -> None:
    found = config(engine, MODEL="/cache/mine", DEPLOY_CONFIG="configs/deploy/mine.yaml")
    assert found["server"]["command"][:2] == ["serve", "/cache/mine"]
    assert "configs/deploy/mine.yaml" in found["server"]["command"]
    assert found["dense"]["command"][:2] == ["serve", "/cache/mine"]
    cached = config(engine, CACHE="/data/models")["server"]["volumes"]
    assert ("/data/models", "/cache") in {(one["source"], one["target"]) for one in cached}


def test_bench_leaves_its_record_on_the_host(
    compose: Compose, images: dict[str, str], tmp_path: Path
) -> None:
    del images
    compose("run", "--rm", "bench", "run", "page_work", "--repeats", "1", OUT=str(tmp_path))
    [record] = (tmp_path / "bench").glob("page_work-*.json")
    assert load(record).name == "page_work"


def test_notebooks_leave_executed_copies_and_html_on_the_host(
    compose: Compose, images: dict[str, str], tmp_path: Path
) -> None:
    del images
    source, out = tmp_path / "notebooks", tmp_path / "out"
    source.mkdir()
    out.mkdir()
    write_notebook(source / "good.ipynb", "import kit.api; open('made', 'w').close(); print(6 * 7)")
    write_notebook(source / "bad.ipynb", "1 / 0")
    mount = ("--volume", f"{source}:/app/notebooks:ro")
    shown = compose("run", "--rm", *mount, "notebooks", check=False, OUT=str(out))
    assert "error: these failed, their copies show where: notebooks/bad.ipynb" in shown
    good = json.loads((out / "notebooks" / "good.ipynb").read_text())
    assert good["cells"][-1]["outputs"][0]["text"] == ["42\n"]
    assert "ZeroDivisionError" in (out / "notebooks" / "bad.html").read_text()
    assert (out / "notebooks" / "good.html").is_file()
    assert (out / "notebooks" / "made").is_file()


def write_notebook(path: Path, code: str) -> None:
    cell: dict[str, Any] = {
        "cell_type": "code",
        "id": "only",
        "execution_count": None,
        "metadata": {},
    }
    cell |= {"outputs": [], "source": [code]}
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    content = {
        "cells": [cell],
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
    }
    path.write_text(json.dumps(content | {"nbformat": 4, "nbformat_minor": 5}))


def test_jupyter_is_behind_its_token(compose: Compose, images: dict[str, str]) -> None:
    del images
    compose.ports |= free_ports("JUPYTER_PORT")
    contents = f"{compose.url('JUPYTER_PORT')}/api/contents"
    compose("up", "--detach", "notebooks", JUPYTER_TOKEN="only-mine")
    try:
        status, _ = eventually(contents)
        assert status == 403
        status, listed = eventually(f"{contents}?token=only-mine")
        assert status == 200
        assert "README.md" in {entry["name"] for entry in json.loads(listed)["content"]}
    finally:
        compose("--profile", "notebooks", "down")


def eventually(url: str, limit_s: float = 120) -> tuple[int, bytes]:
    """The answer of a service that may still be starting."""
    end = time.monotonic() + limit_s
    while True:
        try:
            with urllib.request.urlopen(url) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        except (urllib.error.URLError, ConnectionError):
            assert time.monotonic() < end, f"nothing answers at {url}"
            time.sleep(0.5)
