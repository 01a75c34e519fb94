"""Distillation: a student learns the translations of its teacher, and is several times as fast on a CPU.

The plain model has the student's size, and learns the references. The student's text is NBEST times as long, so the
student needs more updates and less dropout.
"""

from corpora import CORPORA
from steps import Recipe
from variables import variables

v = variables(
    MULTI30K_DIR="", TANAKA_DIR="", CORPORA=list(CORPORA), SEEDS=[1, 2, 3], UPDATES=3000, NBEST=4,
    VALIDATE_EVERY=250, VOCAB_SIZE=6000, PRECISION="fp32", ON_DEVICE="",
)  # fmt: skip
small = "--arch transformer_small --d-ff 512 --norm pre"
deep = f"{small} --encoder-layers 6 --decoder-layers 2"

with Recipe("distillation", v.WORK) as run:

    def train(dataset: str, folder: str, seed: int, model: str, updates: int) -> None:
        run(
            f"nmt-train {dataset} --save-dir {folder}/checkpoints --seed {seed} {model} --precision {v.PRECISION} "
            f"--batch-tokens 2048 --max-tokens 1024 --lr-schedule linear --lr 2e-3 --warmup-updates 200 "
            f"--max-updates {updates} --save-minutes 0 --validate-every {v.VALIDATE_EVERY} --keep-last 3",
            machine=v.ON_DEVICE,
        )
        run(f"nmt-average {folder}/checkpoints --last 3 --output {folder}/averaged.pt")

    for name in v.CORPORA:  # report a missing text before training
        CORPORA[name].fetch(run, v.MULTI30K_DIR if name == "multi30k" else v.TANAKA_DIR, f"{name}/text")
    for name in v.CORPORA:
        corpus, text, data = CORPORA[name], f"{name}/text", f"{name}/data-bin"
        source, target = corpus.source, corpus.target
        run(f"nmt-preprocess {corpus.prefixes(text)} --destdir {data} --vocab-size {v.VOCAB_SIZE} {corpus.options}")
        for seed in v.SEEDS:
            folder, taught = f"{name}/seed-{seed}", f"{name}/seed-{seed}/taught"
            train(data, f"{folder}/teacher", seed, f"{small} --dropout 0.3", v.UPDATES)
            train(data, f"{folder}/plain", seed, f"{deep} --dropout 0.3", v.UPDATES)
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
            train(f"{taught}/data-bin", f"{folder}/student", seed, f"{deep} --dropout 0.1", 2 * v.UPDATES)
            run(
                f"nmt-export {folder}/student/averaged.pt --to shortlist --dataset {taught}/data-bin "
                f"--output {folder}/student/shortlist.bin --force"
            )
            run(
                f"python -m measure {folder} {text}/{corpus.test}.{source}.gz {text}/{corpus.test}.{target}.gz "
                f"> {folder}/measures.json"
            )
        measures = " ".join(f"{name}/seed-{seed}/measures.json" for seed in v.SEEDS)
        run(f"python -m compare_students {measures} > {name}/report.md")
    reports = " ".join(f"{name}/report.md" for name in v.CORPORA)
    run(f"tail -n +1 {reports} > report.md")
    run.show("report.md")
