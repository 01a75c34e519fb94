"""English to Japanese on 50,000 pairs of the Tanaka corpus, from raw text to raw text without spaces."""

from corpora import TANAKA
from steps import Recipe
from variables import variables

v = variables(
    TANAKA_DIR="", VOCAB_SIZE=6000, DROPOUT="0.3", BATCH_TOKENS=2048, LR="2e-3", WARMUP=200, UPDATES=2000,
    VALIDATE_EVERY=250, AVERAGED=3, BEAM=5, PRECISION="fp32", SEARCH_PRECISION="fp32", ON_DEVICE="",
)  # fmt: skip

with Recipe("tanaka", v.WORK) as run:
    TANAKA.fetch(run, v.TANAKA_DIR)
    run(f"nmt-preprocess {TANAKA.prefixes()} --destdir data-bin --vocab-size {v.VOCAB_SIZE} --separate-vocab")
    run(
        f"nmt-train data-bin --save-dir checkpoints --arch transformer_small --d-ff 512 --norm pre "
        f"--dropout {v.DROPOUT} --precision {v.PRECISION} --batch-tokens {v.BATCH_TOKENS} --max-tokens 1024 "
        f"--lr-schedule linear --lr {v.LR} --warmup-updates {v.WARMUP} --max-updates {v.UPDATES} "
        f"--validate-every {v.VALIDATE_EVERY} --save-minutes 0 --valid-bleu",
        resumable=f"--keep-last {v.AVERAGED}",
        machine=v.ON_DEVICE,
    )
    run(f"nmt-average checkpoints --last {v.AVERAGED} --output averaged.pt")
    run(
        f"nmt-generate --checkpoint averaged.pt --input text/test.en.gz --output translation.ja --beam {v.BEAM} "
        f"--precision {v.SEARCH_PRECISION} --reference text/test.ja.gz --sacrebleu 2>&1 | tee scores.txt"
    )
    run.show("scores.txt", "BLEU", "chrF")
