"""Writes a random Marian model of the size of OPUS-MT's: 6+6 layers, 512, 2048, swish, 58,101 pieces.

    python benchmarks/opus_size.py data/multi30k/train -s en -t de --output opus
    nmt-import opus --output opus.pt
    python benchmarks/generate.py opus.pt test.en --transformers --length 15 --lines 16

The speed of a search depends on the sizes and the lengths, which the last command forces, but not on the weights.
"""

from itertools import islice
from pathlib import Path

import click
import torch
from small_models import Corpus, transformers, write_marian_tokenizer

from nmtkit.text.reading import find_side, read_lines

PIECES = 58_101  # the default of MarianConfig, with its ids of </s> and <pad>
SIZES = {"layers": 6, "ffn_dim": 2048, "attention_heads": 8}  # of each stack


@click.command()
@click.argument("train")
@click.option("-s", "--source-lang", required=True)
@click.option("-t", "--target-lang", required=True)
@click.option("--pairs", default=10_000, help="Pairs of the corpus to learn the SentencePiece models from.")
@click.option("--output", type=click.Path(path_type=Path), required=True)
def main(train: str, source_lang: str, target_lang: str, pairs: int, output: Path) -> None:
    """Write a model with tokenizers for TRAIN.SOURCE and TRAIN.TARGET."""
    languages = source_lang, target_lang
    source, target = (list(islice(read_lines(find_side(train, language)), pairs)) for language in languages)
    output.mkdir(parents=True)
    write_marian_tokenizer(output, Corpus(source, target, languages), 8000, PIECES)
    torch.manual_seed(1)
    stacks = {f"{stack}_{name}": value for stack in ("encoder", "decoder") for name, value in SIZES.items()}
    config = transformers.MarianConfig(d_model=512, activation_function="swish", scale_embedding=True, **stacks)
    transformers.MarianMTModel(config).save_pretrained(output)


if __name__ == "__main__":
    main()
