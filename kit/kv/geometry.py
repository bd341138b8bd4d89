"""How many tokens and bytes a page holds."""

from __future__ import annotations

from dataclasses import dataclass

from kit.modelspec import footprint


@dataclass(frozen=True)
class KVGeometry:
    """The shape of a page: a fixed number of token slots, all layers, keys and values."""

    num_layers: int
    num_kv_heads: int
    """KV heads of one rank."""

    head_dim: int
    dtype_bytes: int
    page_size: int
    """Token slots per page; the attention kernel decides it."""

    @property
    def token_bytes(self) -> int:
        return footprint.slot_bytes(
            self.num_layers, self.num_kv_heads, self.head_dim, self.dtype_bytes
        )

    @property
    def page_bytes(self) -> int:
        return footprint.page_bytes(self.token_bytes, self.page_size)

    def num_pages(self, num_tokens: int) -> int:
        """Pages that a row of `num_tokens` tokens needs."""
        return footprint.num_pages(num_tokens, self.page_size)

    def pool_bytes(self, num_pages: int) -> int:
        """Bytes of so many pages."""
        return footprint.pool_bytes(num_pages, self.page_bytes)
