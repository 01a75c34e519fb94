"""Table 2 of the paper, scaled down: a Transformer, a recurrent and a convolutional model with equally many parameters.

They are trained at equal cost on each of CORPORA with each of SEEDS.
"""

from corpora import CORPORA
from steps import Recipe
from variables import variables

MODELS = ["transformer", "recurrent", "convolutional"]
v = variables(
    MULTI30K_DIR="", TANAKA_DIR="", CORPORA=list(CORPORA), MODELS=MODELS, SEEDS=[1, 2, 3], UPDATES=1000,
    TRANSFORMER_LR="2e-3", RECURRENT_LR="8e-3", CONVOLUTIONAL_LR="1.6e-2", VALIDATE_EVERY=125, VOCAB_SIZE=6000,
    ON_DEVICE="--threads 1",
)  # fmt: skip
options = {  # equal widths and nearly equal numbers of parameters, with a schedule for each model
    "transformer": f"--arch transformer_small --d-ff 512 --norm pre --lr-schedule linear --lr {v.TRANSFORMER_LR}",
    "recurrent": f"--arch lstm_small --encoder-layers 2 --lr-schedule cosine --lr {v.RECURRENT_LR} --clip-norm 5",
    "convolutional": "--arch conv_small --encoder-convolutions 4x256 --decoder-convolutions 4x256 --max-positions 256 "
    f"--lr-schedule linear --lr {v.CONVOLUTIONAL_LR} --clip-norm 0.1",
}

with Recipe("table2", v.WORK) as run:
    for name in v.CORPORA:  # report a missing text before training
        CORPORA[name].fetch(run, v.MULTI30K_DIR if name == "multi30k" else v.TANAKA_DIR, f"{name}/text")
    for name in v.CORPORA:
        corpus, text, data = CORPORA[name], f"{name}/text", f"{name}/data-bin"
        run(f"nmt-preprocess {corpus.prefixes(text)} --destdir {data} --vocab-size {v.VOCAB_SIZE} {corpus.options}")
        folders = [f"{name}/{model}/seed-{seed}" for model in v.MODELS for seed in v.SEEDS]
        for folder in folders:
            _, model, seed = folder.split("/")
            run(
                f"nmt-train {data} --save-dir {folder}/checkpoints {options[model]} --warmup-updates 200 --dropout 0.2 "
                f"--label-smoothing 0.1 --precision fp32 --batch-tokens 2048 --max-tokens 1024 "
                f"--max-updates {v.UPDATES} --validate-every {v.VALIDATE_EVERY} --valid-bleu "
                f"--log-every {v.VALIDATE_EVERY} --save-minutes 0 --keep-last 1 --keep-best 0 "
                f"--seed {seed.removeprefix('seed-')}",
                machine=v.ON_DEVICE,
            )
            run(f"nmt-average {folder}/checkpoints --last 1 --output {folder}/averaged.pt")
            test = f"{text}/{corpus.test}"
            run(
                f"nmt-generate --checkpoint {folder}/averaged.pt --input {test}.{corpus.source}.gz "
                f"--output {folder}/translation.{corpus.target} --beam 4 --length-penalty 0.6 --precision fp32 "
                f"--reference {test}.{corpus.target}.gz --sacrebleu 2>&1 | tee {folder}/scores.txt"
            )
        run(f"python -m compare_architectures {' '.join(folders)} > {name}/report.md")
    run(f"tail -n +1 {' '.join(f'{name}/report.md' for name in v.CORPORA)} > report.md")
    run.show("report.md")
