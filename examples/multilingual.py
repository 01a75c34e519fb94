"""One model for four directions, English-German and English-Japanese both ways, and one model for each direction.

The multilingual model trains for UPDATES updates, and each model of one direction for SINGLE_UPDATES, by default
UPDATES / directions, so that the total cost is equal.
"""

from corpora import MULTI30K, TANAKA
from steps import Recipe
from variables import variables

DIRECTIONS = ["en-de", "de-en", "en-ja", "ja-en"]
v = variables(
    MULTI30K_DIR="", TANAKA_DIR="", DIRECTIONS=DIRECTIONS, SEEDS=[1], UPDATES=8000, SINGLE_UPDATES=0,
    VOCAB_SIZE=8000, MIX_TEMPERATURE="5", VALIDATE_EVERY=250, PRECISION="fp32", ON_DEVICE="--threads 1",
)  # fmt: skip
corpora = {direction: TANAKA if "ja" in direction else MULTI30K for direction in v.DIRECTIONS}
sides = {direction: direction.split("-") for direction in v.DIRECTIONS}
tags = {direction: f'"<2{target}>"' for direction, (_, target) in sides.items()}

with Recipe("multilingual", v.WORK) as run:

    def train(datasets: str, folder: str, seed: int, updates: int) -> None:
        run(
            f"nmt-train {datasets} --save-dir {folder}/checkpoints --seed {seed} --arch transformer_small --d-ff 512 "
            f"--norm pre --dropout 0.3 --precision {v.PRECISION} --batch-tokens 2048 --max-tokens 1024 "
            f"--lr-schedule linear --lr 2e-3 --warmup-updates 200 --max-updates {updates} "
            f"--validate-every {v.VALIDATE_EVERY} --save-minutes 0 --keep-last 3",
            machine=v.ON_DEVICE,
        )
        run(f"nmt-average {folder}/checkpoints --last 3 --output {folder}/averaged.pt")

    def score(model: str, direction: str, folder: str) -> None:
        (source, target), test = sides[direction], f"{texts[direction]}/{corpora[direction].test}"
        run(
            f"nmt-generate --checkpoint {model}/averaged.pt --input {test}.{source}.gz "
            f"--output {folder}/translation.{target} --beam 4 --precision fp32 --source-tag {tags[direction]} "
            f"--reference {test}.{target}.gz --target-lang {target} --sacrebleu 2>&1 | tee {folder}/scores.txt"
        )

    texts = {}
    for direction, corpus in corpora.items():
        texts[direction] = "tanaka" if corpus is TANAKA else "multi30k"
        corpus.fetch(run, v.TANAKA_DIR if corpus is TANAKA else v.MULTI30K_DIR, texts[direction])
    for number, side in enumerate(("source", "target")):
        files = " ".join(f"{texts[direction]}/train.{both[number]}.gz" for direction, both in sides.items())
        run(f"for text in {files}; do gzip -cd $text | awk 1; done > all/train.{side}")
    run(
        f"nmt-preprocess -s source -t target --trainpref all/train --destdir all/data-bin --vocab-size {v.VOCAB_SIZE} "
        f"--character-coverage 1 {' '.join(f'--user-symbol {tag}' for tag in sorted(set(tags.values())))}"
    )
    for direction, (source, target) in sides.items():
        text, corpus = texts[direction], corpora[direction]
        run(
            f"nmt-preprocess -s {source} -t {target} --destdir {direction}/data-bin --trainpref {text}/train "
            f"{corpus.held_out(text)} --vocab-from all/data-bin --source-tag {tags[direction]}"
        )
    datasets = " ".join(f"{direction}/data-bin" for direction in v.DIRECTIONS)
    for seed in v.SEEDS:
        train(f"{datasets} --mix-temperature {v.MIX_TEMPERATURE}", f"all/seed-{seed}", seed, v.UPDATES)
        for direction in v.DIRECTIONS:
            score(f"all/seed-{seed}", direction, f"all/seed-{seed}/{direction}")
            single = v.SINGLE_UPDATES or v.UPDATES // len(v.DIRECTIONS)
            train(f"{direction}/data-bin", f"{direction}/seed-{seed}", seed, single)
            score(f"{direction}/seed-{seed}", direction, f"{direction}/seed-{seed}")
    for direction in v.DIRECTIONS:
        alone = " ".join(f"{direction}/seed-{seed}" for seed in v.SEEDS)
        together = " ".join(f"all/seed-{seed}/{direction}" for seed in v.SEEDS)
        run(f'python -m compare "a model of its own={alone}" "one model={together}" > {direction}/report.md')
    run(f"tail -n +1 {' '.join(f'{direction}/report.md' for direction in v.DIRECTIONS)} > report.md")
    run.show("report.md")
