"""From a corpus to a page that translates offline: a teacher, its students, and the students in the browser.

The engine of the page is an npm package. Without npm, give the folder of the unpacked package as ENGINE_DIR.
"""

from corpora import MULTI30K as CORPUS
from steps import Recipe
from students import teach, train
from variables import variables

v = variables(
    MULTI30K_DIR="", ENGINE_DIR="", SEEDS=[1, 2, 3], UPDATES=2400, STUDENT_UPDATES=3000, NBEST=4, VALIDATE_EVERY=100,
    VOCAB_SIZE=6000, PRECISION="fp32", ON_DEVICE="", STUDENT="--arch student_tiny",
)  # fmt: skip
TEACHER = "--arch transformer_small --d-ff 512 --norm pre --dropout 0.3"
RATE = "--optimizer muon --lr 4e-3 --warmup-updates 120"
PACKAGE = "browsermt-bergamot-translator-0.4.9.tgz"

with Recipe("browser-student", v.WORK) as run:
    CORPUS.fetch(run, v.MULTI30K_DIR)
    source, target = (f"text/{CORPUS.test}.{side}.gz" for side in (CORPUS.source, CORPUS.target))
    if v.ENGINE_DIR:
        run(f"mkdir -p engine && cp -r {v.ENGINE_DIR}/worker engine", "engine/worker")
    else:
        run(
            "mkdir -p engine && cd engine && npm pack --silent @browsermt/bergamot-translator@0.4.9 "
            f"&& tar xf {PACKAGE} package/worker --strip-components 1",
            "engine/worker",
        )
    run(f"nmt-preprocess {CORPUS.prefixes()} --destdir data-bin --vocab-size {v.VOCAB_SIZE} {CORPUS.options}")
    train(run, v, "data-bin", "shared/teacher", 1, TEACHER, v.UPDATES, RATE)
    taught = teach(run, v, CORPUS, "text", "data-bin", "shared")
    # Without alignments, so deep a post-norm model had not learned attention after 600 updates. The last layer of the
    # teacher aligns pieces best.
    aligned = "shared/taught/train.align"
    run(
        f"nmt-generate --checkpoint shared/teacher/averaged.pt --input shared/taught/train.{CORPUS.source} "
        f"--score shared/taught/train.{CORPUS.target} --alignment-layer 3 --format pharaoh-pieces "
        f"--output {aligned}"
    )
    model = f"{v.STUDENT} --dropout 0.1 --guided-alignment {aligned}"
    for seed in v.SEEDS:
        folder = f"seed-{seed}"
        student = f"{folder}/student"
        train(run, v, taught, student, seed, model, v.STUDENT_UPDATES, RATE)
        averaged, lists = f"{student}/averaged.pt", f"{student}/shortlist.bin"
        run(f"nmt-export {averaged} --to shortlist --dataset {taught} --output {lists} --force")
        run(f"nmt-export {averaged} --to int8 --output {student}/int8.pt --force")
        run(f"nmt-export {averaged} --to bergamot --output {folder}/browser-fp32 --force")
        run(
            f"nmt-export {averaged} --to bergamot --shortlist {lists} --int8 text/{CORPUS.valid}.{CORPUS.source}.gz "
            f"--page --output {folder}/browser-int8 --force"
        )
        run(f"python -m measure_browser shared/teacher/averaged.pt {folder} {source} {target} > {folder}/measures.json")
        page = f"{folder}/page"
        run(f"rm -rf {page} && cp -r {folder}/browser-int8 {page} && cp -r engine/worker {page}", page)
    run(f"python -m compare_browser {' '.join(f'seed-{seed}/measures.json' for seed in v.SEEDS)} > report.md")
    run.show("report.md")
