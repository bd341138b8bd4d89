"""`kit plan` on the command line: what it prints, its exit code, and that it loads nothing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from kit.cli import main
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
