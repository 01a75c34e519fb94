"""The paper's experiments on WMT 2014, from the download to BLEU: PAIR=en-de or en-fr, SIZE=base or big.

DATA_DIR is a folder with the archives, instead of a download; GPUS=0 trains on the CPU; SMOKE=1 runs all steps within a
minute, with a tiny model and tiny archives.
"""

import os
import subprocess
import sys
from shlex import quote

from steps import Recipe
from variables import variables

v = variables(
    PAIR=("en-de", "en-fr"), SIZE=("base", "big"), DATA_DIR="", GPUS="", NODES=1, CORES=os.cpu_count() or 1,
    SMOKE=0, BATCH_TOKENS="", MAX_TOKENS="", UPDATES="", BEAM=4, LENGTH_PENALTY="0.6",
)  # fmt: skip
try:
    gpus = int(v.GPUS or subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.count("GPU "))
except FileNotFoundError:
    gpus = 0

# The paper's settings (§5, §6.1). A checkpoint every 1,500 or 600 updates corresponds to the paper's ten minutes.
is_french, is_big = v.PAIR == "en-fr", v.SIZE == "big"
model = f"--arch transformer_{v.SIZE} --dropout {0.3 if is_big and not is_french else 0.1}"
vocab_size, max_ratio, text_gb = 32000 if is_french else 37000, 1.5, 15 if is_french else 1.4
updates, save_every, averaged = (300000, 600, 20) if is_big else (100000, 1500, 5)
warmup, validate_every, batch_tokens, max_tokens = 4000, 5000, v.BATCH_TOKENS or 25000, v.MAX_TOKENS
if v.SMOKE:
    model = "--arch transformer_tiny --encoder-layers 1 --decoder-layers 1 --norm pre --dropout 0.1"
    vocab_size, max_ratio, text_gb = 500, 3, 0.001
    updates, save_every, averaged = 40, 10, 3
    warmup, validate_every, batch_tokens, max_tokens = 40, 20, v.BATCH_TOKENS or 800, v.MAX_TOKENS or 400
training = (
    f"{model} --label-smoothing 0.1 --warmup-updates {warmup} --batch-tokens {batch_tokens} "
    f"{f'--max-tokens {max_tokens} ' if max_tokens else ''}--max-updates {v.UPDATES or updates} "
    f"--validate-every {validate_every} --valid-bleu --valid-beam 4 --save-minutes 0 --save-every {save_every} "
    f"--keep-last {averaged}"
)
pair, target = v.PAIR, v.PAIR.partition("-")[2]
size = f"{pair}/{v.SIZE}"
corpora = ["europarl", "commoncrawl", "news-commentary", *(["un", "giga"] if is_french else [])]
archives = f"--archives {quote(v.DATA_DIR or 'archives')} {'--smoke server' if v.SMOKE else ''}".rstrip()
on_device = "" if gpus else "--device cpu"

with Recipe("wmt14", v.WORK, "smoke" if v.SMOKE else "") as run:
    if v.SMOKE:
        run("python -m smoke_archives server", "server/archives.txt")
    plan = f"python -m plan {pair} {v.SIZE} --text-gb {text_gb} --vocab-size {vocab_size} -- {training}"
    if run(f"{plan} > {size}/plan.txt", launch=f"GPUS={gpus} NODES={v.NODES}"):
        run.show(f"{size}/plan.txt")
    for corpus in (*corpora, "newstest2013", "newstest2014"):
        texts = [f"{pair}/text/{corpus}.{side}" for side in ("en", target)]
        run(f"python -m corpus {corpus} {' '.join(texts)}", *texts, machine=archives)
    run(
        f"nmt-preprocess -s en -t {target} --destdir {pair}/data-bin "
        f"{' '.join(f'--trainpref {pair}/text/{corpus}' for corpus in corpora)} "
        f"--validpref {pair}/text/newstest2013 --testpref {pair}/text/newstest2014 "
        f"--vocab-size {vocab_size} --max-length 250 --max-ratio {max_ratio} "
        "--normalization nmt_nfkc --no-byte-fallback",
        machine=f"--workers {v.CORES}",
    )
    launch = f"torchrun --no-python --standalone --nproc-per-node {gpus} --max-restarts 3" if gpus > 1 else ""
    if v.NODES > 1:
        together = f"--nnodes {v.NODES} --rdzv-backend c10d --rdzv-id {pair}-{v.SIZE} --rdzv-endpoint HOST:29400"
        print(f"The dataset is ready. Run on each machine in {run.work}, with the name of one of them as HOST:")
        print(
            f"torchrun --no-python {together} --nproc-per-node {max(1, gpus)} --max-restarts 3 "
            f"nmt-train {pair}/data-bin --save-dir {size}/checkpoints {training} {on_device}"
        )
        print("Then run this recipe again without NODES.")
        sys.exit()
    run(f"nmt-train {pair}/data-bin --save-dir {size}/checkpoints {training}", launch=launch, machine=on_device)
    run(f"nmt-average {size}/checkpoints --last {averaged} --output {size}/averaged.pt")
    run(
        f"nmt-generate --checkpoint {size}/averaged.pt --input {pair}/text/newstest2014.en "
        f"--output {size}/translation.{target} --beam {v.BEAM} --length-penalty {v.LENGTH_PENALTY} "
        "--max-len-a 1 --max-len-b 50",
        machine=on_device,
    )
    run(
        f"nmt-score {size}/translation.{target} --reference {pair}/text/newstest2014.{target} --target-lang {target} "
        f"> {size}/scores.txt"
    )
    run(f"python -m cost {size}/checkpoints {pair} {v.SIZE} > {size}/cost.txt")
    run.show(f"{size}/scores.txt")
    run.show(f"{size}/cost.txt")
