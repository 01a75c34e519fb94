"""Training and inference on a fake GPU: they never mix devices, and results are the same as on the CPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import TINY, Run
from fake_gpu import CPU, GPU, fake_gpu
from packed_attention import attend_within_sentences
from searches import ROWS, WAYS, close, padded
from torch.testing import assert_close
from training_runs import assert_near, metrics

from nmtkit.checkpoint import Checkpoint
from nmtkit.decoding.config import SearchConfig
from nmtkit.decoding.forced import all_heads, score, with_attention
from nmtkit.decoding.rules import Constraints
from nmtkit.decoding.search import search
from nmtkit.inference.backends import torch_backend
from nmtkit.inference.ensemble import Ensemble
from nmtkit.model import packed_attention as packing_of_model
from nmtkit.model.config import DeviceConfig, TransformerConfig
from nmtkit.training.config import (
    BatchConfig,
    CheckpointConfig,
    ComputeConfig,
    OptimizerConfig,
    StopConfig,
    TrainingOptions,
)
from nmtkit.training.ranks import Ranks
from nmtkit.training.trainer import Trainer
from nmtkit.training.training_data import TrainingData

MakeCheckpoint = Callable[..., Checkpoint]


@pytest.mark.parametrize("way", WAYS)
def test_every_search_strategy_gives_the_same_results_on_a_fake_gpu_as_on_a_cpu(
    way: str, make_checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, banned = SearchConfig(max_len_a=1, max_len_b=6, **WAYS[way]), ((11, 12), (13,))  # type: ignore[arg-type]
    checkpoint = make_checkpoint(norm="pre")
    expected = search(torch_backend(checkpoint.build_model()), *padded(), config, banned=banned)
    with fake_gpu(monkeypatch):
        model = checkpoint.build_model().to(GPU)
        assert {parameter.device for parameter in model.parameters()} == {GPU}
        assert close(search(torch_backend(model), *padded(), config, banned=banned), expected)


def test_constraints_ensembles_scores_and_attention_on_a_fake_gpu_match_a_cpu(
    make_checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = SearchConfig(beam=3, max_len_a=1, max_len_b=6)
    constraints = [Constraints(prefix=(20, 21)), Constraints(terms=(((7, 8),), ((9,),))), Constraints()]
    checkpoints = [make_checkpoint(seed) for seed in (1, 2)]

    def everything(device: torch.device) -> tuple[Any, ...]:
        models = [torch_backend(checkpoint.build_model().to(device)) for checkpoint in checkpoints]
        found = search(Ensemble(models), *padded(), config, constraints=constraints)
        outputs = [nbest[0].ids for nbest in found]
        scored = [[hypothesis] for hypothesis in score(models[0], ROWS, outputs, config)]
        attended = with_attention(Ensemble(models), ROWS, found, None)
        return found, scored, [nbest[0].attention for nbest in attended], all_heads(models[0], ROWS[0], outputs[0])

    found, scored, attention, heads = everything(CPU)
    with fake_gpu(monkeypatch):
        on_gpu = everything(GPU)
    assert close(on_gpu[0], found)
    assert close(on_gpu[1], scored)
    assert_close(on_gpu[2:], (attention, heads), atol=1e-5, rtol=0)


def test_a_resumed_run_on_a_fake_gpu_ends_like_a_straight_run_on_a_cpu(
    run_here: Run, datasets: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = *TINY, "--dropout", 0, "--adam-eps", 1e-6, "--ema", 0.9, "--clip-norm", 1
    validation = "--validate-every", 4, "--valid-bleu"

    def train(folder: str, updates: int, *device: object) -> Path:
        run = (
            "nmt-train",
            datasets["joined"],
            "--save-dir",
            tmp_path / folder,
            *options,
            *validation,
            "--max-updates",
            updates,
        )
        done = run_here(*run, *device)
        assert done.returncode == 0, done.stderr
        return tmp_path / folder

    straight = train("cpu", 8)
    with fake_gpu(monkeypatch):
        train("gpu", 4, "--device", "cuda")
        resumed = train("gpu", 8, "--device", "cuda")
    assert_near(resumed, straight)
    bleu = [[row["valid_bleu"] for row in metrics(run, "valid")] for run in (straight, resumed)]
    assert bleu[0] == bleu[1]


@pytest.mark.parametrize(
    "options", [("--norm", "pre", "--positions", "learned"), ("--attention-window", 2), ("--packing", "on")]
)
def test_training_and_validation_in_bf16_on_a_fake_gpu_do_not_mix_devices(
    options: tuple[object, ...],
    run_here: Run,
    datasets: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = "nmt-train", datasets["separate"], "--save-dir", tmp_path, *TINY, "--max-updates", 2, "--device", "cuda"
    more = "--attention-dropout", 0.1, "--max-tokens", "auto", "--precision", "auto"
    validation = "--validate-every", 2, "--valid-bleu"
    with fake_gpu(monkeypatch, bf16=True):
        done = run_here(*run, *more, *validation, *options)
    assert done.returncode == 0, done.stderr
    assert b"bfloat16" in done.stderr


@pytest.mark.parametrize("more", [{}, {"clip_norm": 1.0, "ema": 0.9}], ids=["plain", "clipped and averaged"])
@pytest.mark.parametrize(("precision", "packing"), [("fp32", "off"), ("bf16", "off"), ("fp16", "off"), ("bf16", "on")])
def test_the_host_never_waits_for_a_gpu_in_an_update(
    precision: str,
    packing: str,
    more: dict[str, float],
    datasets: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = TrainingOptions(
        model=TransformerConfig(encoder_layers=1, decoder_layers=1, d_model=16, d_ff=24, heads=2),
        batches=BatchConfig(batch_tokens=400, max_tokens=200, packing=packing),
        compute=ComputeConfig(num_workers=0),
        optimizer=OptimizerConfig(**more),  # type: ignore[arg-type]
        stop=StopConfig(max_updates=4),
        checkpoints=CheckpointConfig(save_dir=tmp_path),
        device=DeviceConfig(device="cuda", precision=precision),
    )
    monkeypatch.setattr(packing_of_model, "_kernel_on", lambda device, precision, windowed: attend_within_sentences)
    waits: list[str] = []
    update = Trainer._update
    with fake_gpu(monkeypatch) as gpu:

        def watched(self: Trainer, updates: Any) -> None:
            gpu.waits.clear()
            update(self, updates)
            waits.extend(gpu.waits)

        monkeypatch.setattr(Trainer, "_update", watched)
        trainer = Trainer(TrainingData.open([datasets["joined"]], False, options.batches), options, Ranks(GPU))
        for positions in ("source_positions", "target_positions"):
            trainer.learner.model.get_submodule(positions)(0, 100)  # tables grow with the longest sentence so far
        trainer.fit()
        assert not waits
        assert not trainer.outcomes
        assert gpu.waits  # of the checkpoint at the end
    assert metrics(tmp_path, "train")[-1]["update"] == 4
