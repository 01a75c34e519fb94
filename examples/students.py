"""Steps that several recipes share: train a model, and write the text that it teaches its student."""

from types import SimpleNamespace

from corpora import Corpus
from steps import Recipe

RATE = "--lr 2e-3 --warmup-updates 200"


def train(
    run: Recipe, v: SimpleNamespace, data: str, folder: str, seed: int, model: str, updates: int, rate: str = RATE
) -> None:
    """Train a model on the dataset `data`, and average its last checkpoints as `folder`/averaged.pt."""
    run(
        f"nmt-train {data} --save-dir {folder}/checkpoints --seed {seed} {model} --precision {v.PRECISION} "
        f"--batch-tokens 2048 --max-tokens 1024 --lr-schedule linear {rate} "
        f"--max-updates {updates} --save-minutes 0 --validate-every {v.VALIDATE_EVERY} --keep-last 3",
        machine=v.ON_DEVICE,
    )
    run(f"nmt-average {folder}/checkpoints --last 3 --output {folder}/averaged.pt")


def teach(run: Recipe, v: SimpleNamespace, corpus: Corpus, text: str, data: str, folder: str) -> str:
    """Translate the training text with `folder`/teacher. Returns the dataset of the translations for a student.

    `data` is the dataset of the teacher.
    """
    source, target, taught = corpus.source, corpus.target, f"{folder}/taught"
    run(
        f"nmt-generate --checkpoint {folder}/teacher/averaged.pt --input {text}/train.{source}.gz --beam 5 "
        f"--nbest {v.NBEST} --precision fp32 --format jsonl --resume --output {taught}/nbest.jsonl"
    )
    run(
        f"python -m pairs {taught}/nbest.jsonl {taught}/train.{source} {taught}/train.{target}",
        *(f"{taught}/train.{side}" for side in (source, target)),
    )
    run(
        f"nmt-preprocess -s {source} -t {target} --trainpref {taught}/train {corpus.held_out(text)} "
        f"--destdir {taught}/data-bin --vocab-from {data}"
    )
    return f"{taught}/data-bin"
