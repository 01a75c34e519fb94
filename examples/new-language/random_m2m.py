"""Writes a small M2M-100 with random weights: the pieces of a dataset, and all 100 language codes.

python -m random_m2m DATASET CHECKPOINT
"""

import sys
from pathlib import Path

import torch

from nmtkit.checkpoint import Checkpoint, save_checkpoint
from nmtkit.conversion.multilingual import FAMILIES
from nmtkit.data.corpus import Dataset
from nmtkit.model.config import TransformerConfig
from nmtkit.model.transformer import Transformer
from nmtkit.model.weights import as_arrays, collect_weights
from nmtkit.text.languages import SEVERAL
from nmtkit.text.spm_model import append_language_codes
from nmtkit.text.tokenizer import SentencePieceVocabTokenizer
from nmtkit.text.vocabulary import Vocabulary


def main(dataset: Path, output: Path) -> None:
    pieces, codes = Dataset.open(dataset).source, FAMILIES[0].codes
    model = append_language_codes(pieces.model, codes)
    tokenizer = SentencePieceVocabTokenizer(Vocabulary([*pieces.vocab.pieces, *codes]), model)
    sizes = {"encoder_layers": 3, "decoder_layers": 3, "d_model": 256, "d_ff": 1024, "heads": 4, "dropout": 0.2}
    config = TransformerConfig(**sizes, norm="pre", positions="fairseq", share_embeddings="all")
    torch.manual_seed(1)
    weights = as_arrays(collect_weights(Transformer(config, len(tokenizer.vocab), len(tokenizer.vocab))))
    save_checkpoint(output, Checkpoint(config, weights, SEVERAL, SEVERAL, tokenizer, tokenizer))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
