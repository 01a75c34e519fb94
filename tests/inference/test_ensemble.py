"""Ensembles: the mean of probabilities, in search and in scoring, of models that have the same vocabularies."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from commands import Run
from in_tensors import InTensors, search
from prefix_models import with_lengths

from nmtkit import Translator
from nmtkit.checkpoint import Checkpoint, save_checkpoint
from nmtkit.decoding.config import EngineConfig, SearchConfig
from nmtkit.decoding.forced import score
from nmtkit.errors import UserError
from nmtkit.inference.backends import torch_backend
from nmtkit.inference.ensemble import Ensemble
from nmtkit.text.tokenizer import SpaceTokenizer
from nmtkit.text.vocabulary import BOS, EOS, SPECIALS, Vocabulary

MakeCheckpoint = Callable[..., Checkpoint]
ENGINE = EngineConfig(device="cpu", precision="fp32")
LINES = ["the dog runs", "", "a cat", "die katze läuft"]


@torch.inference_mode()
def test_probabilities_are_averaged(make_checkpoint: MakeCheckpoint) -> None:
    models = [make_checkpoint(seed).build_model() for seed in (1, 2, 3)]
    ensemble = InTensors(Ensemble([torch_backend(model) for model in models]))
    src, tgt_in = torch.tensor([[7, 8, 9, EOS]]), torch.tensor([[BOS, 11, 12]])
    expected = torch.stack([model(*with_lengths(src), tgt_in).softmax(-1) for model in models]).mean(0)
    scores = ensemble.score(*with_lengths(src), torch.tensor([[11, 12, EOS]]), torch.tensor([3]))
    assert torch.allclose(scores[0].exp(), expected[0, range(3), [11, 12, EOS]], atol=1e-6)
    state = ensemble.start(ensemble.encode(*with_lengths(src)))
    for position, token in enumerate(tgt_in[0]):
        step = ensemble.step(token.unsqueeze(0), state)
        assert torch.allclose(step.exp(), expected[:, position], atol=1e-6)


def test_scoring_with_an_ensemble_equals_the_scores_of_its_search(make_checkpoint: MakeCheckpoint) -> None:
    ensemble = Ensemble([torch_backend(make_checkpoint(seed).build_model()) for seed in (1, 2)])
    src = torch.tensor([[7, 8, 9, EOS], [5, EOS, 0, 0]])
    config = SearchConfig(beam=3, nbest=3, max_len_b=3)
    for row, found in zip(src, search(ensemble, *with_lengths(src), config), strict=True):
        for hypothesis in found:
            (scored,) = score(ensemble, [row[row != 0].tolist()], [hypothesis.ids], config)
            assert hypothesis.token_log_probs == pytest.approx(scored.token_log_probs, abs=1e-5)
            assert hypothesis.score == pytest.approx(scored.score, abs=1e-5)


def test_an_ensemble_has_the_shortest_length_limit_of_its_models(make_checkpoint: MakeCheckpoint) -> None:
    models = [
        torch_backend(make_checkpoint(seed, positions="learned", max_positions=positions).build_model())
        for seed, positions in enumerate((12, 9, 15), 1)
    ]
    assert Ensemble(models).longest_sequence == 8


def test_an_ensemble_with_different_vocabularies_is_refused(make_checkpoint: MakeCheckpoint) -> None:
    one = make_checkpoint(1)
    words = SpaceTokenizer(Vocabulary([*SPECIALS, *(f"w{n}" for n in range(len(one.source.vocab) - 4))]))
    with pytest.raises(UserError, match="checkpoint 2 differs, piece 4 of its source vocabulary is 'w0'"):
        Translator.of([one, replace(make_checkpoint(2), source=words, target=words)], ENGINE)


def test_an_ensemble_with_different_languages_is_refused(make_checkpoint: MakeCheckpoint) -> None:
    one, back = make_checkpoint(1), replace(make_checkpoint(2), source_language="de", target_language="en")
    with pytest.raises(UserError, match="checkpoint 2 translates de-en, not en-de"):
        Translator.of([one, back], ENGINE)


def test_workers_also_use_several_checkpoints_as_an_ensemble(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, run_here: Run
) -> None:
    paths = [tmp_path / f"{seed}.pt" for seed in (1, 2)]
    for seed, path in enumerate(paths, 1):
        save_checkpoint(path, make_checkpoint(seed))
    expected = Translator.from_checkpoint(*paths, device="cpu", precision="fp32").translate(LINES, beam=2, max_len_b=3)
    text = "".join(f"{line}\n" for line in LINES).encode()
    both = ("--checkpoint", paths[0], "--checkpoint", paths[1], "--beam", 2, "--max-len-b", 3)
    for workers in (1, 2):
        done = run_here(
            "nmt-generate", *both, "--device", "cpu", "--precision", "fp32", "--workers", workers, input=text
        )
        assert done.stdout.decode().split("\n")[:-1] == expected, done.stderr.decode()
