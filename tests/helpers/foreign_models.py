"""Random models of other toolkits: FSMT folders, the same weights as fairseq's checkpoints, and their outputs."""

import argparse
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import marian_models
import torch
from fairseq_format import write_fairseq
from foreign_tokenizers import FsmtFiles
from torch import Tensor

from nmtkit.checkpoint import Checkpoint
from nmtkit.text.vocabulary import BOS, NEVER_OUTPUT

FAIRSEQ_START = 2  # </s>


def random_sizes(seed: int) -> dict[str, Any]:
    """Options of a small FSMTConfig."""
    sizes = marian_models.random_sizes(seed) | {"tie_word_embeddings": False, "dropout": 0.25}
    if sizes["activation_function"] == "silu":
        sizes["activation_function"] = "swish"  # fairseq's only name for it
    return sizes


def randomize(model: torch.nn.Module, seed: int) -> None:
    """Draw all parameters anew, biases and norms too, so that no mistake in them stays without effect."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "embed_positions" not in name:
            std = 0.3 if parameter.dim() == 1 else parameter.size(-1) ** -0.5
            values = torch.randn(parameter.shape, generator=generator) * std
            parameter.data = values + (1.0 if "norm.weight" in name else 0.0)


class FsmtModel:
    """A folder with a random FSMT model and its tokenizer; `sharing` is as --share-embeddings."""

    def __init__(self, folder: Path, seed: int, sharing: str = "none", **changes: Any) -> None:
        transformers: Any = import_module("transformers")
        self.files = FsmtFiles(folder, seed)
        if sharing == "all":
            (folder / "vocab-tgt.json").write_bytes((folder / "vocab-src.json").read_bytes())
            self.files.vocabs[1] = self.files.vocabs[0]
        sizes = [len(vocabulary) for vocabulary in self.files.vocabs]
        config = transformers.FSMTConfig(
            **{"langs": ["en", "de"], "src_vocab_size": sizes[0], "tgt_vocab_size": sizes[1]}
            | random_sizes(seed)
            | changes
        )
        self.model = transformers.FSMTForConditionalGeneration(config).eval()
        randomize(self.model, seed)
        encoder, decoder = self.model.model.encoder, self.model.model.decoder
        if sharing != "none":
            decoder.output_projection.weight = decoder.embed_tokens.weight
        if sharing == "all":
            encoder.embed_tokens.weight = decoder.embed_tokens.weight
        self.folder, self.config = folder, config
        self.write()

    def weights(self) -> dict[str, Tensor]:
        """The state dict, each tensor with values of its own."""
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def write(self, name: str = "model.safetensors", dtype: torch.dtype = torch.float32) -> None:
        """Write config.json and the weights."""
        from safetensors.torch import save_file

        (self.folder / "config.json").write_text(json.dumps(self.config.to_dict()))
        weights = {key: tensor.to(dtype) for key, tensor in self.weights().items()}
        if name.endswith(".bin"):
            torch.save(weights, self.folder / name)
        else:
            save_file(weights, self.folder / name)

    @torch.no_grad()
    def logits(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """The logits (B, T, W) by fairseq's ids; `target` begins with the start token."""
        mask = torch.arange(source.size(1)) < lengths.unsqueeze(1)
        output = self.model(source, attention_mask=mask.long(), decoder_input_ids=target, use_cache=False)
        logits: Tensor = output.logits
        return logits

    def write_fairseq(self, folder: Path, *, old: bool = False, **changes: Any) -> Path:
        """Write the same weights as a checkpoint of fairseq, see `fairseq_format.write_fairseq`."""
        pieces = [vocabulary.pieces for vocabulary in self.files.vocabs]
        return write_fairseq(folder, self.weights(), self.config, pieces, self.files.merges, old=old, **changes)


