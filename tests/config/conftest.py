"""Fixtures of the config tests: deploy files written on the spot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

# The keys and values of vLLM-Omni's deploy file for this pipeline, in our own layout.
OMNI_FILE = """
async_chunk: false
pipeline: hunyuan_image3_dit
stages:
- stage_id: 0
  devices: "0,1,2,3"
  enforce_eager: true
  gpu_memory_utilization: 0.9
  max_num_seqs: 1
  vae_use_slicing: false
  vae_use_tiling: false
  cache_backend:
  cache_config:
  enable_cache_dit_summary: false
  default_sampling_params: {num_outputs_per_prompt: 1, seed: 42}
  parallel_config: &one
    tensor_parallel_size: 4
    enable_expert_parallel: true
    pipeline_parallel_size: 1
    data_parallel_size: 1
    sequence_parallel_size: 1
    ulysses_degree: 1
    ring_degree: 1
    cfg_parallel_size: 1
    vae_patch_parallel_size: 1
    use_hsdp: false
    hsdp_shard_size: -1
    hsdp_replicate_size: 1
platforms:
  xpu:
    stages:
    - stage_id: 0
      quantization: fp8
      gpu_memory_utilization: 0.9
      devices: "0,1,2,3,4,5,6,7"
      parallel_config: {<<: *one, tensor_parallel_size: 8}
  npu:
    stages:
    - stage_id: 0
      devices: "0,1,2,3"
      gpu_memory_utilization: 0.65
      max_num_batched_tokens: 32768
      parallel_config: {tensor_parallel_size: 4, enable_expert_parallel: true}
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a text as a YAML file and return its path."""

    def write_file(text: str, name: str = "deploy.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
        return path

    return write_file


@pytest.fixture
def omni_file(write: Callable[..., Path]) -> Path:
    return write(OMNI_FILE, "omni.yaml")
