"""Random Marian models of Hugging Face's transformers, and the log-probabilities of such a model and of nmtkit's."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from foreign_tokenizers import MarianFiles
from torch import Tensor

from nmtkit.checkpoint import Checkpoint
from nmtkit.text.vocabulary import BOS, EOS, NEVER_OUTPUT, PAD, SPECIALS, UNK

LINES = ["the dog runs on the street", ">>de<< a well-known cat, isn't it?", "", "he said 日本"]
SHARING = {"all": (True, True), "decoder": (False, True), "none": (False, False), "output": (True, False)}


class MarianModel:
    """A folder with a random model and its tokenizer.

    `sharing` is as --share-embeddings, or "output" for a separate output matrix alone. With `separate`, the target has
    another vocabulary.
    """

    def __init__(self, folder: Path, seed: int, sharing: str = "all", separate: bool = False, **changes: Any) -> None:
        from transformers import MarianConfig, MarianMTModel

        self.folder = folder
        files = MarianFiles(folder, seed)
        self.names = (files.names, files.names)
        if separate:
            self._separate(files.names, seed)
        shared, tied = SHARING[sharing]
        pad = self.names[1].index("<pad>")
        settings: dict[str, Any] = {
            **random_sizes(seed),
            "vocab_size": len(self.names[0]),
            "decoder_vocab_size": len(self.names[1]),
            "pad_token_id": pad,
            "decoder_start_token_id": pad,
            "share_encoder_decoder_embeddings": shared,
            "tie_word_embeddings": tied,
            "max_position_embeddings": 128,
            **changes,
        }
        self.model: Any = MarianMTModel(MarianConfig(**settings))
        self._randomize(seed)
        self.write()

    def _separate(self, names: Sequence[str], seed: int) -> None:
        """Give the target a vocabulary of its own, with <pad> at the same id, as the format demands."""
        pieces = [name for name in names if name not in SPECIALS][5:]
        random.Random(seed + 1).shuffle(pieces)
        source, target = (["</s>", "<unk>", "<pad>", *rest] for rest in (names[2:-1], pieces))
        for name, side in (("vocab", source), ("target_vocab", target)):
            ids = {piece: number for number, piece in enumerate(side)}
            (self.folder / f"{name}.json").write_text(json.dumps(ids), encoding="utf-8")
        self.edit("tokenizer_config.json", separate_vocabs=True)
        self.names = (source, target)

    def _randomize(self, seed: int) -> None:
        """Draw all weights, also biases and norms, whose initial values would hide mistakes; end the training mode."""
        self.model.eval()
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.model.named_parameters():
            if "embed_positions" not in name:
                std = 0.3 if parameter.dim() == 1 else parameter.size(-1) ** -0.5
                values = torch.randn(parameter.shape, generator=generator) * std
                parameter.data = values + (1.0 if "norm.weight" in name else 0.0)
        bias = self.model.final_logits_bias
        bias.copy_(torch.randn(bias.shape, generator=generator))

    def write(self) -> None:
        """Write config and weights as transformers does."""
        self.model.save_pretrained(self.folder)

    def write_pickled(self, dtype: torch.dtype, *, old: bool) -> None:
        """Replace the weights by pytorch_model.bin in a number format, `old` as torch wrote it before 1.6.

        The model itself is rounded, too.
        """
        self.model.to(dtype).to(torch.float32)
        (self.folder / "model.safetensors").unlink()
        weights = {name: tensor.to(dtype) for name, tensor in self.model.state_dict().items()}
        torch.save(weights, self.folder / "pytorch_model.bin", _use_new_zipfile_serialization=not old)

    def edit(self, file: str, **changes: Any) -> None:
        """Change values of a JSON file of the folder."""
        path = self.folder / file
        path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")

    def batch(self) -> Any:
        """LINES, padded: input_ids and attention_mask (B, S)."""
        from transformers import MarianTokenizer

        tokenizer: Any = MarianTokenizer.from_pretrained(self.folder)
        return tokenizer(LINES, return_tensors="pt", padding=True)

    def targets(self, seed: int) -> Tensor:
        """Random decoder inputs (B, 9), beginning with the start token."""
        generator = torch.Generator().manual_seed(seed)
        target = torch.randint(0, len(self.names[1]), (len(LINES), 9), generator=generator)
        start = self.model.config.decoder_start_token_id
        target[target == start] = 0
        target[:, 0] = start
        return target

    @torch.no_grad()
    def log_probs(self, target: Tensor) -> Tensor:
        """Log-probabilities (B, T, W) after LINES and `target` (B, T), without <pad> in the softmax."""
        logits = self.model(**self.batch(), decoder_input_ids=target).logits
        logits[..., self.model.config.pad_token_id] = -torch.inf
        return torch.as_tensor(logits.log_softmax(-1))

    def own_ids(self, side: int, checkpoint: Checkpoint) -> Tensor:
        """nmtkit's id of each id there, by the names of the pieces."""
        vocab = (checkpoint.source if side == 0 else checkpoint.target).vocab
        special = {"</s>": EOS, "<unk>": UNK, "<pad>": BOS}
        ids = {piece: number for number, piece in enumerate(vocab.pieces)} | special
        return torch.tensor([ids[name] for name in self.names[side]])


def random_sizes(seed: int) -> dict[str, Any]:
    """Options of a small MarianConfig; the width of heads may be odd, D is even."""
    choose = random.Random(seed)
    heads, width = choose.choice([(1, 6), (2, 3), (2, 5), (4, 4), (6, 1)])
    ffn = choose.choice([7, 16, 33])
    return {
        "d_model": heads * width,
        "encoder_layers": choose.randint(1, 3),
        "decoder_layers": choose.randint(1, 3),
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": ffn,
        "decoder_ffn_dim": ffn,
        "activation_function": choose.choice(["relu", "gelu", "swish", "silu"]),
        "scale_embedding": choose.random() < 0.7,
    }


@torch.no_grad()
def own_log_probs(checkpoint: Checkpoint, inputs: Tensor) -> Tensor:
    """nmtkit's log-probabilities (B, T, W) after LINES and decoder inputs (B, T), all by nmtkit's ids."""
    model = checkpoint.build_model()
    sources = [[*ids, EOS] for ids in checkpoint.source.encode(LINES)]
    lengths = torch.tensor([len(ids) for ids in sources])
    padded = torch.tensor([ids + [PAD] * (int(lengths.max()) - len(ids)) for ids in sources])
    logits = model.decode(inputs, model.encode(padded, lengths)) @ model.output_matrix.t()
    if model.output_bias is not None:
        logits = logits + model.output_bias
    logits[..., list(NEVER_OUTPUT)] = -torch.inf
    return logits.log_softmax(-1)
