"""The public corpora of several recipes."""

from typing import NamedTuple

from steps import Recipe

URL = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
DOWNLOADS = {  # bytes and checksums
    "train.en.gz": (568929, "sha256:d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f"),
    "train.de.gz": (637044, "sha256:726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6"),
    "val.en.gz": (21650, "sha256:14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28"),
    "val.de.gz": (24681, "sha256:f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a"),
    "test_2016_flickr.en.gz": (21077, "sha256:611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9"),
    "test_2016_flickr.de.gz": (22890, "sha256:9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8"),
}


class Corpus(NamedTuple):
    """A corpus: its languages, the names of its splits, and how to get its text."""

    source: str
    target: str
    train: str
    valid: str
    test: str
    how_to_get: str
    options: str = ""  # of nmt-preprocess, to learn its vocabulary
    scoring: str = ""  # options of nmt-score

    def fetch(self, run: Recipe, folder: str, text: str = "text", splits: tuple[str, ...] = ()) -> None:
        """Copy the text from a folder to `text` in the work folder. Without a folder, download Multi30k."""
        for name in (f"{split}.{side}.gz" for split in splits or self[2:5] for side in self[:2]):
            if folder or self is not MULTI30K:
                run.file(f"{text}/{name}", f"{folder}/{name}" if folder else "", self.how_to_get)
            else:
                run.file(f"{text}/{name}", f"{URL}/{name}", "", *DOWNLOADS[name])

    def prefixes(self, text: str = "text") -> str:
        """The languages and texts, as options of nmt-preprocess."""
        return f"-s {self.source} -t {self.target} --trainpref {text}/{self.train} {self.held_out(text)}"

    def held_out(self, text: str = "text") -> str:
        """The validation and test texts, as options of nmt-preprocess."""
        return f"--validpref {text}/{self.valid} --testpref {text}/{self.test}"


MULTI30K = Corpus(
    *(
        "en",
        "de",
        "train",
        "val",
        "test_2016_flickr",
        "set MULTI30K_DIR",
        "--character-coverage 1",
        "--target-lang de",
    ),
)
TANAKA = Corpus(
    *("en", "ja", "train", "dev", "test"),
    "set TANAKA_DIR to the folder of the corpus, see examples/tanaka/README.md",
    "--separate-vocab",
    "--target-lang ja --tokenize char",
)
SEGMENTED = Corpus(
    *("en", "de", "train", "valid", "test.2016"),
    "set MULTI30K_BPE_DIR to the folder of the segmented text, see examples/multi30k-bpe/README.md",
)
CORPORA = {"multi30k": MULTI30K, "tanaka": TANAKA}
