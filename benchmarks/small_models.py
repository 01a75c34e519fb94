"""Trains small Marian and FSMT models with transformers on a parallel text, with the tokenizers of their formats."""

import io
import json
import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq_format import write_fairseq
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from torch import Tensor
from torch.nn import functional as F

transformers: Any = import_module("transformers")  # has no type annotations that mypy could check

IGNORED = -100  # label of padding
SPECIALS = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}  # of FSMT
Lines = Sequence[str]
Pairs = Sequence[tuple[list[int], list[int]]]  # ids of source and target, both with EOS


class Corpus(NamedTuple):
    """A parallel text and its languages."""

    source: Lines
    target: Lines
    languages: tuple[str, str]


class Recipe(NamedTuple):
    """Sizes and training of a small model."""

    updates: int
    vocabulary: int  # pieces of each SentencePiece model, or BPE merges
    batch_tokens: int  # target tokens of an update
    width: int = 128
    layers: int = 2
    learning_rate: float = 2e-3
    warmup: int = 100


def sizes(recipe: Recipe) -> dict[str, Any]:
    """The options that the configurations of both models share."""
    each = {"layers": recipe.layers, "ffn_dim": 4 * recipe.width, "attention_heads": 4}
    stacks = {f"{stack}_{name}": value for stack in ("encoder", "decoder") for name, value in each.items()}
    return {"d_model": recipe.width, "dropout": 0.1, "max_position_embeddings": 512, **stacks}


def train_marian(folder: Path, corpus: Corpus, recipe: Recipe) -> None:
    """Train a model like those of OPUS-MT: swish, one matrix, a bias, two SentencePiece models."""
    write_marian_tokenizer(folder, corpus, recipe.vocabulary)
    tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    config = transformers.MarianConfig(
        **sizes(recipe),
        vocab_size=len(tokenizer.encoder),
        activation_function="swish",
        scale_embedding=True,
        pad_token_id=tokenizer.pad_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(1)
    model = transformers.MarianMTModel(config)
    model.final_logits_bias.copy_(0.1 * torch.randn_like(model.final_logits_bias))  # fixed: transformers trains none
    source = tokenizer(list(corpus.source))["input_ids"]
    target = tokenizer(text_target=list(corpus.target))["input_ids"]
    train(model, list(zip(source, target, strict=True)), recipe)
    model.save_pretrained(folder)


def write_marian_tokenizer(folder: Path, corpus: Corpus, size: int, total: int = 0) -> None:
    """Train two SentencePiece models of this size, and write them with their joint vocabulary for MarianTokenizer.

    Pieces that no text has fill the vocabulary up to `total`.
    """
    pieces = set[str]()
    for name, lines in (("source", corpus.source), ("target", corpus.target)):
        content = io.BytesIO()
        SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=content, vocab_size=size, hard_vocab_limit=False, minloglevel=2
        )
        (folder / f"{name}.spm").write_bytes(content.getvalue())
        processor = SentencePieceProcessor(model_proto=content.getvalue())
        pieces |= {processor.id_to_piece(number) for number in range(len(processor))}
    names = ["</s>", "<unk>", *sorted(pieces - {"<s>", "</s>", "<unk>"})]
    names += [f"<unused{number}>" for number in range(len(names), total - 1)] + ["<pad>"]
    _write_json(folder / "vocab.json", {name: number for number, name in enumerate(names)})
    languages = dict(zip(("source_lang", "target_lang"), corpus.languages, strict=True))
    _write_json(folder / "tokenizer_config.json", languages)


def train_fsmt(folder: Path, corpus: Corpus, recipe: Recipe) -> None:
    """Train a model like fairseq's for WMT19: relu, Moses tokenization, joint BPE, an output matrix of its own."""
    sides = write_fsmt_tokenizer(folder, corpus, recipe.vocabulary)
    config = transformers.FSMTConfig(
        **sizes(recipe),
        langs=list(corpus.languages),
        src_vocab_size=len(sides[0].ids),
        tgt_vocab_size=len(sides[1].ids),
        activation_function="relu",
        scale_embedding=True,
        tie_word_embeddings=False,
    )
    torch.manual_seed(1)
    model = transformers.FSMTForConditionalGeneration(config)
    source, target = ([[*map(side.ids.__getitem__, line), SPECIALS["</s>"]] for line in side.lines] for side in sides)
    train(model, list(zip(source, target, strict=True)), recipe)
    model.save_pretrained(folder)


