"""Random models of other toolkits: FSMT folders, the same weights as fairseq's checkpoints, and their outputs."""

import argparse
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import marian_models
import torch
from foreign_tokenizers import FsmtFiles
from torch import Tensor

from nmtkit.checkpoint import Checkpoint
from nmtkit.moses_bpe import FINAL_MARK, INNER_MARK
from nmtkit.vocab import BOS, NEVER_OUTPUT

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

    def fairseq_weights(self, old: bool = False) -> dict[str, Tensor]:
        """The state dict as fairseq writes it, in the names of today or of its early releases."""
        state = {name.removeprefix("model."): tensor for name, tensor in self.weights().items()}
        state = {name: tensor for name, tensor in state.items() if "embed_positions" not in name}
        for stack in ("encoder", "decoder"):
            state[f"{stack}.embed_positions._float_tensor"] = torch.zeros(1)
            state[f"{stack}.version"] = torch.tensor([3.0])
        return with_old_names(state) if old else state

    def fairseq_options(self) -> dict[str, Any]:
        """The options of the same model in fairseq."""
        sizes = self.config
        return {
            "arch": "transformer",
            "task": "translation",
            "source_lang": "en",
            "target_lang": "de",
            "encoder_layers": sizes.encoder_layers,
            "decoder_layers": sizes.decoder_layers,
            "encoder_embed_dim": sizes.d_model,
            "decoder_embed_dim": sizes.d_model,
            "encoder_ffn_embed_dim": sizes.encoder_ffn_dim,
            "decoder_ffn_embed_dim": sizes.decoder_ffn_dim,
            "encoder_attention_heads": sizes.encoder_attention_heads,
            "decoder_attention_heads": sizes.decoder_attention_heads,
            "encoder_normalize_before": False,
            "decoder_normalize_before": False,
            "activation_fn": sizes.activation_function,
            "no_scale_embedding": not sizes.scale_embedding,
            "adaptive_softmax_cutoff": None,
            "dropout": 0.25,
        }

    def write_fairseq(self, folder: Path, *, old: bool = False, **changes: Any) -> Path:
        """Write a checkpoint of fairseq with dictionaries and codes beside it; old ones have `args`."""
        folder.mkdir(exist_ok=True)
        options = self.fairseq_options() | changes
        content: dict[str, Any] = {"model": self.fairseq_weights(old), "extra_state": {"epoch": 3}}
        if old:
            content["args"] = argparse.Namespace(**options)
        else:
            task = {key: options.pop(key) for key in ("source_lang", "target_lang")}
            task["_name"] = options.pop("task")
            content |= {"args": None, "cfg": {"model": argparse.Namespace(**options), "task": task}}
        torch.save(content, folder / "model.pt", _use_new_zipfile_serialization=not old)
        for language, vocabulary in zip(("en", "de"), self.files.vocabs, strict=True):
            pieces = (
                piece.removesuffix(FINAL_MARK) if piece.endswith(FINAL_MARK) else piece + INNER_MARK
                for piece in vocabulary.pieces[4:]
            )
            lines = [f"{piece} {9 + number}\n" for number, piece in enumerate(pieces)]
            (folder / f"dict.{language}.txt").write_text("".join(lines), encoding="utf-8")
        codes = "".join(f"{line} {9}\n" for line in self.files.merges)
        (folder / "bpecodes").write_text(codes, encoding="utf-8")
        return folder / "model.pt"


def with_old_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A state dict with joined attention projections, numbered norms, and the output as `embed_out`."""
    renamed: dict[str, Tensor] = {}
    norms = {"self_attn_layer_norm": 0, "encoder_attn_layer_norm": 1}
    for name, tensor in state.items():
        prefix, _, end = name.rpartition("_attn.")
        module, _, part = name.rpartition(".")
        layer, _, kind = module.rpartition(".")
        if end.startswith(("k_proj", "v_proj")):
            continue
        if end.startswith("q_proj"):
            blocks = [state[name.replace("q_proj", f"{letter}_proj")] for letter in "qkv"]
            renamed[f"{prefix}_attn.in_proj_{part}"] = torch.cat(blocks)
        elif kind.endswith("layer_norm"):
            last = 1 if name.startswith("encoder") else 2
            renamed[f"{layer}.layer_norms.{norms.get(kind, last)}.{part}"] = tensor
        else:
            renamed["decoder.embed_out" if name == "decoder.output_projection.weight" else name] = tensor
    return renamed


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
