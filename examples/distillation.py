"""Distillation: a student learns the translations of its teacher, and is several times as fast on a CPU.

The plain model has the student's size, and learns the references. The student's text is NBEST times as long, so the
student needs more updates and less dropout.
"""

from corpora import CORPORA
from steps import Recipe
from students import teach, train
from variables import variables

v = variables(
    MULTI30K_DIR="", TANAKA_DIR="", CORPORA=list(CORPORA), SEEDS=[1, 2, 3], UPDATES=3000, NBEST=4,
    VALIDATE_EVERY=250, VOCAB_SIZE=6000, PRECISION="fp32", ON_DEVICE="",
)  # fmt: skip
small = "--arch transformer_small --d-ff 512 --norm pre"
deep = f"{small} --encoder-layers 6 --decoder-layers 2"

with Recipe("distillation", v.WORK) as run:
    for name in v.CORPORA:  # report a missing text before training
        CORPORA[name].fetch(run, v.MULTI30K_DIR if name == "multi30k" else v.TANAKA_DIR, f"{name}/text")
    for name in v.CORPORA:
        corpus, text, data = CORPORA[name], f"{name}/text", f"{name}/data-bin"
        source, target = corpus.source, corpus.target
        run(f"nmt-preprocess {corpus.prefixes(text)} --destdir {data} --vocab-size {v.VOCAB_SIZE} {corpus.options}")
        for seed in v.SEEDS:
            folder = f"{name}/seed-{seed}"
            train(run, v, data, f"{folder}/teacher", seed, f"{small} --dropout 0.3", v.UPDATES)
            train(run, v, data, f"{folder}/plain", seed, f"{deep} --dropout 0.3", v.UPDATES)
            taught = teach(run, v, corpus, text, data, folder)
            train(run, v, taught, f"{folder}/student", seed, f"{deep} --dropout 0.1", 2 * v.UPDATES)
            run(
                f"nmt-export {folder}/student/averaged.pt --to shortlist --dataset {taught} "
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