def fairseq_batch(sizes: tuple[int, int], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sources (B, S) ending with </s>, padded, their lengths, and decoder inputs (B, T), by fairseq's ids."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([7, 1, 4])
    source = torch.randint(3, sizes[0], (3, 7), generator=generator)
    places = torch.arange(7)
    source[places == lengths.unsqueeze(1) - 1] = 2
    source[places >= lengths.unsqueeze(1)] = 1
    target = torch.randint(3, sizes[1], (3, 6), generator=generator)
    target[:, 0] = FAIRSEQ_START
    return source, lengths, target


def own_ids(ids: Tensor) -> Tensor:
    """fairseq's ids as nmtkit's: <s> 0, <pad> 1, </s> 2 and <unk> 3 become 2, 0, 3 and 1."""
    order = torch.tensor([2, 0, 3, 1])
    return torch.where(ids < 4, order[ids.clamp_max(3)], ids)


@torch.no_grad()
def log_probs_of(checkpoint: Checkpoint, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
    """nmtkit's log-probabilities (B, T, W - 2) by fairseq's ids from 2 on, given a batch by fairseq's ids."""
    model = checkpoint.build_model()
    inputs = own_ids(target)
    inputs[:, 0] = BOS
    hidden = model.decode(inputs, model.encode(own_ids(source), lengths))
    logits = hidden @ model.output_matrix.t()
    if model.output_bias is not None:
        logits = logits + model.output_bias
    logits[..., list(NEVER_OUTPUT)] = -torch.inf
    scores = logits.log_softmax(-1)
    return torch.cat([scores[..., [3, 1]], scores[..., 4:]], dim=-1)


def renormalized(logits: Tensor) -> Tensor:
    """The log-probabilities of fairseq's ids from 2 on, without <s> and <pad>."""
    return logits[..., 2:].log_softmax(-1)


class PreNormModel:
    """A random pre-norm model of transformers, whose weights are those of a fairseq model with the same options.

    M2M100 has fairseq's sinusoids, Blenderbot learned positions.
    """

    def __init__(self, seed: int, learned: bool, size: int) -> None:
        transformers: Any = import_module("transformers")
        kind = "Blenderbot" if learned else "M2M100"
        sizes = random_sizes(seed) | {"activation_function": "relu", "scale_embedding": True}
        changes = {"vocab_size": size, "tie_word_embeddings": True, "max_position_embeddings": 30}
        special = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
        self.config = getattr(transformers, f"{kind}Config")(**(sizes | changes | special))
        self.model = getattr(transformers, f"{kind}ForConditionalGeneration")(self.config).eval()
        randomize(self.model, seed)
        self.learned = learned

    @torch.no_grad()
    def logits(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """As `FsmtModel.logits`."""
        mask = (torch.arange(source.size(1)) < lengths.unsqueeze(1)).long()
        logits: Tensor = self.model(source, attention_mask=mask, decoder_input_ids=target, use_cache=False).logits
        return logits

    def write_fairseq(self, folder: Path) -> Path:
        """Write a checkpoint of fairseq with dictionaries of words."""
        state = {name: tensor.clone() for name, tensor in self.model.model.state_dict().items() if "shared" not in name}
        for stack in ("encoder", "decoder"):
            table = state.pop(f"{stack}.embed_positions.weight", None)
            if self.learned:
                assert table is not None
                state[f"{stack}.embed_positions.weight"] = torch.cat([torch.zeros(2, table.size(1)), table])
        sizes = self.config
        options = {
            "arch": "transformer",
            "encoder_layers": sizes.encoder_layers,
            "decoder_layers": sizes.decoder_layers,
            "encoder_embed_dim": sizes.d_model,
            "encoder_ffn_embed_dim": sizes.encoder_ffn_dim,
            "encoder_attention_heads": sizes.encoder_attention_heads,
            "decoder_attention_heads": sizes.decoder_attention_heads,
            **{f"{stack}_normalize_before": True for stack in ("encoder", "decoder")},
            **{f"{stack}_learned_pos": self.learned for stack in ("encoder", "decoder")},
            "share_all_embeddings": True,
        }
        folder.mkdir(exist_ok=True)
        torch.save({"model": state, "args": argparse.Namespace(**options)}, folder / "model.pt")
        for language in ("en", "de"):
            words = "".join(f"w{number} 1\n" for number in range(sizes.vocab_size - 4))
            (folder / f"dict.{language}.txt").write_text(words)
        return folder / "model.pt"
