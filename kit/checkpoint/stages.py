"""The stages that train; each goes on from what the one before left in the state folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from itertools import chain, repeat
from typing import Any

import torch
from torch import Tensor

from kit.checkpoint import official_config
from kit.checkpoint.bpe import train_tokenizer
from kit.checkpoint.captions import training_captions
from kit.checkpoint.chunks import Size
from kit.checkpoint.devices import prepare
from kit.checkpoint.dit_forward import TrainingForward
from kit.checkpoint.edit_rows import EditSettings, edit_chunks, num_text_slots
from kit.checkpoint.edits import EDIT_KINDS
from kit.checkpoint.evaluation import (
    FAMILIES,
    JUDGED_EDITS,
    evaluation_captions,
    evaluation_edits,
)
from kit.checkpoint.export import bfloat16_tensors
from kit.checkpoint.flat_vae import FlatVAE
from kit.checkpoint.latents import LatentPool, encode_chunks, encode_edits
from kit.checkpoint.loop import Budget, run_piece
from kit.checkpoint.preset import (
    LONGEST_SIZES,
    NAMED_SIZES,
    SCALED_SIZES,
    SQUARE,
    DiTTraining,
    EditTraining,
)
from kit.checkpoint.render import render
from kit.checkpoint.run import Run, log_piece, read_config, write_config
from kit.checkpoint.sampling import Sampler, save_sheet
from kit.checkpoint.train_dit import DiTTrainee, averaged_model, averaged_reader
from kit.checkpoint.train_vae import (
    PixelPool,
    VAETrainee,
    measure_latents,
    psnr,
    round_to_bfloat16,
)
from kit.checkpoint.training_rows import RowSettings, training_chunks
from kit.errors import ConfigError
from kit.model.vae import VAEDecoder
from kit.model.vae_encoder import VAEEncoder
from kit.modelspec.config import ModelConfig, load_model_config
from kit.telemetry.log import get_logger
from kit.tokenizer.template import supported_sizes
from kit.tokenizer.tokenizer import Tokenizer

logger = get_logger("train")

_NUM_MEASURED = 1024
_INSTRUCT_WORDS = "User: Assistant: "
"""What the instruct template adds around a prompt; learnt too, so that it costs few tokens."""


def train_vocabulary(run: Run) -> None:
    """Learn the tokenizer from captions; write it with a config whose latents are not scaled."""
    started = time.perf_counter()
    num = run.preset.num_vocabulary_captions
    texts = chain(training_captions(num, run.seed), repeat(_INSTRUCT_WORDS, num // 20))
    tokenizer = train_tokenizer(texts, run.preset.shape.vocab_size)
    folder = run.state.path
    tokenizer.save(str(folder / "tokenizer.json"))
    write_config(run, scaling_factor=1.0)
    run.state.save("vocabulary", {}, {"num_tokens": tokenizer.get_vocab_size()})
    settings = {"num_vocabulary_captions": num}
    log_piece(run, "tokenizer", settings, wall_s=time.perf_counter() - started)
    logger.info("tokenizer: %d tokens", tokenizer.get_vocab_size())


def train_vae(run: Run, budget: Budget) -> bool:
    """Train the autoencoder for a piece; when its budget is used up, round and judge it."""
    run.state.load("vocabulary", made_by="tokenizer")
    started = time.perf_counter()
    prepare(run.device, few_shapes=True)
    config, training = load_model_config(run.state.path), run.preset.vae
    pools = _pixel_pools(run)
    trainee = VAETrainee(config.vae, training, pools, seed=run.seed)
    finish = partial(_finish_vae, run, trainee, pools[0])
    return _train_piece(run, budget, "vae", asdict(training), started, trainee, finish)


def train_dit(run: Run, budget: Budget) -> bool:
    """Train the denoiser for a piece; when its budget is used up, draw held-out captions."""
    started = time.perf_counter()
    if run.state.has("edit"):
        raise ConfigError(
            "stage",
            "this folder's weights read reference images, and dit would train the denoiser alone",
            value="dit",
            remedy="go on with the stage edit, or begin in another folder",
        )
    prepare(run.device, few_shapes=False)
    flat = _load_autoencoder(run)
    config, tokenizer = read_config(run)
    training = run.preset.dit
    pools = _latent_pools(run, flat, config, tokenizer, training)
    trainee = DiTTrainee(config, run.preset.shape, training, pools, seed=run.seed)
    finish = partial(_draw_with_denoiser, run, flat, config, tokenizer)
    return _train_piece(run, budget, "dit", asdict(training), started, trainee, finish)


def train_edit(run: Run, budget: Budget) -> bool:
    """Train denoiser and vision reader on captions and edits for a piece.

    The first piece begins with the weights of the stage dit, or those restored, and a random
    reader where there is none yet. When the budget is used up, draws held-out captions and edits.
    """
    started = time.perf_counter()
    prepare(run.device, few_shapes=False)
    flat = _load_autoencoder(run)
    config, tokenizer = read_config(run)
    training, shape = run.preset.edit, run.preset.shape
    begin = None if run.state.has("edit") else run.state.load("dit", made_by="dit")[0]
    pools = _latent_pools(run, flat, config, tokenizer, training.text)
    settings = EditSettings(
        run.state.path,
        num_text_slots(tokenizer, config, shape.edit_slots, SQUARE),
        training.num_instructions,
    )
    wanted = _wanted(config, tokenizer, training)
    chunks = edit_chunks(wanted, run.seed, settings, num_workers=run.num_workers)
    edits = encode_edits(flat, chunks, run.device, official_config.VISION_PATCH)
    trainee = DiTTrainee(
        config, shape, training.text, pools, seed=run.seed, edits=edits, edit_training=training
    )
    if begin is not None:
        trainee.begin_with(begin)
        logger.info("edit: beginning with the weights of dit, and a random vision reader")
    told = {**asdict(training), "kinds": EDIT_KINDS}
    finish = partial(_draw_with_reader, run, flat, config, tokenizer)
    return _train_piece(run, budget, "edit", told, started, trainee, finish)


def _train_piece(
    run: Run,
    budget: Budget,
    stage: str,
    training: Mapping[str, Any],
    started: float,
    trainee: VAETrainee | DiTTrainee,
    finish: Callable[[], None],
) -> bool:
    """Train, `finish` when the budget is used up, log; return whether it is."""
    trainee.warm_up()
    setup_s = time.perf_counter() - started
    done = run_piece(stage, trainee, run.state, run.log, budget)
    if done:
        finish()
    log_piece(
        run,
        stage,
        training,
        budget_s=budget.total_s,
        setup_s=setup_s,
        wall_s=time.perf_counter() - started,
    )
    return done


def _draw_with_denoiser(run: Run, flat: FlatVAE, config: ModelConfig, tokenizer: Tokenizer) -> None:
    tensors, _ = run.state.load("dit", made_by="dit")
    model = averaged_model(tensors, config).to(run.device)
    forward = TrainingForward(model, run.preset.shape.sequence_slots)
    _draw_captions(run, Sampler(forward, flat, tokenizer))


def _draw_with_reader(run: Run, flat: FlatVAE, config: ModelConfig, tokenizer: Tokenizer) -> None:
    tensors, _ = run.state.load("edit", made_by="edit")
    forward = TrainingForward(
        averaged_model(tensors, config).to(run.device),
        run.preset.shape.sequence_slots,
        reader=averaged_reader(tensors, config).to(run.device),
        num_edit_slots=run.preset.shape.edit_slots,
    )
    sampler = Sampler(forward, flat, tokenizer, template="instruct")
    _draw_captions(run, sampler)
    _draw_edits(run, sampler)


def _finish_vae(run: Run, trainee: VAETrainee, square: PixelPool) -> None:
    for module in (trainee.encoder, trainee.decoder):
        round_to_bfloat16(module)
    flat = FlatVAE(trainee.encoder, trainee.decoder)
    mean, std = measure_latents(flat, square, _NUM_MEASURED).tolist()
    note: dict[str, Any] = {"scaling_factor": 1 / std, "latent_mean": mean, "latent_std": std}
    num = run.preset.vae.num_judged
    wanted = [(size, -(-num // 8)) for size in (*LONGEST_SIZES, *NAMED_SIZES)]
    wanted = [(SQUARE, num), *wanted]
    for size, pixels in _pixels(run, wanted, held_out=True).items():
        found = psnr(flat, pixels)
        name = f"psnr_{size[1]}x{size[0]}"
        note[name] = {
            "pictures": len(found), "mean": found.mean().item(), "lowest": found.min().item()
        }  # fmt: skip
        logger.info("vae: %s %.2f dB, lowest %.2f", name, found.mean(), found.min())
    run.state.save("autoencoder", bfloat16_tensors(trainee.tensors()), note)
    write_config(run, scaling_factor=note["scaling_factor"])


def _load_autoencoder(run: Run) -> FlatVAE:
    tensors, _ = run.state.load("autoencoder", made_by="vae")
    config = load_model_config(run.state.path).vae
    encoder, decoder = VAEEncoder(config), VAEDecoder(config)
    for part, module in (("encoder", encoder), ("decoder", decoder)):
        prefix = f"vae.{part}."
        own: dict[str, Tensor] = {
            name.removeprefix(prefix): t.float() for name, t in tensors.items() if prefix in name
        }
        module.load_state_dict(own)
        module.to(run.device).requires_grad_(False)
    return FlatVAE(encoder, decoder)


def _pixel_pools(run: Run) -> list[PixelPool]:
    """Draw what the autoencoder learns from, the squares first."""
    training = run.preset.vae
    wanted = [(SQUARE, training.num_squares)]
    wanted += [(size, training.num_longest) for size in LONGEST_SIZES]
    wanted += [(size, training.num_scaled) for size in SCALED_SIZES]
    share_scaled = 1 - training.share_square - training.share_longest
    pools = []
    for size, pixels in _pixels(run, wanted).items():
        if size == SQUARE:
            pools.append(PixelPool(pixels, size, training.share_square))
        elif size in LONGEST_SIZES:
            pools.append(PixelPool(pixels, size, training.share_longest / len(LONGEST_SIZES)))
        else:
            window = min(LONGEST_SIZES) if size[0] < size[1] else max(LONGEST_SIZES)
            pools.append(PixelPool(pixels, window, share_scaled / len(SCALED_SIZES)))
    return pools


def _pixels(
    run: Run, wanted: list[tuple[Size, int]], *, held_out: bool = False
) -> dict[Size, Tensor]:
    """Draw pictures of each (size, number): uint8 [number, height, width, 3] on the device."""
    settings = RowSettings(run.state.path, _num_prefix_slots(run), 0, 0.0)
    parts: dict[Size, list[Tensor]] = {size: [] for size, _ in wanted}
    for chunk in training_chunks(
        wanted, run.seed, settings, held_out=held_out, num_workers=run.num_workers
    ):
        parts[chunk.size].append(torch.from_numpy(chunk.pixels).to(run.device))
    return {size: torch.cat(part) for size, part in parts.items()}


def _latent_pools(
    run: Run, flat: FlatVAE, config: ModelConfig, tokenizer: Tokenizer, training: DiTTraining
) -> dict[Size, LatentPool]:
    """Draw and encode captioned pictures."""
    settings = RowSettings(
        run.state.path, _num_prefix_slots(run), training.num_captions, training.share_instruct
    )
    wanted = _wanted(config, tokenizer, training)
    chunks = training_chunks(wanted, run.seed, settings, num_workers=run.num_workers)
    return encode_chunks(flat, chunks, run.device)


def _wanted(
    config: ModelConfig, tokenizer: Tokenizer, training: DiTTraining | EditTraining
) -> list[tuple[Size, int]]:
    numbers = {SQUARE: training.num_squares} | dict.fromkeys(NAMED_SIZES, training.num_named)
    sizes = [(bucket.height, bucket.width) for bucket in supported_sizes(tokenizer, config)]
    wanted = [(size, numbers.get(size, training.num_other)) for size in sizes]
    return [(size, num) for size, num in wanted if num]


def _num_prefix_slots(run: Run) -> int:
    """What the largest image, the square, leaves of a row."""
    return run.preset.shape.sequence_slots - 1 - SQUARE[0] * SQUARE[1] // 256


def _draw_captions(run: Run, sampler: Sampler) -> None:
    """Draw held-out captions of every family, to look at."""
    num = run.preset.num_shown
    each = -(-num // len(FAMILIES))
    found = [c.text for f in FAMILIES for c in evaluation_captions(f, each, seed=run.seed)]
    captions = found[:num]
    save_sheet(list(sampler.draw(captions, SQUARE, run.seed)), run.state.path / "sheet.png", 6)
    (run.state.path / "sheet.txt").write_text("\n".join(captions) + "\n", encoding="utf-8")


def _draw_edits(run: Run, sampler: Sampler) -> None:
    """Draw held-out edits of every kind, each right of its source, to look at."""
    num = run.preset.num_shown
    each = -(-num // len(JUDGED_EDITS))
    found = [e for kind in JUDGED_EDITS for e in evaluation_edits(kind, each, seed=run.seed)][:num]
    sources = [render(one.edit.source) for one in found]
    pictures = sampler.edit([one.text for one in found], sources, run.seed)
    pairs = chain.from_iterable(zip(sources, pictures, strict=True))
    save_sheet(list(pairs), run.state.path / "edits.png", 8)
    texts = "\n".join(one.text for one in found)
    (run.state.path / "edits.txt").write_text(texts + "\n", encoding="utf-8")
