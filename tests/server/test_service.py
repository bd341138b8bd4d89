"""What the endpoints share: a request that no queue of this server could hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from kit.api import ImageEngine, load_config
from kit.server.app import create_app
from kit.server.settings import ServerSettings


@pytest.mark.parametrize("path", ["/v1/images/generations", "/v1/jobs"])
def test_more_pictures_than_the_queue_can_hold_are_no_overload(path: str, checkpoint: Path) -> None:
    """503 would have a client come back again and again to an idle server."""
    config = load_config(checkpoint, stage_overrides={"0": {"max_queued_requests": 1}})
    engine = ImageEngine(checkpoint, config)
    client = TestClient(create_app(engine, ServerSettings(name="m")))
    answer = client.post(path, json={"prompt": "a cat", "size": "256x256", "n": 3})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "n"
    assert "max_queued_requests" in error["message"]
    assert engine.status().waiting == 0
