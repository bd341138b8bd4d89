"""Finds operations whose answer the host would wait for, were their tensors on a device."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Waits(TorchDispatchMode):
    """Lists the operations whose answer the host waits for."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        name = func.name()
        if name in ("aten::_local_scalar_dense", "aten::nonzero", "aten::bincount", "aten::item"):
            self.seen.append(name)
        return func(*args, **kwargs or {})
