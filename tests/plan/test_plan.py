"""Plans of the published shape against numbers worked out by hand, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kit.errors import CheckpointError, ConfigError
from kit.modelspec.config import PUBLISHED_CONFIG, load_config_file
from kit.modelspec.footprint import Split, activation_bytes, weight_bytes_by_part
from kit.plan.plan import PUBLISHED, Plan, plan_deployment
from kit.plan.text import describe_plan

MIB, GIB = 2**20, 2**30
PAGED = "hunyuan_image3_paged"
SPEC = load_config_file(PUBLISHED_CONFIG)

# Parameters of the official classes at full size.
LAYERS, ROUTERS, NORMS = 79_868_207_104, 32 * 64 * 4096, 32 * (2 * 4096 + 2 * 128)
EMBEDDING, PATCH_EMBED, FINAL_LAYER, EMBEDDERS = 545_259_520, 226_819_072, 60_081_184, 53_501_952
VAE_DECODER = 871_332_483


def plan(deploy_config: str = PAGED, /, **settings: Any) -> Plan:
    given = {"sizes": ["1024x1024"], "card": "H200"} | settings
    return plan_deployment(PUBLISHED, deploy_config, **given)


def test_weights_of_the_published_split_by_hand() -> None:
    planned = plan()
    assert planned.num_ranks == 4
    shared = LAYERS - ROUTERS - NORMS
    whole = NORMS + EMBEDDING + PATCH_EMBED + FINAL_LAYER + EMBEDDERS
    # bfloat16, the router in float32, the decoder in float16.
    expected = 2 * (shared // 4 + whole) + 4 * ROUTERS + 2 * VAE_DECODER
    assert planned.weight_bytes == expected
    assert planned.load_peak_bytes == expected + planned.pool_bytes
    assert planned.mapped_bytes is None


def test_pages_of_the_documented_example_by_hand() -> None:
    """512 MiB on each of four ranks; a page is 176 tokens of 32 KiB."""
    planned = plan(prompt_tokens=256)
    assert (planned.token_bytes, planned.page_size) == (32 * 1024, 176)
    assert planned.page_bytes == 5.5 * MIB
    assert planned.num_pages == 93
    [size] = planned.sizes
    # 256 + <timestep> + 64 x 64 tokens take 25 pages a row.
    assert (size.row_tokens, size.num_rows, size.num_pages) == (4353, 2, 50)
    assert size.kv_bytes == 50 * 5.5 * MIB
    assert size.num_requests == 1
    assert size.peak_bytes == planned.load_peak_bytes + size.activations.peak
    assert size.refusal is None


@pytest.mark.parametrize(
    ("deploy_config", "token_kib", "own_rows"),
    [
        ("hunyuan_image3_tp4", 32, 2),
        ("hunyuan_image3_tp2_sp2", 32, 2),
        # Four heads, and the pages of one row.
        ("hunyuan_image3_tp2_cfg2", 64, 1),
    ],
)
def test_keys_and_values_of_topologies(deploy_config: str, token_kib: int, own_rows: int) -> None:
    planned = plan(deploy_config, prompt_tokens=256)
    assert planned.token_bytes == token_kib * 1024
    [size] = planned.sizes
    assert size.num_rows == 2
    assert size.num_pages == 25 * own_rows
    assert size.kv_bytes == size.num_pages * 176 * token_kib * 1024


def test_ranks_that_share_rows_or_tokens_share_no_weights() -> None:
    weights = {name: plan(f"hunyuan_image3_{name}").weight_bytes for name in TOPOLOGIES}
    assert weights["tp2_sp2"] == weights["tp2_cfg2"] > 1.9 * weights["tp4"]


TOPOLOGIES = ("tp4", "tp2_sp2", "tp2_cfg2")


def test_working_memory_of_ranks() -> None:
    def denoise(split: Split) -> int:
        return activation_bytes(
            SPEC,
            height=1024,
            width=1024,
            prefix_len=255,
            num_rows=2,
            dtype_bytes=2,
            fused=True,
            split=split,
        ).denoise

    # 4352 tokens a row: embeddings and stream of 4 H, then k rows of H + I and H more.
    def by_hand(T: int, width: int, top_k: int = 8) -> int:
        return 2 * T * (4 * 4096 + top_k * (4096 + width) + 4096)

    assert denoise(Split()) == by_hand(8704, 3072)
    assert denoise(Split(tensor=4)) == by_hand(8704, 768)
    whole_embeddings = 2 * 4352 * 2 * 4096
    assert denoise(Split(tensor=2, sequence=2)) == by_hand(4352, 1536) + whole_embeddings
    assert denoise(Split(tensor=2, cfg=2)) == by_hand(4352, 1536)
    assert denoise(Split(tensor=4, whole_experts=True)) == by_hand(8704, 3072, top_k=2)


def test_working_memory_of_an_npu() -> None:
    """Rows of all experts beside the first product and what is gated; 4352 tokens a row."""
    seen = activation_bytes(
        SPEC, height=1024, width=1024, prefix_len=255, num_rows=2, dtype_bytes=2, grouped=True
    )
    routed = 8 * (4096 + 3 * 3072)
    assert seen.denoise == 8704 * (2 * (4 * 4096 + routed + 4096) + 4 * 2 * 64)


def test_whole_experts_take_as_many_bytes_as_slices() -> None:
    slices, whole = (
        weight_bytes_by_part(SPEC, 2, split=Split(4, whole_experts=flag)) for flag in (False, True)
    )
    assert slices == whole


def test_dense_rows_are_contiguous_and_shared_by_cfg_ranks() -> None:
    dense = {"0": {"diffusion_kv_mode": "dense_legacy"}}
    [alone] = plan("hunyuan_image3_tp4", stage_overrides=dense, prompt_tokens=256).sizes
    assert alone.kv_bytes == 2 * 4353 * 32 * 1024
    assert (alone.num_pages, alone.num_requests) == (0, 1)
    [split] = plan("hunyuan_image3_tp2_cfg2", stage_overrides=dense, prompt_tokens=256).sizes
    assert split.kv_bytes == 1 * 4353 * 64 * 1024


def test_requests_that_take_turns_have_rows_each() -> None:
    dense = {"diffusion_kv_mode": "dense_legacy", "max_num_seqs": 3}
    steps = {**dense, "step_execution": True}
    [whole] = plan("hunyuan_image3_tp4", stage_overrides={"0": dense}, prompt_tokens=256).sizes
    [turns] = plan("hunyuan_image3_tp4", stage_overrides={"0": steps}, prompt_tokens=256).sizes
    assert (whole.num_requests, turns.num_requests) == (1, 3)
    assert turns.kv_bytes == whole.kv_bytes
    assert turns.peak_bytes - whole.peak_bytes == 2 * whole.kv_bytes


def test_strips_take_their_share_of_the_decoders_maps() -> None:
    strips = {"0": {"parallel_config": {"tensor_parallel_size": 4, "vae_patch_parallel_size": 4}}}
    [whole] = plan("hunyuan_image3_tp4", prompt_tokens=256).sizes
    [shared] = plan("hunyuan_image3_tp4", stage_overrides=strips, prompt_tokens=256).sizes
    assert whole.activations.decode == 4 * shared.activations.decode


def test_rows_kept_for_graphs_are_held_at_rest() -> None:
    stage = {"enforce_eager": False, "diffusion_kv_mode": "dense_legacy"}
    planned = plan("hunyuan_image3_dit", stage_overrides={"0": stage})
    # 22,800 tokens, up to the next multiple of 1024.
    assert planned.kept_rows_bytes == 2 * 23 * 1024 * 32 * 1024
    assert planned.load_peak_bytes == planned.weight_bytes + planned.kept_rows_bytes
    assert planned.sizes[0].kv_bytes == planned.kept_rows_bytes


def test_layers_that_stream_leave_two_of_them_on_the_card() -> None:
    planned = plan("hunyuan_image3_offload")
    shared = LAYERS - ROUTERS
    whole = EMBEDDING + PATCH_EMBED + FINAL_LAYER + EMBEDDERS
    assert planned.host_weight_bytes == 2 * shared + 4 * ROUTERS
    assert planned.weight_bytes == 2 * whole + 2 * VAE_DECODER + planned.host_weight_bytes // 16
    assert planned.fits
    assert plan("hunyuan_image3_offload", card="A100-40G").fits
    waits = {"0": {"enable_cpu_offload": True, "vae_use_tiling": True}}
    small = plan("hunyuan_image3_offload", card="L40S", stage_overrides=waits)
    assert small.host_weight_bytes == planned.host_weight_bytes + 2 * VAE_DECODER
    # A tile of 24 x 24 latent pixels in place of 64 x 64, and the decoder's weights beside it.
    tile = planned.sizes[0].activations.decode * 24 * 24 // (64 * 64)
    assert small.sizes[0].activations.decode == tile + 2 * VAE_DECODER


def test_an_automatic_pool_takes_what_the_card_leaves_and_no_more_than_it_can_use() -> None:
    wide = plan("hunyuan_image3_cuda", flags={"max_num_seqs": 2})
    assert wide.num_pages == 2 * 2 * 130
    assert plan("hunyuan_image3_cuda", flags={"max_num_seqs": 1}).num_pages == 2 * 130
    many = plan("hunyuan_image3_cuda", flags={"max_num_seqs": 1000})
    assert many.page_bytes is not None
    assert many.profiled is not None
    left = many.allowed_bytes - many.profiled.peak_bytes
    assert 0 <= left < many.page_bytes
    assert many.sizes[0].num_requests == many.num_pages // many.sizes[0].num_pages > 100


def test_the_page_size_follows_the_card() -> None:
    sizes = {
        card: plan("hunyuan_image3_cuda", card=card, flags={"kv_cache_memory_bytes": GIB}).page_size
        for card in ("H200", "b200", "H20")
    }
    assert sizes == {"H200": 176, "b200": 256, "H20": 176}


def test_ascend_is_planned() -> None:
    planned = plan("hunyuan_image3_ascend", card="ascend-910b")
    assert (planned.page_size, planned.kernel) == (128, "ascend_fia")
    assert planned.fits
    one = {"0": {"devices": "0", "tensor_parallel_size": 1}}
    with pytest.raises(ConfigError, match="tensor_parallel_size: the weights of a rank take"):
        plan("hunyuan_image3_ascend", card="ascend-910b", stage_overrides=one)


def refusal(deploy_config: str = PAGED, /, **settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        plan(deploy_config, **settings)
    return str(caught.value)


def test_weights_that_do_not_fit_name_the_ranks_that_hold_them() -> None:
    message = refusal("hunyuan_image3_single_gpu")
    assert message.startswith("tensor_parallel_size: the weights of a rank take 163267179846 bytes")
    assert "set by packaged hunyuan_image3_single_gpu.yaml); raise it to 2" in message
    two = {"0": {"devices": "0,1", "tensor_parallel_size": 2}}
    assert plan("hunyuan_image3_single_gpu", stage_overrides=two).fits
    assert "raise it to 8" in refusal("hunyuan_image3_dit", memory_bytes=30 * GIB, card=None)
    # The weights alone would fit.
    message = refusal("hunyuan_image3_tp2_cfg2", card="H100")
    assert ", the largest request works in 7" in message
    assert "raise it to 4" in message
    assert "each rank needs a device of more than" in refusal(
        "hunyuan_image3_dit", memory_bytes=10 * GIB, card=None
    )
    # Offload is for one rank without pages, and two layers with the rest must fit.
    hint = "or set enable_layerwise_offload to true"
    one: dict[str, Any] = {"0": {"devices": "0", "tensor_parallel_size": 1}}
    dense = {"stage_overrides": one, "card": None}
    assert hint in refusal("hunyuan_image3_dit", memory_bytes=100 * GIB, **dense)
    assert hint not in refusal("hunyuan_image3_dit", memory_bytes=10 * GIB, **dense)
    assert hint not in refusal("hunyuan_image3_paged", memory_bytes=100 * GIB, **dense)
    assert hint not in refusal("hunyuan_image3_dit", memory_bytes=30 * GIB, card=None)


def test_a_pool_that_does_not_fit_names_the_largest_that_does() -> None:
    message = refusal(card="H100", flags={"kv_cache_memory_bytes": 100_000_000_000})
    assert message.startswith("kv_cache_memory_bytes: the pool would not fit")
    largest = int(message.split("set at most ")[1].split(",")[0])
    # What fits beside weights and working memory may still be more than the fraction allows.
    message = refusal(card="H100", flags={"kv_cache_memory_bytes": largest})
    assert "a start runs the largest request first" in message
    allowed = int(message.split("set kv_cache_memory_bytes to at most ")[1].split(",")[0])
    assert plan(card="H100", flags={"kv_cache_memory_bytes": allowed}).fits


def test_a_pool_of_no_page_names_a_page() -> None:
    message = refusal(flags={"kv_cache_memory_bytes": 1_000_000})
    assert "no page of 176 tokens" in message
    assert str(int(5.5 * MIB)) in message


def test_a_size_that_does_not_fit_names_pages_and_the_largest_size_that_does() -> None:
    planned = plan(flags={"kv_cache_memory_bytes": 200 * MIB}, sizes=["1024x1024", "2048x512"])
    assert not planned.fits
    for size in planned.sizes:
        assert size.refusal is not None
        assert "needs 50 KV pages" in size.refusal
        assert "raise kv_cache_memory_bytes to 288358400" in size.refusal
    assert plan(flags={"kv_cache_memory_bytes": 288_358_400}).fits
    # Rows of the published sizes differ by little: the smallest is what a short prompt leaves.
    short = plan(flags={"kv_cache_memory_bytes": 260 * MIB}, prompt_tokens=30).sizes[0].refusal
    assert short is not None
    assert "largest size that fits is" in short


def test_text_says_that_each_group_runs_one() -> None:
    one = describe_plan(plan())
    assert "hold pages at once: max_num_seqs 1; one runs" in one
    split = {"devices": "0,1,2,3,4,5,6,7", "data_parallel_size": 2}
    two = describe_plan(plan(stage_overrides=json.dumps({"0": split})))
    assert "hold pages at once in each of 2 groups: max_num_seqs 1; one runs" in two


@pytest.mark.parametrize(
    ("split", "field"),
    [
        ({"devices": "0,1,2", "tensor_parallel_size": 3}, "tensor_parallel_size"),
        (
            {
                "devices": ",".join(map(str, range(16))),
                "tensor_parallel_size": 4,
                "ulysses_degree": 4,
            },
            "ulysses_degree",
        ),
    ],
)
def test_ranks_that_cannot_share_the_heads(split: dict[str, object], field: str) -> None:
    message = refusal("hunyuan_image3_dit", stage_overrides={"0": split})
    assert message.startswith(f"stages[0].parallel_config.{field}: tensor_parallel_size")
    assert "set by --stage-overrides" in message
    assert "does not divide the model's 8 kv heads" in message
    assert "use one of 1, 2" in message


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sizes": ["512x512"]}, "--size: is no size of this model (got '512x512'); use one of"),
        ({"sizes": ["big"]}, "--size: is no size"),
        ({"prompt_tokens": 0}, "--prompt-tokens: is out of range for 1024x1024"),
        ({"prompt_tokens": 22_800}, "give 1 to 18703"),
        ({"card": "H20O"}, "--card: is not a card that the kit knows (got 'H20O'); did you mean"),
        ({"card": "X"}, "for others give --memory"),
        ({"memory_bytes": 1}, "--memory: stands beside --card"),
        ({"card": None, "memory_bytes": 0}, "--memory: is no memory (got 0); give bytes"),
        ({"stage_overrides": '{"0": {"diffusion_kv_page_size": 100}}'}, "multiples of 176"),
    ],
)
def test_wrong_input_is_refused_by_name(settings: dict[str, Any], said: str) -> None:
    assert said in refusal(**settings)


def test_accelerators_that_are_not_here_ask_for_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    message = refusal(card=None)
    assert message.startswith("stages[0].devices: names accelerators that are not here")
    assert "--card (H200," in message
    assert "the deployment runs on the CPU" in refusal("hunyuan_image3_cpu")


def test_cpu_ranks_share_the_memory_of_their_host() -> None:
    cpu = {"card": None, "memory_bytes": 1200 * GIB}
    alone = plan("hunyuan_image3_cpu", **cpu)
    assert alone.device_bytes == alone.allowed_bytes == 1200 * GIB
    two = plan("hunyuan_image3_cpu", stage_overrides='{"0": {"tensor_parallel_size": 2}}', **cpu)
    assert two.device_bytes == 600 * GIB


def test_a_model_is_a_folder_or_a_config_file(checkpoint: Path, tmp_path: Path) -> None:
    # Without files nothing says whether references can be read, until one is asked for.
    by_folder = plan_deployment(checkpoint, references=1)
    by_file = plan_deployment(checkpoint / "config.json", references=1)
    assert plan_deployment(checkpoint).weights == by_file.weights
    assert by_folder.mapped_bytes == 3_688_670
    unlike: dict[str, Any] = {
        "model": "",
        "mapped_bytes": None,
        "device_bytes": 0,
        "allowed_bytes": 0,
    }
    assert replace(by_folder, **unlike) == replace(by_file, **unlike)
    bare = tmp_path / "config.json"
    bare.write_text(PUBLISHED_CONFIG.read_text())
    published = plan_deployment(bare, PAGED, card="H200")
    assert replace(published, model=PUBLISHED) == plan(sizes=())
    with pytest.raises(CheckpointError, match="there is no file or folder"):
        plan_deployment(tmp_path / "absent")


def test_references_take_tokens_weights_and_an_encoder() -> None:
    none, three = (plan(prompt_tokens=256, references=n) for n in (0, 3))
    assert three.weights.keys() - none.weights.keys() == {"vae_encoder", "vision"}
    [without], [size] = none.sizes, three.sizes
    # <boi>, size, ratio, <timestep>, separator and <eoi>; 64 x 64 latents; 1024 patches.
    assert size.reference_tokens == 3 * (6 + 64 * 64 + 1024)
    assert (size.prompt_tokens, without.reference_tokens) == (256, 0)
    assert size.row_tokens == without.row_tokens + size.reference_tokens
    assert size.num_pages > 3.9 * without.num_pages
    assert (without.activations.encode, size.activations.encode) == (0, 7.25 * GIB)


@pytest.mark.parametrize("number", [-1, 4])
def test_a_request_has_at_most_three_references(number: int) -> None:
    message = refusal(references=number)
    assert message.startswith("--references: is out of range: a request has at most 3")


def test_a_model_that_takes_no_references_says_so(
    text_checkpoint: Path, distil_checkpoint: Path
) -> None:
    for folder, reason in (
        (text_checkpoint, "sequence_template is 'pretrain'"),
        (distil_checkpoint, "its files hold no vision_model"),
    ):
        with pytest.raises(ConfigError, match="--references: asks for what") as caught:
            plan_deployment(folder, references=1)
        assert reason in str(caught.value)


def test_references_that_leave_no_room_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    content = json.loads((checkpoint / "config.json").read_text())
    short = tmp_path / "config.json"
    short.write_text(json.dumps(content | {"max_position_embeddings": 1235}))
    with pytest.raises(ConfigError, match="leaves no room for a prompt") as caught:
        plan_deployment(short, references=3, sizes=["256x256"])
    assert caught.value.field == "--references"
    [fits] = plan_deployment(short, references=2, sizes=["256x256"]).sizes
    assert fits.row_tokens <= 1235


def test_a_plan_is_plain_values(checkpoint: Path) -> None:
    shown = plan_deployment(checkpoint).as_json()
    assert json.loads(json.dumps(shown))["sizes"][0]["activations"]["decode"] > 0
    assert shown["fits"] is True


def test_a_named_card_takes_its_own_section_and_the_fraction_that_is_named_suffices() -> None:
    message = refusal("hunyuan_image3_dit", card="ascend-910b")
    assert "(got 0.65, set by base hunyuan_image3_dit.yaml (platforms.npu))" in message
    fraction = float(message.split("raise gpu_memory_utilization to ")[1].split(",")[0])
    flags = {"gpu_memory_utilization": fraction}
    assert plan("hunyuan_image3_dit", card="ascend-910b", flags=flags).fits
    less = {"gpu_memory_utilization": round(fraction - 0.01, 2)}
    assert "are allowed" in refusal("hunyuan_image3_dit", card="ascend-910b", flags=less)


def test_a_distilled_model_has_one_row_of_two_tokens_more(distil_checkpoint: Path) -> None:
    [size] = plan_deployment(distil_checkpoint, prompt_tokens=100).sizes
    assert (size.num_rows, size.row_tokens) == (1, 100 + 3 + 16 * 16)
