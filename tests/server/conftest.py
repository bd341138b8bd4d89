"""A served engine in this process, shared by the tests of the API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from kit.api import ImageEngine, load_config
from kit.server.app import create_app
from kit.server.settings import ServerSettings

MODEL = "painter"


@pytest.fixture(scope="session")
def served(checkpoint: Path) -> Iterator[ImageEngine]:
    """An engine with pages."""
    config = load_config(checkpoint, "hunyuan_image3_paged.yaml")
    with ImageEngine(checkpoint, config) as engine:
        yield engine


@pytest.fixture(scope="session")
def api(served: ImageEngine) -> Iterator[TestClient]:
    """A client of an application around that engine."""
    settings = ServerSettings(MODEL, aliases=("org/painter",))
    # What nobody expects must come back as an answer, as it does from a real server.
    with TestClient(create_app(served, settings), raise_server_exceptions=False) as client:
        yield client
