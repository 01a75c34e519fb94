"""Table 3 of the paper, row by row: variations of the base model, scaled down by WIDTH and DEPTH.

More UPDATES continue finished rows, because the paper's schedule does not depend on their number. CORPUS is a folder
with both sides of TRAIN and VALID; by default Multi30k is downloaded. POSITIONS=1 trains base and learned positions,
also on pairs of at most SHORT tokens per side, and tests them by length.
"""

import sys

from corpora import MULTI30K
from steps import EXAMPLES, Recipe
from variables import variables

sys.path.append(str(EXAMPLES / "table3"))
from variations import ROWS, options

v = variables(
    CORPUS="", TRAIN="train", VALID="val", SOURCE="en", TARGET="de", ENDING=".gz", POSITIONS=0, SHORT=15,
    UPDATES=3000, WIDTH=4, DEPTH=2, ROWS="base a_h1 c_n2 c_n8 d_dropout0 e_learned", SEEDS=[1, 2, 3],
    VOCAB_SIZE=4000, BATCH_TOKENS=4096, WARMUP=1000, LR_SCALE="1", VALIDATE_EVERY=250, PRECISION="fp32",
    ON_DEVICE="",
)  # fmt: skip
rows = ["base", "e_learned"] if v.POSITIONS else v.ROWS.split()
if unknown := set(rows) - ROWS.keys():
    sys.exit(f"ROWS={v.ROWS}: no row {min(unknown)}: use {', '.join(ROWS)}")

with Recipe("table3", v.WORK) as run:

    def train(dataset: str, folder: str, row: str, seed: int) -> None:
        run(
            f"nmt-train {dataset} --save-dir {folder}/checkpoints {options(row, v.WIDTH, v.DEPTH)} "
            f"--precision {v.PRECISION} --batch-tokens {v.BATCH_TOKENS} --max-tokens 2048 --warmup-updates {v.WARMUP} "
            f"--lr-scale {v.LR_SCALE} --validate-every {v.VALIDATE_EVERY} --save-minutes 0 --keep-last 1 --keep-best 0 "
            f"--seed {seed}",
            resumable=f"--max-updates {v.UPDATES}",
            machine=v.ON_DEVICE,
        )
        run(f"nmt-average {folder}/checkpoints --last 1 --output {folder}/averaged.pt")
        run(
            f"nmt-generate --checkpoint {folder}/averaged.pt --input {valid}.{v.SOURCE}{v.ENDING} "
            f"--output {folder}/translation.{v.TARGET} --beam 4 --length-penalty 0.6 --precision fp32 "
            f"--reference {valid}.{v.TARGET}{v.ENDING} --sacrebleu 2>&1 | tee {folder}/scores.txt"
        )

    train_texts, valid = v.TRAIN.split(), f"text/{v.VALID}"
    if v.CORPUS:
        for name in (f"{split}.{side}{v.ENDING}" for split in (*train_texts, v.VALID) for side in (v.SOURCE, v.TARGET)):
            run.file(f"text/{name}", f"{v.CORPUS}/{name}", "see CORPUS in examples/table3/README.md")
    else:
        MULTI30K.fetch(run, "", "text", ("train", "val"))
    prefixes = " ".join(f"--trainpref text/{split}" for split in train_texts)
    texts = f"-s {v.SOURCE} -t {v.TARGET} {prefixes} --validpref {valid}"  # the paper's table has no test set
    run(
        f"nmt-preprocess {texts} --destdir data-bin --vocab-size {v.VOCAB_SIZE} --character-coverage 1 "
        "--normalization nmt_nfkc --no-byte-fallback --max-length 250"
    )
    seeds = v.SEEDS[:1] if v.POSITIONS else v.SEEDS
    folders = {f"seed-{seed}/{row}": (row, seed) for seed in seeds for row in rows}
    for folder, (row, seed) in folders.items():
        train("data-bin", folder, row, seed)
    if v.POSITIONS:
        short = f"short-{v.SHORT}"
        run(f"nmt-preprocess {texts} --destdir {short}/data-bin --vocab-from data-bin --max-length {v.SHORT}")
        for folder, (row, seed) in folders.items():
            train(f"{short}/data-bin", f"{short}/{folder}", row, seed)
        sinusoids, learned = folders
        run(
            f"python -m by_length {valid}.{v.SOURCE}{v.ENDING} {valid}.{v.TARGET}{v.ENDING} {v.TARGET} {v.SHORT} "
            f'sinusoids={short}/{sinusoids} learned={short}/{learned} "sinusoids, all lengths={sinusoids}" '
            f'"learned, all lengths={learned}" > {short}/by_length.md'
        )
        run.show(f"{short}/by_length.md")
    else:
        run(f"python -m results {' '.join(folders)} > results.csv")
        run("python -m compare_rows results.csv > report.md")
        run.show("report.md")
