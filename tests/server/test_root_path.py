"""A reverse proxy's path, stripped by the proxy or not."""

from __future__ import annotations

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient

from kit.server.root_path import route_path
from kit.server.security import install_security
from kit.server.settings import ServerSettings


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = FastAPI()

    @app.get("/where")
    async def where(request: Request) -> dict[str, str]:
        return {"url": str(request.url_for("where")), "route": route_path(request.scope)}

    install_security(app, ServerSettings(name="m", root_path="/images"))
    return TestClient(app)


@pytest.mark.parametrize("path", ["/where", "/images/where"])
def test_both_spellings_reach_the_route_and_links_have_the_root(
    client: TestClient, path: str
) -> None:
    assert client.get(path).json() == {
        "url": "http://testserver/images/where",
        "route": "/where",
    }


@pytest.mark.parametrize("path", ["/imageswhere", "/images/images/where", "/image/where"])
def test_other_paths_are_not_found(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_the_api_page_and_its_document_know_the_root(client: TestClient) -> None:
    assert "/images/openapi.json" in client.get("/images/docs").text
    assert client.get("/images/openapi.json").json()["servers"] == [{"url": "/images"}]