class Side(NamedTuple):
    """The vocabulary of a side, and the pieces of its lines."""

    ids: dict[str, int]
    lines: list[list[str]]


def write_fsmt_tokenizer(folder: Path, corpus: Corpus, merges: int) -> list[Side]:
    """Learn joint BPE codes on the tokenized text, and write both vocabularies in the form of FSMTTokenizer."""
    from subword_nmt.learn_bpe import learn_bpe

    files = [folder / f"vocab-{side}.json" for side in ("src", "tgt")]
    for path in files:
        _write_json(path, SPECIALS)
    (folder / "merges.txt").write_text("")
    _write_json(folder / "tokenizer_config.json", {"langs": corpus.languages, "do_lower_case": False})
    moses = transformers.FSMTTokenizer.from_pretrained(folder)
    texts = [
        [moses.moses_tokenize(moses.moses_pipeline(line, language), language) for line in lines]
        for lines, language in zip((corpus.source, corpus.target), corpus.languages, strict=True)
    ]
    counts = Counter(word for text in texts for words in text for word in words)
    codes = io.StringIO()
    learn_bpe([f"{word} {count}" for word, count in counts.items()], codes, merges, is_dict=True)
    (folder / "merges.txt").write_text("".join(codes.getvalue().splitlines(keepends=True)[1:]), encoding="utf-8")
    bpe = transformers.FSMTTokenizer.from_pretrained(folder).bpe
    sides = []
    for path, text in zip(files, texts, strict=True):
        lines = [[piece for word in words for piece in bpe(word).split(" ")] for words in text]
        pieces = sorted({piece for line in lines for piece in line})
        sides.append(Side(SPECIALS | {piece: number for number, piece in enumerate(pieces, len(SPECIALS))}, lines))
        _write_json(path, sides[-1].ids)
    return sides


def fsmt_to_fairseq(fsmt: Path, folder: Path) -> Path:
    """Write a trained FSMT model as a checkpoint of fairseq; return its path."""
    model = transformers.FSMTForConditionalGeneration.from_pretrained(fsmt)
    pieces = [list(json.loads((fsmt / f"vocab-{side}.json").read_text())) for side in ("src", "tgt")]
    merges = (fsmt / "merges.txt").read_text(encoding="utf-8").splitlines()
    return write_fairseq(folder, model.state_dict(), model.config, pieces, merges)


def train(model: Any, pairs: Pairs, recipe: Recipe) -> None:
    """Train all but the positions with Adam, label smoothing and an inverse square root schedule, in a fixed order."""
    weights = [weight for name, weight in model.named_parameters() if "embed_positions" not in name]
    optimizer = torch.optim.Adam(weights, betas=(0.9, 0.98))
    pad, start = model.config.pad_token_id, model.config.decoder_start_token_id
    model.train()
    for update, batch in zip(range(1, recipe.updates + 1), batches(pairs, recipe.batch_tokens), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * min(update / recipe.warmup, math.sqrt(recipe.warmup / update))
        source = padded([ids for ids, _ in batch], pad)
        labels = padded([ids for _, ids in batch], IGNORED)
        inputs = padded([[start, *ids[:-1]] for _, ids in batch], pad)
        mask = (source != pad).long()
        logits = model(source, attention_mask=mask, decoder_input_ids=inputs, use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if update % 50 == 0:
            print(f"update {update}: loss {loss.item():.2f}", flush=True)
    model.eval()


def batches(pairs: Pairs, tokens: int) -> Iterator[list[tuple[list[int], list[int]]]]:
    """Endless batches of similar lengths with at most so many target tokens with padding, in random order."""
    ordered = sorted(pairs, key=lambda pair: (len(pair[1]), len(pair[0])))
    found: list[list[tuple[list[int], list[int]]]] = [[]]
    for pair in ordered:
        if (len(found[-1]) + 1) * len(pair[1]) > tokens:
            found.append([])
        found[-1].append(pair)
    choose = random.Random(1)
    while True:
        yield from choose.sample(found, len(found))


def padded(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    """Rows of ids as one tensor, filled up with `value`."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
