"""The paper's Transformer, tuned, compared with later changes at equal cost: each alone, and all of them.

Perplexity on the validation set decides the learning rate of the first and the last model, and then their dropout rate,
with the first of SEEDS. Single changes use the choice for the first model, except Muon, which uses that for the last.
"""

import json
from itertools import chain

from corpora import CORPORA
from steps import Recipe
from variables import variables

v = variables(
    MULTI30K_DIR="", TANAKA_DIR="", CORPORA=list(CORPORA), SEEDS=[1, 2, 3], UPDATES=2000,
    DROPOUTS="0.2 0.1 0.3", VALIDATE_EVERY=125, VOCAB_SIZE=6000, PRECISION="fp32", ON_DEVICE="",
)  # fmt: skip
paper, muon = "--arch transformer_small", "--optimizer muon"
CHANGES = {
    "pre-norm": "--norm pre",
    "RMSNorm": "--norm-type rms",
    "SwiGLU": "--activation swiglu --d-ff 683",
    "rotary": "--positions rotary",
    "no-biases": "--no-bias",
    "6+1-layers": "--encoder-layers 6 --decoder-layers 1",
    "R-Drop": "--r-drop 5 --dropout 0.1",  # it compares two dropout masks
    "Muon": muon,
}
GRIDS = {
    "paper": (paper, ("5e-4", "1e-3", "2e-3")),
    "all": (f"--arch transformer_modern_small {muon}", ("2e-3", "4e-3", "8e-3")),
}

with Recipe("modern", v.WORK) as run:

    def train(data: str, folder: str, options: str, seed: int, updates: int = v.UPDATES) -> None:
        run(
            f"nmt-train {data} --save-dir {folder}/checkpoints --seed {seed} {options} --precision {v.PRECISION} "
            f"--batch-tokens 2048 --max-tokens 1024 --lr-schedule linear --warmup-updates {max(1, updates // 10)} "
            f"--max-updates {updates} --save-minutes 0 --validate-every {v.VALIDATE_EVERY} --valid-bleu --keep-last 3",
            machine=v.ON_DEVICE,
        )

    def perplexity(folder: str) -> float:
        """The lowest perplexity of a run on the validation set."""
        rows = map(json.loads, () if run.lists_only else run.lines(f"{folder}/checkpoints/metrics.jsonl"))
        return min((row["valid_ppl"] for row in rows if "valid_ppl" in row), default=0.0)

    def tuned(data: str, folder: str, options: str, rates: tuple[str, ...]) -> str:
        """Options for the best learning rate at the first dropout rate, and then the best dropout rate."""

        def trained(dropout: str, rate: str) -> float:
            own = f"{folder}/dropout-{dropout}-lr-{rate}"
            train(data, own, f"{options} --dropout {dropout} --lr {rate}", v.SEEDS[0])
            return perplexity(own)

        first, *others = v.DROPOUTS.split()
        by_rate = {rate: trained(first, rate) for rate in rates}
        rate = min(rates, key=lambda rate: by_rate[rate])
        by_dropout = {first: by_rate[rate]} | {dropout: trained(dropout, rate) for dropout in others}
        dropout = min(by_dropout, key=lambda dropout: by_dropout[dropout])
        return f"--dropout {dropout} --lr {rate}"

    def named(folders: dict[str, list[str]], end: str = "") -> str:
        """Each model with the folders of its runs, as arguments of the reports."""
        return " ".join(f'"{model}={" ".join(folder + end for folder in own)}"' for model, own in folders.items())

    for name in v.CORPORA:  # report a missing text before training
        CORPORA[name].fetch(run, v.MULTI30K_DIR if name == "multi30k" else v.TANAKA_DIR, f"{name}/text")
    for name in v.CORPORA:
        corpus, text, data = CORPORA[name], f"{name}/text", f"{name}/data-bin"
        test, target = f"{text}/{corpus.test}", corpus.target
        run(f"nmt-preprocess {corpus.prefixes(text)} --destdir {data} --vocab-size {v.VOCAB_SIZE} {corpus.options}")
        best = {model: tuned(data, f"{name}/grid/{model}", *grid) for model, grid in GRIDS.items()}
        models = {"paper": f"{paper} {best['paper']}"}
        for change, options in CHANGES.items():
            models[change] = f"{paper} {best['all' if change == 'Muon' else 'paper']} {options}"
        models["all"] = f"{GRIDS['all'][0]} {best['all']}"
        models["all-70%"] = models["all"]
        folders = {model: [f"{name}/{model}/seed-{seed}" for seed in v.SEEDS] for model in models}
        for model, folder, seed in ((m, *pair) for m in models for pair in zip(folders[m], v.SEEDS, strict=True)):
            train(data, folder, models[model], seed, v.UPDATES * 7 // 10 if model == "all-70%" else v.UPDATES)
            run(f"nmt-average {folder}/checkpoints --last 3 --output {folder}/averaged.pt")
            run(
                f"nmt-generate --checkpoint {folder}/averaged.pt --input {test}.{corpus.source}.gz "
                f"--output {folder}/translation.{target} --beam 4 --length-penalty 1.0 --precision fp32 --threads 1 "
                f"--reference {test}.{target}.gz --sacrebleu 2>&1 | tee {folder}/scores.txt"
            )
        run(f"python -m compare_architectures {' '.join(chain(*folders.values()))} > {name}/costs.md")
        run(f"python -m compare {named(folders)} > {name}/bleu.md")
        for seed in v.SEEDS:
            systems = " ".join(f"{name}/{model}/seed-{seed}/translation.{target}" for model in models)
            scoring = f"--reference {test}.{target}.gz {corpus.scoring} --paired-bs"
            run(f"nmt-score {systems} {scoring} > {name}/seed-{seed}.txt")
        for axis in ("tflop", "processor_minutes"):
            run(f"python -m curves {named(folders, '/checkpoints')} --over {axis} --output {name}/{axis}.svg")
        bootstrap = " ".join(f"{name}/seed-{seed}.txt" for seed in v.SEEDS)
        run(f"tail -n +1 {name}/bleu.md {name}/costs.md {bootstrap} > {name}/report.md")
    run(f"tail -n +1 {' '.join(f'{name}/report.md' for name in v.CORPORA)} > report.md")
    run.show("report.md")
