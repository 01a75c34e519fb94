"""Options of other toolkits and earlier releases with their equivalents, for messages and the tables in docs/.

Only `OPTIONS` and `ARCHITECTURES` contain these facts. An answer begins with "use", "not needed" or "not supported",
and quotes options as in Markdown. docs/from-fairseq.md and docs/from-other-toolkits.md show the result of `table`.
"""

FAIRSEQ = "fairseq"
OTHERS = "Marian, OpenNMT-py, Sockeye"

# command -> toolkits -> options, separated by spaces -> answer
OPTIONS: dict[str, dict[str, dict[str, str]]] = {
    "nmt-preprocess": {
        FAIRSEQ: {
            "--joined-dictionary": "not needed: one vocabulary is the default; `--separate-vocab` makes two",
            "--nwordssrc --nwordstgt": "use `--vocab-size`",
            "--thresholdsrc --thresholdtgt": "use `--min-count` with `--tokenizer space`",
            "--srcdict --tgtdict": "use `--vocab-from DATASET`",
            "--bpe --task --dataset-impl": "not needed: `--tokenizer` and `--model-type` choose the segmentation",
            "--only-source": "not supported: a dataset has two sides",
        },
        OTHERS: {
            "--train-sets": "use `--trainpref`, the prefix of both file names",
            "--valid-sets --validation-source --validation-target": "use `--validpref`, the prefix of both file names",
            "--dim-vocabs --src-vocab-size --tgt-vocab-size --num-words": "use `--vocab-size`",
            "--vocabs --src-vocab --tgt-vocab --source-vocab --target-vocab": "use `--vocab-from DATASET`",
            "--share-vocab --shared-vocab": "not needed: one vocabulary is the default; `--separate-vocab` makes two",
            "--src-words-min-frequency --tgt-words-min-frequency --word-min-count": "use `--min-count` with "
            "`--tokenizer space`",
            "--max-seq-len --src-seq-length --tgt-seq-length": "use `--max-length`",
            "--save-data --output": "use `--destdir`",
            "--input-sentence-size": "use `--spm-sample`",
            "--max-processes --num-threads": "use `--workers`",
        },
    },
    "nmt-train": {
        FAIRSEQ: {
            "--update-freq": "use `--batch-tokens`, the target tokens of one update over all devices; `--max-tokens` "
            "is the limit for one device",
            "--batch-size --max-sentences": "use `--batch-tokens`, in target tokens",
            "--source-lang --target-lang --task": "not needed: the dataset stores its languages",
            "--upsample-primary --sampling-weights": "use `--mix`",
            "--sampling-method --sampling-temperature": "use `--mix-temperature`",
            "--encoder-embed-dim --decoder-embed-dim": "use `--d-model`",
            "--encoder-ffn-embed-dim --decoder-ffn-embed-dim": "use `--d-ff`",
            "--encoder-attention-heads --decoder-attention-heads": "use `--heads`",
            "--relu-dropout": "use `--activation-dropout`",
            "--activation-fn": "use `--activation`",
            "--share-all-embeddings": "use `--share-embeddings all`, the default for one vocabulary",
            "--share-decoder-input-output-embed": "use `--share-embeddings decoder`, the default for two vocabularies",
            "--encoder-normalize-before --decoder-normalize-before": "use `--norm pre`",
            "--encoder-learned-pos --decoder-learned-pos": "use `--positions learned`",
            "--max-source-positions --max-target-positions": "use `--max-positions` with `--positions learned`; "
            "sinusoidal positions have no limit",
            "--criterion": "not needed: nmtkit always uses label-smoothed cross-entropy",
            "--adam-betas": "use `--adam-beta1` and `--adam-beta2`",
            "--lr-scheduler": "use `--lr-schedule`",
            "--warmup-init-lr": "not needed: the warm-up begins at a rate of 0",
            "--fp16 --memory-efficient-fp16": "use `--precision fp16`",
            "--bf16 --memory-efficient-bf16": "use `--precision bf16`",
            "--max-update": "use `--max-updates`",
            "--max-epoch": "use `--max-epochs`",
            "--stop-time-hours": "use `--max-minutes`",
            "--validate-interval": "use `--validate-epochs`",
            "--validate-interval-updates": "use `--validate-every`",
            "--save-interval": "use `--save-epochs`",
            "--save-interval-updates": "use `--save-every`, in updates, or `--save-minutes`",
            "--keep-interval-updates --keep-last-epochs": "use `--keep-last`",
            "--keep-best-checkpoints": "use `--keep-best`",
            "--eval-bleu --best-checkpoint-metric --maximize-best-checkpoint-metric": "use `--valid-bleu`",
            "--eval-bleu-args": "use `--valid-beam`",
            "--eval-bleu-detok --eval-bleu-remove-bpe --remove-bpe": "not needed: BLEU is computed on plain text",
            "--restore-file": "not needed: the same command resumes from its own `--save-dir`; `--init-from` starts "
            "a new run from given weights",
            "--finetune-from-model": "use `--init-from`",
            "--reset-lr-scheduler": "use `--init-from` with a different `--save-dir`",
            "--reset-dataloader --reset-meters": "use `--reset-progress`",
            "--checkpoint-activations": "use `--activation-checkpointing`",
            "--distributed-world-size --distributed-port --distributed-init-method --ddp-backend": "not needed: "
            "torchrun starts a process for each device",
            "--log-interval": "use `--log-every`",
            "--tensorboard-logdir": "use `--tensorboard`",
            "--wandb-project": "use `--tensorboard`, or `metrics.jsonl` of the run; see Monitor in the documentation",
            "--no-progress-bar": "use `--log-format plain`",
            "--cpu": "use `--device cpu`",
            "--no-epoch-checkpoints --no-save": "not needed: `--keep-last` and `--keep-best` limit the checkpoints",
            "--total-num-update": "use `--max-updates`",
            "--skip-invalid-size-inputs-valid-test": "not needed: batches take sentences of any length",
            "--train-subset --valid-subset": "not needed: the splits `train` and `valid` are used",
            "--max-tokens-valid --batch-size-valid": "not needed: `--max-tokens` is also the limit in validation",
            "--disable-validation": "not needed: nmt-train validates only if the dataset has a split `valid`",
            "--required-batch-size-multiple --left-pad-source --stop-min-lr --min-lr --sentence-avg "
            "--user-dir --load-alignments": "not supported: see the options of nmt-train",
        },
        OTHERS: {
            "--train-sets --data --prepared-data --source --target": "use the argument DATASET, from nmt-preprocess",
            "--valid-sets --validation-source --validation-target": "not needed: DATASET contains the validation text",
            "--vocabs --src-vocab --tgt-vocab --source-vocab --target-vocab": "not needed: DATASET includes them",
            "--model --save-model --output": "use `--save-dir`",
            "--type --encoder-type --decoder-type": "use `--arch`",
            "--dim-emb --hidden-size --word-vec-size --transformer-model-size": "use `--d-model`",
            "--transformer-dim-ffn --transformer-ff --transformer-feed-forward-num-hidden": "use `--d-ff`",
            "--transformer-heads --transformer-attention-heads": "use `--heads`",
            "--enc-depth --enc-layers": "use `--encoder-layers`",
            "--dec-depth --dec-layers": "use `--decoder-layers`",
            "--layers --num-layers": "use `--encoder-layers` and `--decoder-layers`",
            "--tied-embeddings-all --share-embeddings-all": "use `--share-embeddings all`",
            "--tied-embeddings --share-decoder-embeddings": "use `--share-embeddings decoder`",
            "--transformer-dropout": "use `--dropout`",
            "--transformer-dropout-attention --transformer-dropout-attention-weights": "use `--attention-dropout`",
            "--transformer-dropout-ffn --transformer-dropout-act": "use `--activation-dropout`",
            "--position-encoding": "not needed: sinusoidal positions are the default; see `--positions`",
            "--mini-batch --mini-batch-words --batch-type --accum-count --optimizer-delay": "use `--batch-tokens`, the "
            "target tokens of one update over all devices",
            "--mini-batch-fit --workspace": "use `--max-tokens auto`",
            "--learn-rate --learning-rate --initial-learning-rate": "use `--lr` with `--lr-schedule inverse-sqrt`, "
            "`linear`, `cosine` or `constant`",
            "--lr-warmup --warmup-steps --learning-rate-warmup": "use `--warmup-updates`",
            "--lr-decay-inv-sqrt --decay-method --learning-rate-scheduler-type": "use `--lr-schedule`",
            "--optimizer-params": "use `--adam-beta1`, `--adam-beta2` and `--adam-eps`",
            "--max-grad-norm --gradient-clipping-threshold": "use `--clip-norm`",
            "--exponential-smoothing --average-decay": "use `--ema`",
            "--after --after-batches --train-steps --max-num-updates": "use `--max-updates`",
            "--after-epochs --max-num-epochs": "use `--max-epochs`",
            "--valid-freq --valid-steps --checkpoint-interval": "use `--validate-every`",
            "--valid-metrics --optimized-metric": "use `--valid-bleu`; without it, the loss is used",
            "--save-freq --save-checkpoint-steps": "use `--save-every`",
            "--keep-checkpoint --keep-last-params": "use `--keep-last`",
            "--disp-freq --report-every": "use `--log-every`",
            "--early-stopping --max-num-checkpoint-not-improved": "use `--patience`",
            "--pretrained-model --train-from --params": "use `--init-from`",
            "--max-length --max-seq-len": "use `--max-length` of nmt-preprocess",
            "--devices --gpu-ranks --world-size --device-ids": "not needed: torchrun starts a process for each device",
            "--sync-sgd": "not needed: the devices always update together",
            "--use-cpu": "use `--device cpu`",
        },
    },
    "nmt-average": {
        FAIRSEQ: {
            "--inputs": "use the argument CHECKPOINTS: files, or one folder",
            "--num-update-checkpoints --num-epoch-checkpoints": "use `--last`",
            "--checkpoint-upper-bound": "use `--until`",
        },
        OTHERS: {
            "--models --model": "use the argument CHECKPOINTS: files, or one folder",
            "--strategy --metric": "use `--best` or `--last`",
        },
    },
    "nmt-export": {
        OTHERS: {
            "--model-path --model --data": "use the argument CHECKPOINT",
            "--output-dir": "use `--output`",
        },
    },
    "nmt-generate": {
        FAIRSEQ: {
            "--path": "use `--checkpoint`, once for each model of an ensemble",
            "--gen-subset": "use `--split`",
            "--task": "not needed: the checkpoint stores its languages",
            "--results-path": "use `--output`",
            "--lenpen": "use `--length-penalty` with `--length-penalty-form power`; the default is the paper's, "
            "((5 + length) / 6)^0.6",
            "--skip-invalid-size-inputs-valid-test": "not needed: `--overlong` chooses what happens to long lines",
            "--model-overrides": "not needed: the checkpoint stores the model options",
            "--unnormalized": "use `--length-penalty 0`",
            "--batch-size --max-sentences": "use `--max-tokens`, in source tokens",
            "--buffer-size": "use `--buffer`",
            "--sampling-topk": "use `--top-k` with `--sampling`",
            "--sampling-topp": "use `--top-p` with `--sampling`",
            "--diverse-beam-groups": "use `--diverse-groups`",
            "--diverse-beam-strength": "use `--diversity`",
            "--no-repeat-ngram-size": "use `--no-repeat-ngram`",
            "--prefix-size": "use `--prefix FILE`, with one line for each input line",
            "--score-reference": "use `--score FILE`",
            "--print-alignment": "use `--alignment` with `--format pharaoh`, `tsv` or `jsonl`; it aligns words, "
            "fairseq aligns pieces",
            "--print-step": "not supported: `--format jsonl` shows the details of each output",
            "--remove-bpe --post-process --bpe --tokenizer --moses-target-lang": "not needed: output is plain text",
            "--scoring": "use `--sacrebleu` or `--tokenized-bleu`",
            "--num-shards --shard-id": "use `--shard 1/8`, which counts from 1",
            "--fp16": "use `--precision fp16`",
            "--bf16": "use `--precision bf16`",
            "--replace-unk": "use `--copy-unknown`",
            "--no-progress-bar": "use `--log-format plain`",
            "--cpu": "use `--device cpu`",
        },
        OTHERS: {
            "--models --model": "use `--checkpoint`, once for each model of an ensemble",
            "--vocabs --src-vocab --tgt-vocab": "not needed: the checkpoint contains the vocabulary",
            "--src": "use `--input`",
            "--tgt --force-decode": "use `--prefix FILE` for prefixes of outputs, `--score FILE` for complete outputs",
            "--beam-size": "use `--beam`",
            "--n-best --nbest-size": "use `--nbest`",
            "--num-beams": "use `--beam`",
            "--normalize": "use `--length-penalty` with `--length-penalty-form power`",
            "--length-penalty-alpha": "use `--length-penalty`",
            "--word-penalty --coverage-penalty": "not supported: see `--length-penalty`",
            "--max-length": "use `--max-source-tokens` for the input, `--max-len-a` and `--max-len-b` for the output",
            "--max-length-crop": "not needed: longer lines are truncated, or split with `--overlong split`",
            "--max-length-factor": "use `--max-len-a`",
            "--max-output-length": "use `--max-len-b` with `--max-len-a 0`",
            "--min-length": "use `--min-len`",
            "--mini-batch --mini-batch-words --batch-size": "use `--max-tokens`, in source tokens",
            "--maxi-batch --maxi-batch-sort --chunk-size": "use `--buffer`, in lines",
            "--workspace": "not needed: `--max-tokens` and `--buffer` determine the memory",
            "--output-sampling --sample": "use `--sampling`",
            "--random-sampling-topk": "use `--top-k` with `--sampling`",
            "--random-sampling-topp": "use `--top-p` with `--sampling`",
            "--random-sampling-temp --softmax-temperature": "use `--temperature` with `--sampling`",
            "--block-ngram-repeat": "use `--no-repeat-ngram`",
            "--avoid-list": "use `--ban`",
            "--replace-unk": "use `--copy-unknown`",
            "--report-align": "use `--alignment` with `--format pharaoh`",
            "--word-scores --with-score --output-type": "use `--format jsonl` or `tsv`",
            "--restrict-lexicon": "use `--shortlist`",
            "--quiet-translation": "use `--quiet`",
            "--cpu-threads": "use `--threads`",
            "--gemm-type --int8 --int8shift": "use `--precision int8`",
            "--fp16": "use `--precision fp16`",
            "--devices --gpu --device-ids": "use `--device`, and `--workers` for several devices",
            "--use-cpu": "use `--device cpu`",
        },
    },
    "nmt-serve": {
        OTHERS: {
            "--models": "use `--checkpoint`, once for each model of an ensemble",
            "--vocabs": "not needed: the checkpoint contains the vocabulary",
            "--ip": "use `--host`",
            "--beam-size": "use `--beam`",
            "--n-best": "not needed: each request asks for its n-best list",
            "--normalize": "use `--length-penalty` with `--length-penalty-form power`",
            "--max-length": "use `--max-source-tokens` for the input, `--max-len-a` and `--max-len-b` for the output",
            "--mini-batch --mini-batch-words --batch-size": "use `--max-tokens`, in source tokens",
            "--cpu-threads": "use `--threads`",
            "--gemm-type --int8 --int8shift": "use `--precision int8`",
            "--devices --gpu": "use `--device`, and `--workers` for several devices",
        },
    },
    "nmt-score": {
        FAIRSEQ: {
            "--sys": "use the argument TRANSLATION",
            "--ref": "use `--reference`",
            "--sacrebleu --sentence-bleu --order --ignore-case": "not needed: nmt-score prints all variants",
        },
        "sacrebleu": {
            "--input": "use the argument TRANSLATION, once for each system",
            "--language-pair": "use `--target-lang` with the second language of the pair",
            "--test-set": "use `--reference`",
            "--num-refs": "use `--reference`, once for each reference",
            "--metrics --lowercase": "not needed: nmt-score prints all variants",
        },
    },
}

