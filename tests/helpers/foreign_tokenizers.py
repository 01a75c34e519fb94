"""Tokenizers of other toolkits' models, as files of Hugging Face's transformers and as tokenizers of nmtkit."""

import io
import json
import random
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from nmtkit.text.moses_bpe import FINAL_MARK, MosesBpe, MosesBpeTokenizer, merge_symbols
from nmtkit.text.tokenizer import SentencePieceVocabTokenizer
from nmtkit.text.vocabulary import SPECIALS, Vocabulary

ENGLISH = (
    "the dog doesn't run on the street",
    "a well-known cat, isn't it?",
    "Mr. Smith's dogs & cats: 3.5 % of 1,000!",
    'he said "yes" (and no).',
)
GERMAN = (
    "der hund läuft nicht über die straße",
    "eine wohl-bekannte katze, oder?",
    "Herrn Smiths hunde & katzen: 3,5 % von 1.000!",
    'er sagte "ja" (und nein).',
)


def hostile_lines(seed: int, count: int) -> list[str]:
    """Random lines of ordinary words, marks, spaces of all kinds, control characters, tags and other scripts."""
    choose = random.Random(seed)
    parts = [
        *" ".join(ENGLISH + GERMAN).split(),
        *("  ", "\t", "\u00a0", "\u2028", "\u3000", "\r", "\x00", "\x1c", "\x7f", "\u200b", "\ufeff", "\u0085"),
        *("▁", "@@", "@-@", "</w>", "<0x41>", "&apos;", "&amp;amp;", "&#124;", "|", "[", "]", "<", ">", "'", '"', "`"),
        *(
            ">>de<<",
            ">>xx<<",
            ">>",
            "<<",
            ">><<",
            "«ja»",
            "„nein“",
            "…",
            "....",
            "--",
            "1,5",
            "２，３。",
            "http://a.b/c-d",
        ),
        *("日本語", "猫", "мир", "مرحبا", "हिन्दी", "é", "e\u0301", "ﬁ", "①", "\U0001f600", "\U0010ffff", "ß", "İ", "ſ"),
    ]
    spaces = ["", " ", " ", " ", "  "]
    lines = []
    for _ in range(count):
        words = choose.choices(parts, k=choose.randint(0, 9))
        lines.append("".join(word + choose.choice(spaces) for word in words))
    return lines


def train_model(text: tuple[str, ...], **options: Any) -> bytes:
    """Train a SentencePiece model with SentencePiece's own numbers of special ids."""
    content = io.BytesIO()
    settings: dict[str, Any] = {
        "vocab_size": 60,
        "hard_vocab_limit": False,
        "model_type": "unigram",
        "minloglevel": 2,
    } | options
    SentencePieceTrainer.train(sentence_iterator=iter(text * 20), model_writer=content, **settings)
    return content.getvalue()


class MarianFiles:
    """A folder of MarianTokenizer, with a shuffled vocabulary that lacks a tenth of the pieces."""

    def __init__(self, folder: Path, seed: int = 1, **options: Any) -> None:
        self.models = train_model(ENGLISH, **options), train_model(GERMAN, **options)
        processors = [SentencePieceProcessor(model_proto=model) for model in self.models]
        pieces = sorted({processor.id_to_piece(i) for processor in processors for i in range(len(processor))})
        pieces = [piece for piece in pieces if piece not in SPECIALS]
        random.Random(seed).shuffle(pieces)
        pieces = [">>de<<", *pieces[len(pieces) // 10 :]]
        self.names = ["</s>", "<unk>", *pieces, "<pad>"]  # by their ids there
        folder.mkdir()
        for name, model in zip(("source", "target"), self.models, strict=True):
            (folder / f"{name}.spm").write_bytes(model)
        ids = {piece: number for number, piece in enumerate(self.names)}
        (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
        (folder / "tokenizer_config.json").write_text(json.dumps({"source_lang": "en", "target_lang": "de"}))
        self.vocab = Vocabulary([*SPECIALS, *pieces])

    def tokenizers(self) -> tuple[SentencePieceVocabTokenizer, SentencePieceVocabTokenizer]:
        """The same tokenizers of nmtkit: one vocabulary and two models."""
        source, target = (SentencePieceVocabTokenizer(self.vocab, model) for model in self.models)
        return source, target


def learn_codes(text: tuple[str, ...], merges: int) -> str:
    """Learn BPE codes with subword-nmt, in its version 0.2 with a header."""
    from subword_nmt.learn_bpe import learn_bpe

    codes = io.StringIO()
    learn_bpe(io.StringIO("\n".join(text * 5)), codes, merges)
    return codes.getvalue()


class FsmtFiles:
    """A folder of FSMTTokenizer for English and German, whose vocabularies lack a tenth of the pieces."""

    def __init__(self, folder: Path, seed: int = 1, lowercase: bool = False) -> None:
        lines = learn_codes(ENGLISH + GERMAN, 150).splitlines()[1:]
        self.merges, self.languages = tuple(lines), ("en", "de")
        self.lowercase = lowercase
        ranks = {(left, right): rank for rank, (left, right) in enumerate(line.split(" ") for line in lines)}
        texts = " ".join(ENGLISH), " ".join(GERMAN)
        self.vocabs = []
        folder.mkdir()
        for name, text in zip(("src", "tgt"), texts, strict=True):
            words = {*text.split(), *text, "&apos;", "&quot;", "&amp;", "@-@"} - {" "}
            found = {p for word in words for p in merge_symbols([*word[:-1], word[-1] + FINAL_MARK], ranks)}
            pieces = sorted(found | {piece.lower() for piece in found} | {"".join(line.split()) for line in lines})
            random.Random(seed).shuffle(pieces)
            pieces = pieces[len(pieces) // 10 :]
            ids = {piece: number for number, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *pieces])}
            (folder / f"vocab-{name}.json").write_text(json.dumps(ids), encoding="utf-8")
            self.vocabs.append(Vocabulary([*SPECIALS, *pieces]))
        (folder / "merges.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        config = {"langs": self.languages, "do_lower_case": lowercase}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))

    def tokenizers(self) -> tuple[MosesBpeTokenizer, MosesBpeTokenizer]:
        """The same tokenizers of nmtkit: a vocabulary for each side, and the same merges."""
        source, target = (
            MosesBpeTokenizer(
                vocab,
                MosesBpe(language, self.merges, mark=FINAL_MARK, lowercase=self.lowercase, normalize=True).to_bytes(),
            )
            for vocab, language in zip(self.vocabs, self.languages, strict=True)
        )
        return source, target
