"""The whole command on the toy preset, from captions to a checkpoint that the kit loads."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from kit.api import GenerationRequest, ImageEngine, SamplingParams, load_config
from kit.checkpoint.shipped import DEFAULT_CHECKPOINT
from kit.checkpoint.train import main
from kit.engine.preprocess import Preprocessor
from kit.errors import InvalidRequestError
from kit.model.loader import load_transformer, load_vae_decoder
from kit.modelspec.config import load_generation_config, load_model_config
from kit.modelspec.files import CheckpointFiles
from kit.modelspec.tensors import check_tensors
from kit.tokenizer.tokenizer import Tokenizer

CPU = torch.device("cpu")


def train(stage: str, state: Path, *more: str) -> int:
    return main([stage, "--state", str(state), "--preset", "toy", "--device", "cpu", *more])


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with state, ckpt and record.json of the stages that train on captions alone."""
    root = tmp_path_factory.mktemp("exported")
    state, folder, record = root / "state", root / "ckpt", root / "record.json"
    assert train("tokenizer", state) == 0
    # A piece ends after the step that passes its time: one step, however slow the machine is.
    assert train("vae", state, "--budget-seconds", "1000", "--piece-seconds", "0.001") == 3
    elapsed_s = json.loads((state / "vae.json").read_text())["elapsed_s"]
    assert train("vae", state, "--budget-seconds", str(elapsed_s + 0.2)) == 0
    assert train("dit", state, "--budget-seconds", "0.4") == 0
    assert train("export", state, "--out", str(folder), "--record", str(record)) == 0
    return root


def test_every_stage_runs_and_the_export_loads(tmp_path: Path, exported: Path) -> None:
    state, folder, record = exported / "state", exported / "ckpt", tmp_path / "record.json"
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

    content = json.loads((exported / "record.json").read_text())
    assert [piece["of"] for piece in content["pieces"]] == ["tokenizer", "vae", "vae", "dit"]
    assert content["pieces"][0]["machine"]["torch"]["version"] == torch.__version__
    assert content["results"]["vae"]["scaling_factor"] == config.vae.scaling_factor
    assert str(exported) not in json.dumps(content["results"])
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


def test_edits_are_learnt_from_restored_weights_and_the_export_takes_references(
    tmp_path: Path, exported: Path
) -> None:
    """A few steps of the whole way from one checkpoint to the next, in two pieces."""
    text_only, folder, record = exported / "ckpt", tmp_path / "ckpt", tmp_path / "record.json"
    refusal = Preprocessor(text_only, load_config(text_only)).reference_refusal
    assert refusal is not None

    again = tmp_path / "again"
    assert train("restore", again, "--checkpoint", str(text_only)) == 0
    assert train("edit", again, "--budget-seconds", "1000", "--piece-seconds", "0.001") == 3
    elapsed_s = json.loads((again / "edit.json").read_text())["elapsed_s"]
    assert train("edit", again, "--budget-seconds", str(elapsed_s + 0.3)) == 0
    assert train("dit", again, "--budget-seconds", "1") == 2
    assert train("export", again, "--out", str(folder), "--record", str(record)) == 0
    assert (again / "edits.png").exists()

    before, after = (
        load_transformer(f, load_model_config(f), device=CPU, dtype=torch.float32)
        for f in (text_only, folder)
    )
    moved = [
        (a - b).abs().max().item()
        for a, b in zip(before.parameters(), after.parameters(), strict=True)
    ]
    assert 0 < max(moved) < 0.2  # other weights than at random: they went on from the first ones
    assert load_generation_config(folder).sequence_template == "instruct"
    with ImageEngine(folder, load_config(folder)) as engine:
        assert engine.preprocessor.reference_refusal is None
        file = io.BytesIO()
        Image.fromarray(np.full((256, 256, 3), 90, np.uint8)).save(file, "PNG")
        image = engine.preprocessor.read_image(file, "image")
        sampling = SamplingParams(num_inference_steps=1, seed=1)
        for images in ((), (image,)):
            result = engine.generate(GenerationRequest("make it blue", sampling, images=images))
            assert result.image.shape == (256, 256, 3)
        too_many = GenerationRequest("make it blue", sampling, images=(image, image))
        with pytest.raises(InvalidRequestError, match="fewer reference images"):
            engine.generate(too_many)

    content = json.loads(record.read_text())
    assert [piece.get("of") for piece in content["pieces"]] == [None, "edit", "edit"]
    files = CheckpointFiles.open(folder)
    third = tmp_path / "third"
    # What a folder held before is gone: the weights are those restored last.
    assert train("restore", third, "--checkpoint", str(text_only)) == 0
    assert train("restore", third, "--checkpoint", str(folder)) == 0
    assert not (third / "dit.json").exists()
    assert train("export", third, "--out", str(tmp_path / "copy")) == 0
    copy = CheckpointFiles.open(tmp_path / "copy")
    assert copy.fingerprint(contents=True) == files.fingerprint(contents=True)


def test_a_checkpoint_of_another_shape_is_not_restored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("restore", tmp_path, "--checkpoint", str(DEFAULT_CHECKPOINT)) == 2
    message = capsys.readouterr().err
    assert "differs from the preset toy in hidden_size, num_hidden_layers" in message


@pytest.mark.parametrize(
    ("stage", "more", "complaint"),
    [
        ("vae", ("--budget-seconds", "1"), "run the stage tokenizer first"),
        ("dit", ("--budget-seconds", "1"), "run the stage vae first"),
        ("edit", ("--budget-seconds", "1"), "run the stage vae first"),
        ("edit", (), "--budget-seconds"),
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
