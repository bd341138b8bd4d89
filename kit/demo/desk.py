"""What all tabs work with: the servers, what is drawn now, the files of pictures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from kit.demo.children import Child
from kit.demo.client import ServerClient
from kit.demo.drawing import Drawings
from kit.demo.feed import ServerFeed
from kit.demo.shelf import Shelf


@dataclass(frozen=True)
class Servers:
    """Where the servers are."""

    url: str
    compare_url: str | None = None
    """The second server; None hides Compare."""

    api_key: str | None = field(default=None, repr=False)
    notice: str = ""
    """What the page says on top, such as why Compare is hidden."""

    public_url: str | None = None
    """Where the user's browser and programs reach the first server; None means at `url`."""

    public_compare_url: str | None = None
    """The same of the second."""

    children: tuple[Child, ...] = ()
    """Those of them that this process has started, the first server first."""


class Desk:
    """The parts of one running page; `watch` runs for as long as it is open."""

    def __init__(self, servers: Servers) -> None:
        self.notice = servers.notice
        own = [*servers.children, None, None]
        self.main = ServerFeed(
            "first server",
            ServerClient(servers.url, servers.api_key, public_url=servers.public_url),
            own[0],
        )
        self.other = None
        if servers.compare_url is not None:
            client = ServerClient(
                servers.compare_url, servers.api_key, public_url=servers.public_compare_url
            )
            self.other = ServerFeed("second server", client, own[1])
        self.drawings, self.shelf = Drawings(), Shelf()

    @property
    def feeds(self) -> list[ServerFeed]:
        return [self.main] if self.other is None else [self.main, self.other]

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        """Watch every server until the context is left."""
        tasks = [asyncio.create_task(feed.run()) for feed in self.feeds]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for feed in self.feeds:
                await feed.client.close()
