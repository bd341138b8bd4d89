"""Holds an engine at a step, so that a test can look at it or act while a request runs."""

from __future__ import annotations

import threading

from kit.request import StepEvent

PATIENCE_S = 60
"""How long a test waits for what must happen; a busy machine may be slow."""


class Gate:
    """An `on_step` that stops the engine's thread after each step until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.events: list[StepEvent] = []
        self._opened = threading.Event()

    def __call__(self, event: StepEvent) -> None:
        self.events.append(event)
        self.reached.set()
        assert self._opened.wait(PATIENCE_S), "the test never opened the gate"

    def wait(self) -> None:
        """Return when a step has been made."""
        assert self.reached.wait(PATIENCE_S), "no step was made"

    def open(self) -> None:
        self._opened.set()
