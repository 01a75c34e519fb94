"""The Multi30k experiment of Wu et al. (2021), on their lower-cased, tokenized and segmented text."""

from corpora import SEGMENTED
from steps import Recipe
from variables import variables

v = variables(
    MULTI30K_BPE_DIR="", SEEDS=[1], DROPOUT="0.3", BATCH_TOKENS=7000, MAX_TOKENS=4096, LR="0.005", WARMUP=2000,
    UPDATES=8000, PATIENCE=10, AVERAGED=10, BEAM=5, LENGTH_PENALTY="1", PRECISION="fp32",
    SEARCH_PRECISION="fp32", ON_DEVICE="",
)  # fmt: skip

with Recipe("multi30k-bpe", v.WORK) as run:
    SEGMENTED.fetch(run, v.MULTI30K_BPE_DIR)
    run(f"nmt-preprocess {SEGMENTED.prefixes()} --destdir data-bin --tokenizer space")
    for seed in v.SEEDS:
        run(
            f"nmt-train data-bin --save-dir seed-{seed}/checkpoints --seed {seed} --arch transformer_tiny "
            f"--share-embeddings all --norm post --dropout {v.DROPOUT} --label-smoothing 0.1 --precision {v.PRECISION} "
            f"--batch-tokens {v.BATCH_TOKENS} --max-tokens {v.MAX_TOKENS} --clip-norm 25 --adam-beta1 0.9 "
            f"--adam-beta2 0.98 --adam-eps 1e-8 --lr-schedule inverse-sqrt --lr {v.LR} --warmup-updates {v.WARMUP} "
            f"--max-updates {v.UPDATES} --patience {v.PATIENCE} --validate-epochs 1 --save-epochs 1",
            resumable=f"--keep-last {v.AVERAGED}",
            machine=v.ON_DEVICE,
        )
        run(f"nmt-average seed-{seed}/checkpoints --last {v.AVERAGED} --output seed-{seed}/averaged.pt")
        run(
            f"nmt-generate --checkpoint seed-{seed}/averaged.pt --input text/test.2016.en.gz "
            f"--output seed-{seed}/translation.de --beam {v.BEAM} --length-penalty {v.LENGTH_PENALTY} "
            f"--length-penalty-form power --max-len-a 0 --max-len-b 200 --precision {v.SEARCH_PRECISION} "
            f"--reference text/test.2016.de.gz --tokenized-bleu 2>&1 | tee seed-{seed}/scores.txt"
        )
    runs = " ".join(f"seed-{seed}" for seed in v.SEEDS)
    run(f"python -m report {runs} --source text/test.2016.en.gz --reference text/test.2016.de.gz > report.md")
    run.show("report.md")
