"""Which FlashAttention is installed, and what it can do on a card; imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec

ComputeCapability = tuple[int, int]

_HOPPER = (9, 0)
_AMPERE = (8, 0)

FLASH_3_TILES: Mapping[int, int] = {64: 192, 96: 144, 128: 176, 192: 112, 256: 80}
"""Head size -> keys per tile of FA3's full attention on SM90 in 16 bits: pages of a multiple are
read by the copy engine, as fast as contiguous rows and with the same bits, others row by row and
13-25 % slower (FlashAttention, `hopper/tile_size.h`; all but 96 confirmed on an H200)."""

_FLASH_2_PAGE = 256
"""FA2 reads pages of a multiple of this many tokens."""

_FLASH_2_HEAD_SIZES = (32, 64, 96, 128, 192, 256)


@dataclass(frozen=True)
class FlashBuild:
    """One installed package that serves a card."""

    kernel: str
    """flash_attn_3 or flash_attn_2."""

    version: str
    """Distribution and version."""

    head_sizes: tuple[int, ...]
    """Compiled in, ascending; a smaller head runs as the next larger one."""

    reads_pages: bool

    def page_multiple(self, head_size: int) -> int:
        """Return the tokens that page sizes are multiples of at a head size that is served."""
        compiled = next(size for size in self.head_sizes if size >= head_size)
        return FLASH_3_TILES[compiled] if self.kernel == "flash_attn_3" else _FLASH_2_PAGE


@dataclass(frozen=True)
class NoFlashBuild:
    """There is none, and why."""

    reason: str


def find_flash_build(capability: ComputeCapability) -> FlashBuild | NoFlashBuild:
    """Look for FA3 on cards of compute capability 9.0, for FA2 on others from 8.0 on."""
    if capability == _HOPPER:
        return _find_flash_3()
    if capability < _AMPERE:
        return _too_old(capability)
    return _find_flash_2(capability)


def published_flash_build(capability: ComputeCapability) -> FlashBuild | NoFlashBuild:
    """Return what a card would have with a full build installed, whatever is installed here."""
    if capability == _HOPPER:
        return FlashBuild("flash_attn_3", "not looked for", tuple(FLASH_3_TILES), True)
    if capability < _AMPERE:
        return _too_old(capability)
    return FlashBuild("flash_attn_2", "not looked for", _FLASH_2_HEAD_SIZES, True)


def flash_3_build(version: str, flags: Mapping[str, bool]) -> FlashBuild | NoFlashBuild:
    """Read the build flags that FA3 packages carry in `flash_attn_config.CONFIG`."""

    def is_built(feature: str) -> bool:
        return not flags.get(f"FLASHATTENTION_DISABLE_{feature}", False)

    sizes = tuple(size for size in FLASH_3_TILES if is_built(f"HDIM{size}"))
    if not sizes:
        return NoFlashBuild(f"{version} was built without any head size")
    return FlashBuild("flash_attn_3", version, sizes, is_built("PAGEDKV"))


def _find_flash_3() -> FlashBuild | NoFlashBuild:
    if find_spec("flash_attn_interface") is None:
        return NoFlashBuild(
            "the package of FlashAttention 3 is not installed (no module flash_attn_interface); "
            "pip install tokenspeed-fa3, or the official flash-attn-3"
        )
    version = _distribution_of("flash_attn_interface")
    if find_spec("flash_attn_config") is None:
        return NoFlashBuild(f"{version} has no flash_attn_config, so what it can do is not known")
    return flash_3_build(version, import_module("flash_attn_config").CONFIG["build_flags"])


def _too_old(capability: ComputeCapability) -> NoFlashBuild:
    return NoFlashBuild(
        f"compute capability {_shown(capability)}: FlashAttention needs at least 8.0"
    )


def _shown(capability: ComputeCapability) -> str:
    return ".".join(map(str, capability))


def _find_flash_2(capability: ComputeCapability) -> FlashBuild | NoFlashBuild:
    if find_spec("flash_attn") is None:
        return NoFlashBuild(
            f"compute capability {_shown(capability)} takes FlashAttention 2, which is not "
            "installed (no module flash_attn); pip install flash-attn"
        )
    return FlashBuild("flash_attn_2", _distribution_of("flash_attn"), _FLASH_2_HEAD_SIZES, True)


def _distribution_of(module: str) -> str:
    for name in metadata.packages_distributions().get(module, ()):
        return f"{name} {metadata.version(name)}"
    return f"{module} of unknown version"
