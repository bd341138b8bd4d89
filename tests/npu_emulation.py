"""Test code only: registers the emulated NPU operators under their real names and schemas.

For the CPU alone. With torch-npu's own library loaded (tools/npu_registry.py), the schemas are
those of the library, which must be the ones written here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import fia_emulation as fia
import npu_model_emulation as model
import torch
from fia_emulation import CALLS

REAL_REGISTRY = "KIT_TESTS_TORCH_NPU"
"""Set by tools/npu_registry.py: torch_npu can be imported, and no device answers."""

_OPERATORS: tuple[tuple[str, Callable[..., Any]], ...] = (
    (fia.ATTEND, fia.attend),
    (fia.WRITE, fia.write),
    (model.RMS_NORM, model.rms_norm),
    (model.SWIGLU, model.swiglu),
    (model.ROTARY, model.rotary),
    (model.TOP_K_SOFTMAX, model.top_k_softmax),
    (model.INIT_ROUTING, model.init_routing),
    (model.GROUPED_MATMUL, model.grouped_matmul),
    (model.UNPERMUTE, model.unpermute),
)
SCHEMAS = tuple(schema for schema, _ in _OPERATORS)
"""As torch-npu 2.10.0.post4, 2.11.0, 2.13.0 and 2.14.0 have them; tools/npu_schemas.py compares."""

_LIBRARY: list[torch.library.Library] = []


def stub_torch_npu() -> ModuleType:
    """Return torch_npu, or a module like it that calls the operators of torch's registry."""
    is_real = REAL_REGISTRY in os.environ
    module = import_module("torch_npu") if is_real else ModuleType("torch_npu")
    if not _LIBRARY:
        library = torch.library.Library("npu", "FRAGMENT")
        for schema, function in _OPERATORS:
            name = schema.partition("(")[0]
            if is_real:
                theirs = str(getattr(torch.ops.npu, name).default._schema)
                assert theirs == str(torch._C.parse_schema(f"npu::{schema}")), theirs
            else:
                library.define(schema)
            library.impl(name, function, "CPU")
        _LIBRARY.append(library)
    if is_real:
        return module
    module.__spec__ = ModuleSpec("torch_npu", None)
    module.__dict__["__version__"] = "0+emulated"
    for schema, _ in _OPERATORS:
        name = schema.partition("(")[0]
        setattr(module, name, getattr(torch.ops.npu, name))
    return module


def installed() -> ModuleType:
    """Return the module that imports find."""
    return sys.modules["torch_npu"]


def install(set_module: Callable[[Any, str, Any], None]) -> None:
    """Put the module where imports find it, by pytest's monkeypatch.setitem; forget old calls."""
    set_module(sys.modules, "torch_npu", stub_torch_npu())
    CALLS.clear()
