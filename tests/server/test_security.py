"""The API key: which routes it guards, how it is compared, where it must not appear."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.routing import Route

from kit.server.errors import install_error_handlers
from kit.server.security import ApiKey, install_security
from kit.server.settings import ServerSettings

KEY = "sk-very-secret"
GUARDED = ("/v1/models", "/v1/kv", "/metrics", "/v1/server/info", "/", "/nowhere", "/health/x")
OPEN = ("/health", "/ready", "/docs", "/redoc", "/openapi.json")


def make_client(**settings: Any) -> TestClient:
    app = FastAPI()
    install_error_handlers(app, [])
    for path in ("/health", "/ready", "/v1/models", "/v1/kv", "/metrics", "/v1/server/info"):
        app.add_api_route(path, lambda: {"seen": True})
    install_security(app, ServerSettings(name="m", api_key=KEY, **settings))
    return TestClient(app)


@pytest.fixture(scope="module")
def client() -> TestClient:
    return make_client()


@pytest.mark.parametrize("path", GUARDED)
@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {KEY}x",
        f"Bearer {KEY[:-1]}",
        f"Bearer {KEY.upper()}",
        f"Basic {KEY}",
        KEY,
        "Bearer schlüssel",
    ],
)
def test_a_missing_or_wrong_key_is_401_in_openais_shape(
    client: TestClient, path: str, header: str | None
) -> None:
    headers = {} if header is None else {b"authorization": header.encode("latin-1")}
    answer = client.get(path, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
    assert KEY not in answer.text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_every_method_is_guarded(client: TestClient, method: str) -> None:
    assert client.request(method, "/v1/models").status_code == 401


@pytest.mark.parametrize("spelling", [f"Bearer {KEY}", f"bearer {KEY}", f"BEARER  {KEY} "])
def test_the_right_key_opens(client: TestClient, spelling: str) -> None:
    answer = client.get("/v1/models", headers={"authorization": spelling})
    assert answer.json() == {"seen": True}


@pytest.mark.parametrize("path", OPEN)
def test_probes_and_api_pages_are_open(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 200


@pytest.mark.parametrize("path", ["/x/v1/models", "/v1/models"])
def test_a_root_path_opens_nothing(path: str) -> None:
    client = make_client(root_path="/x")
    assert client.get(path).status_code == 401
    assert client.get(path, headers={"authorization": f"Bearer {KEY}"}).status_code == 200
    assert client.get("/x/health").status_code == 200
    assert client.get("/health").status_code == 200
    assert client.get("/x/x/health").status_code == 401


@pytest.mark.parametrize(
    "path", ["//health", "/health/", "/health;x", "/HEALTH", "/health%2f../v1/kv"]
)
def test_only_the_exact_path_is_open(client: TestClient, path: str) -> None:
    assert client.get(path, follow_redirects=False).status_code in (401, 404)


def test_without_a_key_everything_is_open() -> None:
    app = FastAPI()
    app.add_api_route("/v1/models", lambda: {"seen": True})
    install_security(app, ServerSettings(name="m"))
    assert TestClient(app).get("/v1/models").status_code == 200


def test_the_key_shows_in_no_repr() -> None:
    settings = ServerSettings(name="m", api_key=KEY)
    guard = ApiKey(Route("/", lambda _: None), key=KEY, open_paths=frozenset())
    assert KEY not in repr(settings) + repr(vars(guard))
