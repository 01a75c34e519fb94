"""Random M2M-100, NLLB-200 and mBART-50 folders with a real SentencePiece model, and the outputs of transformers."""

import io
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from foreign_models import random_sizes, randomize

from nmtkit.conversion.multilingual import FAMILIES

SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
NAMES = {"m2m": "M2M100", "nllb": "Nllb", "mbart": "MBart50"}  # of the tokenizers
CODES = {"m2m": ("__en__", "__de__"), "nllb": ("eng_Latn", "deu_Latn"), "mbart": ("en_XX", "de_DE")}


class MultilingualModel:
    """A folder with a random model of a family and its tokenizer, which has `pieces` pieces learned from `text`."""

    def __init__(
        self,
        folder: Path,
        kind: str,
        seed: int,
        text: Sequence[str],
        *,
        pieces: int = 500,
        normalization_rule_name: str = "nmt_nfkc",
        **changes: Any,
    ) -> None:
        import transformers

        self.folder, self.kind = folder, kind
        folder.mkdir(exist_ok=True)
        self.family = next(family for family in FAMILIES if f"{NAMES[kind]}Tokenizer" in family.tokenizers)
        self._write_tokenizer(seed, text, pieces, normalization_rule_name)
        bart = kind == "mbart"
        choose = random.Random(seed)
        settings = random_sizes(seed) | {
            "vocab_size": self.size + 2 * (kind == "nllb"),
            "scale_embedding": choose.random() < 0.6,
            "tie_word_embeddings": choose.random() < 0.7,
            "max_position_embeddings": 200,
            "decoder_start_token_id": 2,
            "forced_eos_token_id": None,
        }
        if choose.random() < 0.4 or (bart and choose.random() < 0.7):
            settings["activation_function"] = choose.choice(["gelu", "relu", "silu"])
        settings |= changes
        name = "MBart" if bart else "M2M100"
        config = getattr(transformers, f"{name}Config")(**settings)
        self.model: Any = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
        randomize(self.model, seed)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if "encoder_attn" in name and name.endswith("weight") and "norm" not in name:
                    parameter *= 3  # else outputs hardly depend on the source
                if "embed_positions" in name or "shared" in name or "embed_tokens" in name or "lm_head" in name:
                    parameter.normal_(std=1.0 if not settings["scale_embedding"] else parameter.size(-1) ** -0.5)
                    if "embed_positions" not in name:
                        parameter[[0, 1, *range(self.pieces + 4, len(parameter))]] *= 0.3  # rarely output
                        parameter[2] *= 2.0  # often output
            if bart:
                self.model.final_logits_bias.normal_(std=0.5)
                self.model.final_logits_bias[:, self.pieces + 4 :] -= 3
        self.model.generation_config.forced_eos_token_id = None
        self.model.save_pretrained(folder)

    def _write_tokenizer(self, seed: int, text: Sequence[str], pieces: int, normalization: str) -> None:
        written = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text),
            model_writer=written,
            vocab_size=pieces,
            model_type="unigram" if self.kind == "mbart" else "bpe",
            normalization_rule_name=normalization,
            minloglevel=2,
        )
        (self.folder / "sentencepiece.bpe.model").write_bytes(written.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
        names = [processor.id_to_piece(number) for number in range(3, pieces)]
        if self.family.has_vocabulary:
            random.Random(seed).shuffle(names)
            names = names[:-20]  # pieces that the vocabulary lacks
        names = [*SPECIALS, *names]
        self.pieces = len(names) - 4
        ids = {piece: number for number, piece in enumerate(names)}
        settings: dict[str, Any] = {"tokenizer_class": f"{NAMES[self.kind]}Tokenizer"}
        if self.family.has_vocabulary:
            (self.folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
            settings["additional_special_tokens"] = list(self.family.codes)
            self.size = len(names) + len(self.family.codes) + 8
        else:
            tokens = [*SPECIALS, *self.family.codes, "<mask>"]
            numbers = [*range(4), *range(len(names), len(names) + len(self.family.codes) + 1)]
            self.size = numbers[-1] + 1
            if self.kind == "nllb":
                settings["added_tokens_decoder"] = {
                    str(number): {
                        "content": token,
                        "special": True,
                        "lstrip": token == "<mask>",
                        "rstrip": False,
                        "single_word": False,
                        "normalized": False,
                    }
                    for token, number in zip(tokens, numbers, strict=True)
                }
        (self.folder / "tokenizer_config.json").write_text(json.dumps(settings))

    def tokenizer(self) -> Any:
        import transformers

        return getattr(transformers, f"{NAMES[self.kind]}Tokenizer").from_pretrained(self.folder)

    @torch.no_grad()
    def generate(self, lines: Sequence[str], source: str, target: str, **options: Any) -> tuple[list[str], Any]:
        """The outputs as text, and everything that transformers returns."""
        tokenizer = self.tokenizer()
        tokenizer.src_lang = source.strip("_")
        given = tokenizer(list(lines), return_tensors="pt", padding=True)
        forced = tokenizer.convert_tokens_to_ids(target)
        found = self.model.generate(
            **given,
            forced_bos_token_id=forced,
            return_dict_in_generate=True,
            output_scores=True,
            forced_eos_token_id=2,
            bad_words_ids=[[1]],
            renormalize_logits=True,
            **options,
        )
        return tokenizer.batch_decode(found.sequences, skip_special_tokens=True), found
