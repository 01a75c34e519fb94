"""English to German on Multi30k, from raw text to BLEU on test 2016, for each of SEEDS."""

from corpora import MULTI30K
from steps import Recipe
from variables import variables

v = variables(
    MULTI30K_DIR="", SEEDS=[1], VOCAB_SIZE=6000, DROPOUT="0.3", BATCH_TOKENS=2048, LR="2e-3", WARMUP=200,
    UPDATES=4000, VALIDATE_EVERY=250, AVERAGED=3, BEAM=4, LENGTH_PENALTY="1.5", PRECISION="fp32",
    SEARCH_PRECISION="fp32", ON_DEVICE="",
)  # fmt: skip

with Recipe("multi30k", v.WORK) as run:
    MULTI30K.fetch(run, v.MULTI30K_DIR)
    run(f"nmt-preprocess {MULTI30K.prefixes()} --destdir data-bin --vocab-size {v.VOCAB_SIZE} --character-coverage 1")
    for seed in v.SEEDS:
        run(
            f"nmt-train data-bin --save-dir seed-{seed}/checkpoints --seed {seed} --arch transformer_small --d-ff 512 "
            f"--norm pre --dropout {v.DROPOUT} --precision {v.PRECISION} --batch-tokens {v.BATCH_TOKENS} "
            f"--max-tokens 1024 --lr-schedule linear --lr {v.LR} --warmup-updates {v.WARMUP} "
            f"--max-updates {v.UPDATES} --validate-every {v.VALIDATE_EVERY} --save-minutes 0 --valid-bleu",
            resumable=f"--keep-last {v.AVERAGED}",
            machine=v.ON_DEVICE,
        )
        run(f"nmt-average seed-{seed}/checkpoints --last {v.AVERAGED} --output seed-{seed}/averaged.pt")
        run(
            f"nmt-generate --checkpoint seed-{seed}/averaged.pt --input text/test_2016_flickr.en.gz "
            f"--output seed-{seed}/translation.de --beam {v.BEAM} --length-penalty {v.LENGTH_PENALTY} "
            f"--precision {v.SEARCH_PRECISION} --reference text/test_2016_flickr.de.gz --sacrebleu "
            f"2>&1 | tee seed-{seed}/scores.txt"
        )
    runs = " ".join(f"seed-{seed}" for seed in v.SEEDS)
    test = "--source text/test_2016_flickr.en.gz --reference text/test_2016_flickr.de.gz"
    run(f"python -m report {runs} {test} > report.md")
    run.show("report.md")
