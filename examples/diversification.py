"""Data diversification: two models translate the training text, forward and reverse; the final one learns from all.

The forward and the reverse model train for TEACHER_UPDATES updates, the final model for UPDATES.
"""

from corpora import SEGMENTED
from steps import Recipe
from variables import variables

v = variables(
    MULTI30K_BPE_DIR="", SEEDS=[1, 2, 3], VOCAB_SIZE=6000, UPDATES=10000, TEACHER_UPDATES=5000, VALIDATE_EVERY=500,
    PRECISION="fp32", ON_DEVICE="",
)  # fmt: skip
options = (
    f"--arch transformer_tiny --share-embeddings all --norm pre --dropout 0.2 --precision {v.PRECISION} "
    "--batch-tokens 4096 --max-tokens 2048 --lr-schedule linear --lr 4e-3 --warmup-updates 500"
)

with Recipe("diversification", v.WORK) as run:
    SEGMENTED.fetch(run, v.MULTI30K_BPE_DIR)
    for name in (f"{split}.{side}.gz" for split in ("train", "valid", "test.2016") for side in ("en", "de")):
        run(f"gzip -cd text/{name} | sed 's/@@ //g' | gzip -n > joined/{name}")  # remove the subword marks

    def train(dataset: str, folder: str, seed: int, updates: int) -> None:
        run(
            f"nmt-train {dataset} --save-dir {folder}/checkpoints --seed {seed} {options} --max-updates {updates} "
            f"--validate-every {v.VALIDATE_EVERY} --save-minutes 0 --keep-last 5",
            machine=v.ON_DEVICE,
        )
        run(f"nmt-average {folder}/checkpoints --last 5 --output {folder}/averaged.pt")

    def translate(folder: str, source: str, target: str) -> None:
        run(
            f"nmt-generate --checkpoint {folder}/averaged.pt --input joined/train.{source}.gz "
            f"--output {folder}/train.{target} --beam 5 --precision fp32"
        )
        run(f"gzip -cd joined/train.{source}.gz > {folder}/train.{source}")

    own = f"--vocab-size {v.VOCAB_SIZE} --character-coverage 1"
    texts = f"--trainpref joined/train {SEGMENTED.held_out('joined')}"
    run(f"nmt-preprocess -s en -t de {texts} --destdir data-bin {own}")
    run(f"nmt-preprocess -s de -t en {texts} --destdir reverse/data-bin {own}")
    for seed in v.SEEDS:
        train("data-bin", f"seed-{seed}/forward", seed, v.TEACHER_UPDATES)
        train("reverse/data-bin", f"seed-{seed}/reverse", seed, v.TEACHER_UPDATES)
        translate(f"seed-{seed}/forward", "en", "de")
        translate(f"seed-{seed}/reverse", "de", "en")
        run(
            f"nmt-preprocess -s en -t de --destdir seed-{seed}/data-bin --trainpref joined/train "
            f"--trainpref seed-{seed}/forward/train --trainpref seed-{seed}/reverse/train "
            f"{SEGMENTED.held_out('joined')} --vocab-from data-bin --dedup"
        )
        train(f"seed-{seed}/data-bin", f"seed-{seed}", seed, v.UPDATES)
        run(
            f"nmt-generate --checkpoint seed-{seed}/averaged.pt --input joined/test.2016.en.gz "
            f"--output seed-{seed}/translation.de --beam 5 --length-penalty 1.5 --precision fp32 "
            f"--reference joined/test.2016.de.gz --tokenized-bleu 2>&1 | tee seed-{seed}/scores.txt"
        )
    runs = " ".join(f"seed-{seed}" for seed in v.SEEDS)
    run(f"python -m report {runs} --source joined/test.2016.en.gz --reference joined/test.2016.de.gz > report.md")
    run.show("report.md")
