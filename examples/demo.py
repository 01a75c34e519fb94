"""The demonstration: from a constructed language pair to a scored translation, in about three minutes."""

import re
import sys

from steps import EXAMPLES, Recipe
from variables import variables

sys.path.append(str(EXAMPLES / "demo"))
from make_corpus import gloss, lexicon

v = variables(UPDATES=700)
splits = ("train", "valid", "test")

with Recipe("demo", v.WORK) as run:
    run("python -m make_corpus text", *(f"text/{split}.{side}" for split in splits for side in ("en", "rv")))
    run(
        "nmt-preprocess -s en -t rv --trainpref text/train --validpref text/valid --testpref text/test "
        "--destdir data-bin --vocab-size 500 --character-coverage 1"
    )
    run(
        "nmt-train data-bin --save-dir checkpoints --arch transformer_tiny --encoder-layers 2 --decoder-layers 2 "
        "--norm pre --batch-tokens 1500 --lr-schedule cosine --lr 3e-3 --warmup-updates 200 --clip-norm 1 "
        f"--dropout 0.05 --max-updates {v.UPDATES} --validate-every 175 --save-minutes 0 --save-every 25 --keep-last 4 "
        "--log-every 50"
    )
    run("nmt-average checkpoints --last 4 --output averaged.pt")
    run(
        "nmt-generate --checkpoint averaged.pt --input text/test.en --output translation.rv --reference text/test.rv "
        "--sacrebleu 2>&1 | tee scores.txt"
    )
    if run.lists_only:
        sys.exit()

    english, translation, reference = map(run.lines, ("text/test.en", "translation.rv", "text/test.rv"))
    forms = lexicon()
    for source, output, expected in list(zip(english, translation, reference, strict=True))[:5]:
        print(f"\nEnglish       {source}\ntranslation   {output}\nword by word  {gloss(output, forms)}")
        print(f"reference     {expected}")
    print(f"\nThe {len(english)} sentences of the unseen test set:")
    run.show("scores.txt", "BLEU", "chrF")
    found = re.search(r"^BLEU.* = ([\d.]+) ", "\n".join(run.lines("scores.txt")), re.MULTILINE)
    if v.UPDATES >= 700 and not (found and float(found[1]) >= 95):
        sys.exit("below 95 BLEU: something is broken")