# fairseq's architecture -> nmtkit's, with options
ARCHITECTURES = {
    "transformer_wmt_en_de": "transformer_base",
    "transformer_wmt_en_de_big": "transformer_big",
    "transformer_vaswani_wmt_en_de_big": "transformer_big",
    "transformer_vaswani_wmt_en_fr_big": "transformer_big",
    "transformer_iwslt_de_en": "transformer_base --d-ff 1024 --heads 4",
    "fconv_wmt_en_de": "convs2s",
    "fconv_wmt_en_fr": "convs2s",
}

_IN_FILES = "was removed from the command line: set it in a --config file, as options.json of a run does"
_TO_NEW_RUN = "was removed: start a new run with --init-from CHECKPOINT and a different --save-dir"
_TO_SERVE = "moved to nmt-serve: use nmt-serve --checkpoint … --port 8080"

# command -> removed options, as above -> the rest of the message; entries stay for one release
_MOVED: dict[str, dict[str, str]] = {
    "nmt-generate": {
        "--serve": _TO_SERVE,
        "--max-body --max-request-lines --max-request-chars --max-queue --max-requests --max-connections": _TO_SERVE,
    },
    "nmt-preprocess": {
        "--no-dedup": "was removed: use --dedup none",
        "--min-words --max-words --min-chars --max-chars": "was removed: use --max-length, or filter the text first",
        "--max-char-ratio": "was removed: use --max-ratio",
        "--max-word-length --max-repeats --max-url-share --min-alphanumeric": "was removed: filter the text first",
        "--min-script": "was removed: half of a side's letters must be in --source-script or --target-script",
    },
    "nmt-train": {
        "--output-bias --d-bottleneck --separate-output": _IN_FILES,
        "--lora-alpha --lora-targets --lora-train": _IN_FILES,
        "--reset-optimizer --reset-lr-schedule": _TO_NEW_RUN,
        "--max-save-failures": "was removed: a run ends after 3 checkpoints in a row that cannot be written",
        "--shard-optimizer": "was removed: use a GPU with more memory, or a smaller model",
    },
    "nmt-score": {
        "--confidence-n --paired-bs-n --paired-ar-n": "was removed: sacreBLEU's default number is used",
        "--paired-ar": "was removed: use --paired-bs",
    },
    "nmt-serve": {
        "--serve": "is the command itself: use --port 8080, and --host 0.0.0.0 for all interfaces",
        "--nbest --alignment": "is a field of each request, not an option of the server",
        "--max-body": "was removed: the limit is now derived from --max-request-chars",
        "--max-request-lines": "was removed: use --max-queue",
        "--max-requests --max-connections": "was removed: use --max-queue, and limit connections in the proxy",
    },
}


def answer(command: str, option: str) -> str | None:
    """Return a command's equivalent of a foreign option, without Markdown; None for an unknown option."""
    found = (_find(rows, option) for rows in OPTIONS.get(command, {}).values())
    return next((text.replace("`", "") for text in found if text), None)


def moved(command: str, option: str) -> str | None:
    """Return a message about an option that was removed from a command; None for any other option."""
    instead = _find(_MOVED.get(command, {}), option)
    return instead and f"{option.replace('_', '-')} {instead}"


def _find(rows: dict[str, str], option: str) -> str | None:
    return next((text for options, text in rows.items() if option.replace("_", "-") in options.split()), None)


def table(command: str, toolkits: str) -> str:
    """Format the options of some toolkits and their equivalents in a command as a Markdown table."""
    lines = [f"| {toolkits} | {command} |", "|---|---|"]
    for options, found in OPTIONS[command][toolkits].items():
        quoted = ", ".join(f"`{option}`" for option in options.split())
        lines.append(f"| {quoted} | {found.removeprefix('use ')} |")
    return "\n".join(lines) + "\n"
