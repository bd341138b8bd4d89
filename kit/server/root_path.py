"""The path under which a reverse proxy shows the server, whether or not the proxy strips it."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class RootPath:
    """ASGI middleware: makes a path absolute and tells the application what its root is."""

    def __init__(self, app: ASGIApp, *, root_path: str) -> None:
        assert root_path.startswith("/"), "checked with the command line"
        assert not root_path.endswith("/"), "checked with the command line"
        self._app, self._root_path = app, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            root, path = self._root_path, scope["path"]
            if path != root and not path.startswith(f"{root}/"):
                path = root + path
            scope = {**scope, "root_path": root, "path": path}
        await self._app(scope, receive, send)


def route_path(scope: Scope) -> str:
    """Return the path that routes are matched with: without the root path."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(root) :] if path == root or path.startswith(f"{root}/") else path
