"""The small JSON files of a checkpoint in the official format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kit.checkpoint.preset import Preset, VisionShape

BASE_SIZE = 256
VISION_PATCH = 16

END, START, PAD = "<|endoftext|>", "<|startoftext|>", "<pad>"


def model_config(preset: Preset, ids: Mapping[str, int], scaling_factor: float) -> dict[str, Any]:
    """Return the content of config.json; `ids` are those of the special tokens by spelling.

    Latents are multiplied by `scaling_factor` before the transformer sees them.
    """
    shape = preset.shape
    layers = shape.num_hidden_layers
    return {
        "architectures": ["HunyuanImage3ForCausalMM"],
        "model_type": "hunyuan_image_3_moe",
        "model_version": preset.name,
        "torch_dtype": "bfloat16",
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "attention_head_dim": shape.attention_head_dim,
        "head_dim": shape.attention_head_dim,
        "intermediate_size": shape.moe_intermediate_size,
        "moe_intermediate_size": [shape.moe_intermediate_size] * layers,
        "num_experts": shape.num_experts,
        "moe_topk": [shape.moe_topk] * layers,
        "num_shared_expert": [shape.num_shared_expert] * layers,
        "use_mixed_mlp_moe": True,
        "moe_layer_num_skipped": 0,
        "moe_drop_tokens": False,
        "norm_topk_prob": True,
        "hidden_act": "silu",
        "norm_type": "rms",
        "rms_norm_eps": 1e-5,
        "use_qk_norm": True,
        "attention_bias": False,
        "mlp_bias": False,
        "use_cla": False,
        "use_rotary_pos_emb": True,
        "rope_type": "2d",
        "rope_theta": 10000.0,
        "max_position_embeddings": _max_positions(preset),
        "tie_word_embeddings": False,
        "vocab_size": shape.vocab_size,
        "bos_token_id": ids[START],
        "eos_token_id": ids[END],
        "pad_token_id": ids[PAD],
        "pad_id": ids[PAD],
        "im_start_id": ids["<boi>"],
        "im_end_id": ids["<eoi>"],
        "image_token_id": ids["<img>"],
        "image_base_size": BASE_SIZE,
        "img_proj_type": "unet",
        "patch_size": 1,
        "patch_embed_hidden_dim": shape.patch_embed_hidden_dim,
        "cfg_distilled": False,
        "use_meanflow": False,
        "vae_type": "hunyuan-image-vae-v1",
        "vae_dtype": "float32",
        "vae_downsample_factor": [16, 16],
        "vae": {
            "_class_name": "AutoencoderKLConv3D",
            "in_channels": 3,
            "out_channels": 3,
            "latent_channels": shape.latent_channels,
            "block_out_channels": list(shape.vae_widths),
            "layers_per_block": 0,
            "ffactor_spatial": 16,
            # One frame: the outer slices of every kernel only ever meet padding.
            "ffactor_temporal": 1,
            "sample_size": BASE_SIZE,
            "sample_tsize": 1,
            "downsample_match_channel": True,
            "upsample_match_channel": True,
            "scaling_factor": scaling_factor,
        },
        **_vision(shape.vision, shape.hidden_size),
    }


def generation_config(
    preset: Preset, ids: Mapping[str, int], *, takes_references: bool
) -> dict[str, Any]:
    """Return the content of generation_config.json: how the trained model is sampled."""
    return {
        "bot_task": "image",
        "diff_guidance_scale": 3.0,
        "diff_infer_steps": 20,
        "flow_shift": preset.dit.flow_shift,
        "drop_think": False,
        "eos_token_id": [ids[END]],
        "pad_token_id": ids[PAD],
        "max_length": _max_positions(preset),
        # The only template that has a place for reference images.
        "sequence_template": "instruct" if takes_references else "pretrain",
        "use_system_prompt": "None",
    }


def tokenizer_config() -> dict[str, Any]:
    """Return the content of tokenizer_config.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": START,
        "eos_token": END,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1048576,
    }


def _max_positions(preset: Preset) -> int:
    """As long as the rows of the training, with what closes a row."""
    return max(preset.shape.sequence_slots, preset.shape.edit_slots) + 8


def _vision(shape: VisionShape, hidden_size: int) -> dict[str, Any]:
    """The sections of what reads reference images."""
    return {
        "cond_image_type": "vae_vit",
        "cond_token_attn_type": "joint_full",
        "vit_type": "siglip2-so400m-patch16-naflex",
        "vit": {
            "hidden_size": shape.hidden_size,
            "num_hidden_layers": shape.num_hidden_layers,
            "num_attention_heads": shape.num_attention_heads,
            "intermediate_size": shape.intermediate_size,
            "num_patches": shape.max_num_patches,
            "patch_size": VISION_PATCH,
            "num_channels": 3,
            "hidden_act": "gelu_pytorch_tanh",
            "layer_norm_eps": 1e-6,
        },
        "vit_aligner": {
            "projector_type": "mlp_gelu",
            "depth": 2,
            "input_dim": shape.hidden_size,
            "n_embed": hidden_size,
        },
        "vit_processor": {
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "resample": 2,
            "patch_size": VISION_PATCH,
            "max_num_patches": shape.max_num_patches,
        },
    }
