"""`kit plan` on the command line: what it prints, its exit code, and that it loads nothing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kit.checkpoint.shipped import DEFAULT_CHECKPOINT
from kit.cli import main
from kit.modelspec.files import INDEX_NAME
from kit.plan.plan import plan_deployment

H200 = ("plan", "hunyuan_image3", "--card", "H200")
PAGED = ("--deploy-config", "hunyuan_image3_paged")


def test_it_imports_no_torch_and_reads_no_weights() -> None:
    code = (
        "import sys; from kit.cli import main; code = main(['plan', '--size', '256x256']); "
        "print('torch' in sys.modules, file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == "False"
    assert "256x256" in done.stdout


def test_json_is_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--size", "1024x1024", "768x1280", "--prompt-tokens", "100")
    assert main([*H200, *PAGED, *sizes, "--json"]) == 0
    expected = plan_deployment(
        "hunyuan_image3",
        "hunyuan_image3_paged",
        sizes=["1024x1024", "768x1280"],
        prompt_tokens=100,
        card="H200",
    )
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(expected.as_json()))


def test_the_text_names_what_the_plan_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*H200, *PAGED, "--size", "1024x1024"]) == 0
    text = capsys.readouterr().out
    planned = plan_deployment(
        "hunyuan_image3", "hunyuan_image3_paged", sizes=["1024x1024"], card="H200"
    )
    for number in (planned.weight_bytes, planned.pool_bytes, *planned.weights.values()):
        assert f"{number:,} bytes" in text
    assert f"{planned.num_pages} pages of {planned.page_bytes} bytes" in text
    [line] = [line for line in text.splitlines() if line.strip().startswith("1024x1024")]
    size = planned.sizes[0]
    gib = (f"{n / 2**30:.3f}" for n in (size.kv_bytes, size.activations.denoise, size.peak_bytes))
    words = line.split()
    assert [words[3], words[4]] == ["4353", "50"]
    assert set(gib) <= set(words)
    assert f"this build does not start it: {planned.start_refusal}" in text
    assert "several ranks: arithmetic over the published split, not measured" in text


def test_a_size_that_does_not_fit_gives_code_2_and_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pool = ("--kv-cache-memory-bytes", str(200 << 20))
    assert main([*H200, *PAGED, *pool, "--size", "1024x1024"]) == 2
    assert "does not fit: 1024x1024: the request needs 50 KV pages" in capsys.readouterr().out


def test_an_impossible_deployment_gives_code_2_and_the_number(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*H200, "--deploy-config", "hunyuan_image3_single_gpu"]) == 2
    assert "raise it to 2" in capsys.readouterr().err


def test_a_misspelt_deploy_file_is_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*H200, "--deploy-config", "hunyuan_image3_tp2sp2.yaml"]) == 2
    assert "did you mean hunyuan_image3_tp2_sp2?" in capsys.readouterr().err
    assert main([*H200, "--deploy-config", "something.else"]) == 2
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [["--card", "H200", "--memory", "1"], ["--prompt-tokens", "x"]])
def test_wrong_flags_are_refused_by_the_parser(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["plan", *wrong])
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ("ASCEND-910B", "hunyuan_image3_ascend"),
        ("A100-40G", "hunyuan_image3_offload"),
    ],
)
def test_where_the_base_does_not_fit_packaged_files_that_do_are_named(
    capsys: pytest.CaptureFixture[str], card: str, expected: str
) -> None:
    command = ["plan", "hunyuan_image3", "--card", card]
    assert main(command) == 2
    assert (
        capsys.readouterr()
        .err.rstrip()
        .endswith(f"take a packaged deploy file that fits: --deploy-config {expected}")
    )
    for name in expected.split(" or "):
        assert main([*command, "--deploy-config", name]) == 0


def test_no_packaged_file_is_named_beside_one_that_was_given_or_where_none_fits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    named = ["plan", "hunyuan_image3", "--card", "A100-40G", "--deploy-config"]
    assert main([*named, "hunyuan_image3_tp4"]) == 2
    assert main(["plan", "hunyuan_image3", "--memory", "1000"]) == 2
    assert "take a packaged" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("card", "stage", "field"),
    [
        ("ASCEND-910B", {"enable_cpu_offload": True, "diffusion_kv_mode": "dense_legacy"}, "NPU"),
        ("ASCEND-910B", {"enforce_eager": False}, "NPU"),
        ("H200", {"enforce_eager": False, "diffusion_attention_backend": "TORCH_SDPA"}, "graphs"),
    ],
)
def test_what_a_start_on_the_card_would_refuse_is_refused(
    capsys: pytest.CaptureFixture[str], card: str, stage: dict[str, object], field: str
) -> None:
    overrides = ("--stage-overrides", json.dumps({"0": stage}))
    assert main(["plan", "hunyuan_image3", "--card", card, *overrides]) == 2
    error = capsys.readouterr().err
    assert field in error
    assert "set by --stage-overrides" in error


def test_a_checkpoint_without_its_index_is_not_planned_as_a_config_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "ein Ordner \N{LATIN SMALL LETTER U WITH DIAERESIS}"
    shutil.copytree(DEFAULT_CHECKPOINT, folder)
    assert main(["plan", str(folder)]) == 0
    (folder / INDEX_NAME).unlink()
    assert main(["plan", str(folder)]) == 2
    assert f"neither {INDEX_NAME} nor" in capsys.readouterr().err


def test_a_page_that_no_memory_holds_is_refused_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    def code(page_size: int) -> int:
        stage = json.dumps({"0": {"diffusion_kv_page_size": page_size}})
        return main(["plan", *PAGED, "--memory", "1000000000", "--stage-overrides", stage])

    assert code(10**12) == 2
    error = capsys.readouterr().err
    assert "error: diffusion_kv_page_size: a page of 1000000000000 tokens takes" in error
    found = re.search(r"set at most (\d+), or leave it out", error)
    assert found is not None
    most = int(found[1])
    assert code(most + 1) == 2
    assert "diffusion_kv_page_size: a page of" in capsys.readouterr().err
    assert code(most) == 2
    assert "diffusion_kv_page_size" not in capsys.readouterr().err
