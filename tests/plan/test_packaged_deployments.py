"""Every packaged deploy file: dry-run here, planned for the published shape, refused by name."""

from __future__ import annotations

import pytest

from kit.checkpoint.shipped import DEFAULT_CHECKPOINT
from kit.cli import main
from kit.config.paths import packaged_names
from kit.plan.plan import PUBLISHED, plan_deployment

STARTS_HERE = {"hunyuan_image3_cpu", "hunyuan_image3_dit", "hunyuan_image3_paged"}
NO_CARD = (
    "stages[0].devices: there is no accelerator 0; NVIDIA cards that this process sees: none "
    "(CUDA_VISIBLE_DEVICES not set). Name another, or set devices: cpu"
)
PLANNED_ON = {"hunyuan_image3_ascend": "ASCEND-910B"}


UNVALIDATED = {
    f"hunyuan_image3_{name}": f"{topology} on {platform} has not been validated"
    for name, topology, platform in (
        ("tp4", "TP4", "cuda"),
        ("tp2_sp2", "TP2+SP2", "cuda"),
        ("tp2_cfg2", "TP2+CFG2", "cuda"),
        ("ascend", "TP4", "npu"),
    )
}
REFUSED = {"hunyuan_image3_single_gpu", "hunyuan_image3_offload", *UNVALIDATED}
ALLOWED = {"0": {"allow_unvalidated_topology": True}}


@pytest.fixture(autouse=True)
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_every_file_is_expected_to_start_or_not() -> None:
    # On a checkpoint as small as the shipped one, the file of NVIDIA cards leaves devices: cpu.
    starts = STARTS_HERE | {"hunyuan_image3_cuda"}
    assert starts | REFUSED == set(packaged_names("deploy"))


@pytest.mark.parametrize("name", packaged_names("deploy"))
def test_a_dry_run_with_the_shipped_checkpoint(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--deploy-config", name, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    if name in REFUSED:
        assert f"# a start is refused here: {NO_CARD}\n" in shown
    else:
        assert "# start: device cpu, " in shown


@pytest.mark.parametrize("name", sorted(set(packaged_names("deploy")) - {"hunyuan_image3_cpu"}))
def test_it_is_planned_for_the_published_shape(name: str) -> None:
    card = PLANNED_ON.get(name, "H200")
    model = DEFAULT_CHECKPOINT if name == "hunyuan_image3_single_gpu" else PUBLISHED
    planned = plan_deployment(model, name, card=card)
    assert planned.fits
    is_alone = name in REFUSED and name not in UNVALIDATED
    assert planned.num_ranks == (1 if is_alone else 4)
    if name in UNVALIDATED:
        assert planned.start_refusal is not None
        assert UNVALIDATED[name] in planned.start_refusal
        assert "set allow_unvalidated_topology to true" in planned.start_refusal
        allowed = plan_deployment(model, name, card=card, stage_overrides=ALLOWED)
        assert allowed.start_refusal is None
    elif is_alone:
        assert planned.start_refusal is None


def test_the_file_of_the_cpu_is_planned_for_the_published_shape() -> None:
    planned = plan_deployment(PUBLISHED, "hunyuan_image3_cpu", memory_bytes=400 << 30)
    assert (planned.fits, planned.start_refusal, planned.kernel) == (True, None, "cpu_reference")


def test_one_npu_is_planned_with_its_kernel() -> None:
    one = {"0": {"devices": "0", "tensor_parallel_size": 1}}
    planned = plan_deployment(
        DEFAULT_CHECKPOINT, "hunyuan_image3_ascend", card="ASCEND-910B", stage_overrides=one
    )
    assert (planned.fits, planned.start_refusal) == (True, None)
    assert (planned.kernel, planned.page_size, planned.vae_dtype) == ("ascend_fia", 128, "float16")
