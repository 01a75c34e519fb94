"""Back-translation: a reverse model translates text of the target language into synthetic sources.

In each corpus, the first PAIRS pairs are genuine; the target side of all others is the monolingual text.
"""

from corpora import CORPORA
from steps import Recipe
from variables import variables

MODELS = {
    "genuine": "genuine pairs alone",
    "tagged": "genuine pairs, and tagged back-translations of the monolingual text",
    "all": "genuine pairs of both texts",
}
TAG = "<BT>"

v = variables(
    MULTI30K_DIR="", TANAKA_DIR="", CORPORA=list(CORPORA), SEEDS=[1, 2, 3], MODELS=list(MODELS), PAIRS=10000,
    MIX="1,1", UPDATES=3000, VALIDATE_EVERY=250, VOCAB_SIZE=6000, PRECISION="fp32", ON_DEVICE="",
)  # fmt: skip

with Recipe("backtranslation", v.WORK) as run:

    def train(datasets: str, folder: str, seed: int) -> None:
        run(
            f"nmt-train {datasets} --save-dir {folder}/checkpoints --seed {seed} --arch transformer_small --d-ff 512 "
            f"--norm pre --dropout 0.3 --precision {v.PRECISION} --batch-tokens 2048 --max-tokens 1024 "
            f"--lr-schedule linear --lr 2e-3 --warmup-updates 200 --max-updates {v.UPDATES} --save-minutes 0 "
            f"--validate-every {v.VALIDATE_EVERY} --keep-last 3",
            machine=v.ON_DEVICE,
        )
        run(f"nmt-average {folder}/checkpoints --last 3 --output {folder}/averaged.pt")

    for name in v.CORPORA:  # report a missing text before training
        CORPORA[name].fetch(run, v.MULTI30K_DIR if name == "multi30k" else v.TANAKA_DIR, f"{name}/text")
    for name in v.CORPORA:
        corpus, text, genuine = CORPORA[name], f"{name}/text", f"{name}/genuine"
        source, target, valid = corpus.source, corpus.target, corpus.held_out(f"{name}/text")
        vocabulary = f"--vocab-size {v.VOCAB_SIZE} {corpus.options}"
        for side in (source, target):
            run(f"gzip -cd {text}/train.{side}.gz | awk 'NR <= {v.PAIRS}' > {genuine}/train.{side}")
        run(
            f"nmt-preprocess -s {source} -t {target} --trainpref {genuine}/train {valid} --destdir {genuine}/data-bin "
            f'{vocabulary} --user-symbol "{TAG}"'
        )
        if "tagged" in v.MODELS:
            run(f"gzip -cd {text}/train.{target}.gz | awk 'NR > {v.PAIRS}' > {name}/monolingual.{target}")
            run(
                f"nmt-preprocess -s {target} -t {source} --trainpref {genuine}/train {valid} "
                f"--destdir {name}/reverse/data-bin {vocabulary}"
            )
        if "all" in v.MODELS:
            run(f"nmt-preprocess {corpus.prefixes(text)} --destdir {name}/all/data-bin --vocab-from {genuine}/data-bin")
        for seed in v.SEEDS:
            folder = f"{name}/seed-{seed}"
            datasets = {"genuine": f"{genuine}/data-bin", "all": f"{name}/all/data-bin"}
            if "tagged" in v.MODELS:
                train(f"{name}/reverse/data-bin", f"{folder}/reverse", seed)
                run(
                    f"nmt-generate --checkpoint {folder}/reverse/averaged.pt --input {name}/monolingual.{target} "
                    f"--sampling --top-k 10 --seed {seed} --precision fp32 --resume "
                    f"--output {folder}/synthetic/train.{source}"
                )
                run(
                    f"cp {name}/monolingual.{target} {folder}/synthetic/train.{target}",
                    f"{folder}/synthetic/train.{target}",
                )
                run(
                    f"nmt-preprocess -s {source} -t {target} --trainpref {folder}/synthetic/train "
                    f'--source-tag "{TAG}" --vocab-from {genuine}/data-bin --destdir {folder}/synthetic/data-bin'
                )
                datasets["tagged"] = f"{genuine}/data-bin {folder}/synthetic/data-bin --mix {v.MIX}"
            for model in v.MODELS:
                train(datasets[model], f"{folder}/{model}", seed)
                run(
                    f"nmt-generate --checkpoint {folder}/{model}/averaged.pt --input {text}/{corpus.test}.{source}.gz "
                    f"--output {folder}/{model}/translation.{target} --beam 5 --precision fp32 "
                    f"--reference {text}/{corpus.test}.{target}.gz --sacrebleu 2>&1 | tee {folder}/{model}/scores.txt"
                )
        runs = {model: " ".join(f"{name}/seed-{seed}/{model}" for seed in v.SEEDS) for model in v.MODELS}
        compared = " ".join(f'"{MODELS[model]}={folders}"' for model, folders in runs.items())
        run(f"python -m compare {compared} > {name}/report.md")
    reports = " ".join(f"{name}/report.md" for name in v.CORPORA)
    run(f"tail -n +1 {reports} > report.md")
    run.show("report.md")
