"""What of a device's memory the kit may take."""

from __future__ import annotations

from kit.platforms.memory import CardMemory, HostMemory


def test_a_card_keeps_a_fraction_of_itself_free() -> None:
    card = CardMemory(total_bytes=1000, free_bytes=900)
    assert card.allowed_bytes(0.75) == 750
    # Of 600 that nothing else needs, 250 stay free.
    assert card.pool_bytes(600, 0.75) == 350
    assert card.pool_bytes(100, 0.75) < 0


def test_a_host_gives_a_fraction_of_what_is_free() -> None:
    host = HostMemory(900)
    assert (host.total_bytes, host.allowed_bytes(0.5)) == (900, 900)
    assert host.pool_bytes(600, 0.75) == 450
