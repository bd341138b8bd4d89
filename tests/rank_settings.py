"""The settings with which workloads over ranks are tried on this machine."""

from __future__ import annotations

import json
from pathlib import Path

from golden_cases import PACKAGE

from bench.rank_model import Setting

_PER_LAYER = ("moe_intermediate_size", "num_experts", "moe_topk", "num_shared_expert")


def tiny_setting(folder: Path) -> Setting:
    """The golden checkpoint's shape, with as many layers as wanted."""
    raw = json.loads((PACKAGE / "checkpoint" / "golden" / "config.json").read_text())
    for name in _PER_LAYER:
        raw[name] = raw[name][0] if isinstance(raw[name], list) else raw[name]
    # So that four ranks can share the heads, and a key serves two queries.
    raw |= {"num_attention_heads": 8, "num_key_value_heads": 4}
    path = folder / "config.json"
    path.write_text(json.dumps(raw))
    return Setting(
        device="cpu",
        config_path=str(path),
        num_layers=2,
        num_layers_alone=1,
        prefix_len=20,
        grid=(6, 5),
        page_size=16,
        num_image_steps=2,
    )
