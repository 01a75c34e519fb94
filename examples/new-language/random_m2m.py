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
from nmtkit.text.spm_model import LANGUAGE_CODE, append_symbols
from nmtkit.text.tokenizer import SentencePieceVocabTokenizer
from nmtkit.text.vocabulary import Vocabulary

if __name__ == "__main__":
    data, codes = Dataset.open(Path(sys.argv[1])).source, FAMILIES[0].codes
    pieces = [*data.vocab.pieces, *codes]
    tokenizer = SentencePieceVocabTokenizer(Vocabulary(pieces), append_symbols(data.model, LANGUAGE_CODE, codes))
    config = TransformerConfig(3, 3, 192, 768, 4, dropout=0.2, norm="pre", positions="fairseq", share_embeddings="all")
    torch.manual_seed(1)
    weights = as_arrays(collect_weights(Transformer(config, len(pieces), len(pieces))))
    save_checkpoint(Path(sys.argv[2]), Checkpoint(config, weights, "mul", "mul", tokenizer, tokenizer))
