"""The whole command on the toy preset, from captions to a checkpoint that the kit loads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from kit.checkpoint.train import main
from kit.model.loader import load_transformer, load_vae_decoder
from kit.modelspec.config import load_generation_config, load_model_config
from kit.modelspec.files import CheckpointFiles
from kit.modelspec.tensors import check_tensors
from kit.tokenizer.tokenizer import Tokenizer

CPU = torch.device("cpu")


def train(stage: str, state: Path, *more: str) -> int:
    return main([stage, "--state", str(state), "--preset", "toy", "--device", "cpu", *more])


def test_every_stage_runs_and_the_export_loads(tmp_path: Path) -> None:
    state, folder, record = tmp_path / "state", tmp_path / "ckpt", tmp_path / "record.json"
    assert train("tokenizer", state) == 0
    # A piece ends after the step that passes its time: one step, however slow the machine is.
    assert train("vae", state, "--budget-seconds", "1000", "--piece-seconds", "0.001") == 3
    elapsed_s = json.loads((state / "vae.json").read_text())["elapsed_s"]
    assert train("vae", state, "--budget-seconds", str(elapsed_s + 0.2)) == 0
    assert train("dit", state, "--budget-seconds", "0.4") == 0
    assert train("export", state, "--out", str(folder), "--record", str(record)) == 0

    config = load_model_config(folder)
    files = CheckpointFiles.open(folder)
    check_tensors(files, config)
    dtypes = {entry.dtype for entry in files.tensors.values()}
    assert dtypes == {"BF16", "F32"}
    assert all(
        entry.dtype == "BF16" or name.endswith(".gate.wg.weight")
        for name, entry in files.tensors.items()
    )
    assert any(name.startswith("vae.encoder.") for name in files.tensors)
    Tokenizer.from_folder(folder, config)
    assert load_generation_config(folder).sequence_template == "pretrain"
    model = load_transformer(folder, config, device=CPU, dtype=torch.float32)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    decoder = load_vae_decoder(folder, config, device=CPU, dtype=torch.float32)
    assert decoder(torch.zeros(1, 16, 2, 2)).shape == (1, 3, 32, 32)

    content = json.loads(record.read_text())
    assert [piece["of"] for piece in content["pieces"]] == ["tokenizer", "vae", "vae", "dit"]
    assert content["pieces"][0]["machine"]["torch"]["version"] == torch.__version__
    assert content["results"]["vae"]["scaling_factor"] == config.vae.scaling_factor
    assert str(tmp_path) not in json.dumps(content["results"])
    assert (state / "sheet.png").exists()

    again = tmp_path / "again"
    assert train("restore", again, "--checkpoint", str(folder)) == 0
    assert train("export", again, "--out", str(tmp_path / "copy")) == 0
    copy = CheckpointFiles.open(tmp_path / "copy")
    assert copy.fingerprint(contents=True) == files.fingerprint(contents=True)
    assert train("dit", again, "--budget-seconds", "0.2") == 0
    assert train("export", again, "--out", str(tmp_path / "more"), "--record", str(record)) == 0
    restored, piece = json.loads(record.read_text())["pieces"]
    assert restored["restored_from"] == files.fingerprint(contents=True)
    assert piece["of"] == "dit"


@pytest.mark.parametrize(
    ("stage", "more", "complaint"),
    [
        ("vae", ("--budget-seconds", "1"), "run the stage tokenizer first"),
        ("dit", ("--budget-seconds", "1"), "run the stage vae first"),
        ("dit", (), "--budget-seconds"),
        ("export", (), "--out"),
        ("restore", (), "--checkpoint"),
        ("restore", ("--checkpoint", "nowhere"), "nowhere"),
        ("export", ("--out", "nowhere"), "run the stage vae first"),
    ],
)
def test_bad_calls_say_what_to_do(
    stage: str,
    more: tuple[str, ...],
    complaint: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert train(stage, tmp_path, *more) == 2
    assert complaint in capsys.readouterr().err


def test_a_budget_is_a_positive_number(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        train("vae", tmp_path, "--budget-seconds", "-3")
