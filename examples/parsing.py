"""The paper's Table 4: English constituency parsing as translation, from trees to labeled F1.

TREEBANK_DIR contains train.mrg and dev.mrg, plain or .gz; EXTRA names files with trees of a parser, for the
semi-supervised setting; SIZE=paper is the paper's model; PART=test parses test.mrg instead of dev.mrg.
"""

from pathlib import Path
from shlex import quote

from steps import Recipe
from variables import variables

v = variables(
    TREEBANK_DIR="", EXTRA="", SIZE=("small", "paper"), PART="dev", UPDATES="", VALIDATE_EVERY="", NBEST="", BEAM=21,
    AVERAGED=5, LENGTH_PENALTY="0.3", ON_DEVICE="",
)  # fmt: skip
if v.SIZE == "paper":
    model = "--encoder-layers 4 --decoder-layers 4 --d-model 1024 --share-embeddings none --attention-dropout 0.2"
    batches = "--batch-tokens 25000 --max-tokens 4096 --lr-schedule paper --lr-scale 0.5 --warmup-updates 16000"
    updates, every, nbest = v.UPDATES or 100000, v.VALIDATE_EVERY or 1000, v.NBEST or 1
else:
    model = "--arch transformer_tiny --d-ff 512 --norm pre"
    batches = "--batch-tokens 1024 --max-tokens 1024 --lr-schedule linear --lr 2e-3 --warmup-updates 300"
    updates, every, nbest = (
        v.UPDATES or 5000,
        v.VALIDATE_EVERY or 250,
        v.NBEST or v.BEAM,
    )  # the hypothesis that fits the words best is used

with Recipe("parsing", v.WORK, "semi-supervised" if v.EXTRA else "treebank") as run:
    trees = {}
    for split in dict.fromkeys(("train", "dev", v.PART)):
        folder = Path(v.TREEBANK_DIR or run.work / "trees")
        name = f"{split}.mrg" if (folder / f"{split}.mrg").exists() else f"{split}.mrg.gz"
        trees[split] = f"trees/{name}"
        source = f"{folder}/{name}" if v.TREEBANK_DIR else ""
        run.file(trees[split], source, "set TREEBANK_DIR to the folder of the treebank, see examples/parsing/README.md")
    if v.EXTRA:
        files = " ".join(quote(str(Path(name).absolute())) for name in v.EXTRA.split())
        run(f"gzip -cdf {files} > trees/extra.mrg")
        trees["extra"] = "trees/extra.mrg"
    training = [split for split in ("train", "extra") if split in trees]

    known_words = 32000 if v.EXTRA else 16000
    run(f"python -m lexicon {known_words} {' '.join(trees[split] for split in training)} > lexicon.txt")
    for split, file in trees.items():
        texts = [f"text/{split}.{ending}" for ending in ("txt", "words", "tree")]
        run(f"python -m linearize lexicon.txt text/{split} {file}", *texts)
    prefixes = " ".join(f"--trainpref text/{split}" for split in training)
    run(
        f"nmt-preprocess -s words -t tree --destdir data-bin {prefixes} "
        "--validpref text/dev --testpref text/dev --tokenizer space --separate-vocab --max-length 512"
    )
    run(
        f"nmt-train data-bin --save-dir {v.SIZE}/checkpoints {model} --dropout 0.2 {batches} "
        f"--max-updates {updates} --validate-every {every} --save-minutes 0",
        resumable=f"--keep-last {v.AVERAGED}",
        machine=v.ON_DEVICE,
    )
    run(f"nmt-average {v.SIZE}/checkpoints --last {v.AVERAGED} --output {v.SIZE}/averaged.pt")
    parsed = f"{v.SIZE}/{v.PART}"
    run(
        f"nmt-generate --checkpoint {v.SIZE}/averaged.pt --input text/{v.PART}.words --output {parsed}.tree "
        f"--beam {v.BEAM} --length-penalty {v.LENGTH_PENALTY} --max-len-a 1 --max-len-b 300 --nbest {nbest}"
    )
    run(f"python -m restore lexicon.txt text/{v.PART}.txt {parsed}.tree {nbest} > {parsed}.trees")
    run(f"python -m evalb {trees[v.PART]} {parsed}.trees > {parsed}.f1")
    run.show(f"{parsed}.f1")
