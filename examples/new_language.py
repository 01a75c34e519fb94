"""A new language for a multilingual model: LoRA, full fine-tuning with and without old text, and a smaller vocabulary.

A small M2M-100 first learns English and German in both directions from all but PAIRS pairs of Multi30k. The new
language is German in a spelling of its own, with PAIRS pairs of text.
"""

from corpora import MULTI30K
from steps import EXAMPLES, Recipe
from variables import variables

v = variables(
    MULTI30K_DIR="", PAIRS=5000, VOCAB_SIZE=8000, BASE_UPDATES=1200, UPDATES=300, VALIDATE_EVERY=100, PRECISION="fp32",
    ON_DEVICE="",
)  # fmt: skip
SPELLING = "[Ss]ch:ʃ ch:χ ck:κ ei:ɐ ie:ɨ ä:ɛ ö:ø ü:ʏ ß:ʂ z:ʦ w:ʋ"
spell = f"sed '{';'.join(f's:{pair}:g' for pair in SPELLING.split())}'"
TEXTS = (
    *(("train", f"NR <= {v.PAIRS}", "train"), ("train", f"NR > {v.PAIRS}", "base")),
    *(("val", "1", "valid"), ("test_2016_flickr", "1", "test")),
)
METHODS = {  # data and options of nmt-train
    "lora": f"new/data-bin --config {EXAMPLES}/new-language/lora.toml --lr 5e-4",
    "full": "new/data-bin --lr 5e-4",
    "mixed": "new/data-bin old/data-bin --mix 2,1 --lr 5e-4",
}

with Recipe("new-language", v.WORK) as run:

    def preprocess(source: str, target: str, text: str, model: str, folder: str) -> None:
        texts = f"--trainpref text/{text} --validpref text/valid"
        run(f"nmt-preprocess -s {source} -t {target} {texts} --vocab-from {model} --destdir {folder}")

    def train(data: str, init: str, folder: str, updates: int) -> None:
        run(
            f"nmt-train {data} --init-from {init} --save-dir {folder}/checkpoints --precision {v.PRECISION} "
            f"--batch-tokens 2048 --max-tokens 1024 --warmup-updates 100 --max-updates {updates} "
            f"--validate-every {v.VALIDATE_EVERY} --save-minutes 0 --keep-last 2",
            machine=v.ON_DEVICE,
        )
        run(f"nmt-average {folder}/checkpoints --last 2 --output {folder}/averaged.pt")

    def score(model: str, folder: str) -> None:
        for language in ("xx", "de"):
            run(
                f"nmt-generate --checkpoint {model} -s en -t {language} --input text/test.en --beam 4 "
                f"--output {folder}/{language}/translation.{language} --precision fp32 "
                f"--reference text/test.{language} --sacrebleu 2>&1 | tee {folder}/{language}/scores.txt"
            )

    # the text of the new language, and text of the old one without these pairs
    MULTI30K.fetch(run, v.MULTI30K_DIR, "multi30k")
    for name, lines, split in TEXTS:
        for side in ("en", "de"):
            run(f"gzip -cd multi30k/{name}.{side}.gz | awk '{lines}' > text/{split}.{side}")
        run(f"{spell} text/{split}.de > text/{split}.xx")

    # the model that you have: here a small one, in the format of M2M-100
    pieces = f"--vocab-size {v.VOCAB_SIZE} --character-coverage 1 --no-byte-fallback"
    run(f"nmt-preprocess -s en -t de --trainpref text/base --destdir pieces {pieces}")
    run("python -m random_m2m pieces random.pt", "random.pt")
    preprocess("en", "de", "base", "random.pt", "base/en-de")
    preprocess("de", "en", "base", "random.pt", "base/de-en")
    train("base/en-de base/de-en --lr-schedule linear --lr 2e-3", "random.pt", "base", v.BASE_UPDATES)
    run("nmt-export base/averaged.pt --to huggingface --output m2m --force")

    # the new language
    run("nmt-import m2m --add-language __xx__ --like __de__ --add-characters text/train.xx --output extended.pt")
    preprocess("en", "xx", "train", "extended.pt", "new/data-bin")
    preprocess("en", "de", "base", "extended.pt", "old/data-bin")
    score("extended.pt", "extended")
    for name, options in METHODS.items():
        train(f"{options} --lr-schedule constant --valid-bleu", "extended.pt", name, v.UPDATES)
        score(f"{name}/averaged.pt", name)

    # a smaller vocabulary
    texts = " ".join(f"--trim-vocabulary text/{name}" for name in ("train.en", "train.xx", "test.en"))
    run(f"nmt-average full/averaged.pt {texts} --output trimmed.pt")
    run("nmt-export trimmed.pt --to huggingface --output m2m-xx --force")
    run("nmt-import m2m-xx --output back.pt")
    run("python -m measure_trimmed text/test.en full/averaged.pt trimmed.pt back.pt > trimmed.md")
    for language in ("xx", "de"):
        models = " ".join(f'"{name}={name}/{language}"' for name in ("extended", *METHODS))
        run(f"python -m compare {models} > {language}.md")
    run("tail -n +1 xx.md de.md trimmed.md > report.md")
    run.show("report.md")
