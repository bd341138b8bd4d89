"""A page that no memory holds, refused by the field that can be changed."""

from __future__ import annotations

from kit.config.deploy import DeployConfig
from kit.errors import ConfigError
from kit.kv.geometry import KVGeometry
from kit.modelspec.footprint import pages_within


def check_page_size(config: DeployConfig, geometry: KVGeometry, room: int) -> None:
    """Raise ConfigError for a given page size if of a smaller one a page fits into `room` bytes."""
    name, most = "diffusion_kv_page_size", pages_within(room, geometry.token_bytes)
    if config.stage.diffusion_kv_page_size is not None and most > 0:
        raise ConfigError(
            name,
            f"a page of {geometry.page_size} tokens takes {geometry.page_bytes} bytes, and beside "
            f"weights and working memory {room} are free",
            value=geometry.page_size,
            source=config.provenance[f"stage.{name}"],
            remedy=f"set at most {most}, or leave it out for the size that suits the kernel",
        )
