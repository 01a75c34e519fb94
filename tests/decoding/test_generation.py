"""A generation from Python: what nmt-generate does, without the command."""

from collections.abc import Callable
from pathlib import Path

import pytest
from prefix_models import ScriptedModel
from written_datasets import PAIRS, write_dataset

from nmtkit.checkpoint import Checkpoint, load_checkpoint
from nmtkit.decoding.config import (
    EngineConfig,
    GenerationOptions,
    InputConfig,
    OutputConfig,
    RequestConfig,
    SearchConfig,
)
from nmtkit.decoding.generation import generate, translate
from nmtkit.decoding.inputs import SplitInput, TextInput, open_dataset, shard_of
from nmtkit.decoding.requests import Request, RequestFiles
from nmtkit.decoding.resume import check_same
from nmtkit.decoding.translator import Translator
from nmtkit.errors import UserError
from nmtkit.text.tokenizer import Tokenizer

LINES = ["the dog runs", "", "a cat on the street", "die katze"]
SEARCH = SearchConfig(beam=2, max_len_b=3)
ENGINE = EngineConfig(device="cpu", precision="fp32")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "input.en"
    path.write_text("".join(f"{line}\n" for line in LINES))
    return path


def test_a_generation_writes_what_the_translator_returns(tiny_checkpoint: Path, text: Path, tmp_path: Path) -> None:
    output = OutputConfig(output=tmp_path / "output.de")
    generate(
        [tiny_checkpoint], GenerationOptions(input=InputConfig(input=text), output=output, search=SEARCH, engine=ENGINE)
    )
    translator = Translator.from_checkpoint(tiny_checkpoint, device="cpu", precision="fp32")
    expected = translator.translate(LINES, beam=2, max_len_b=3)
    assert (tmp_path / "output.de").read_text(encoding="utf-8").splitlines() == expected


def test_the_attention_page_is_refused_before_the_search_if_the_model_has_no_attention(
    tokenizer: Tokenizer, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ScriptedModel({})
    monkeypatch.setattr(model, "encode", lambda *_: pytest.fail("the model was called"))
    translator = Translator(model, tokenizer, tokenizer)
    options = GenerationOptions(
        output=OutputConfig(output=tmp_path / "output.de", attention_html=tmp_path / "page.html"), search=SEARCH
    )
    with pytest.raises(UserError, match="no attention to show: omit --alignment and --attention-html"):
        translate(translator, TextInput(text), RequestFiles(options.requests), options)
    with pytest.raises(UserError, match="no attention to show: omit --alignment and --attention-html"):
        translator.attention(LINES)
    assert list(tmp_path.iterdir()) == [text]


def test_an_error_in_a_shard_reports_the_line_number_in_the_whole_input(
    make_checkpoint: Callable[..., Checkpoint], text: Path, tmp_path: Path
) -> None:
    (tmp_path / "scored.de").write_text("\n\n\n" + "hund " * 20 + "\n")
    options = GenerationOptions(
        input=InputConfig(shard="2/2"),
        output=OutputConfig(output=tmp_path / "output.de"),
        requests=RequestConfig(score=tmp_path / "scored.de"),
    )
    translator = Translator.of([make_checkpoint(positions="learned", max_positions=9)], ENGINE)
    with pytest.raises(UserError, match="--score: the translation of line 4 has"):
        translate(translator, TextInput(text), RequestFiles(options.requests), options)


def test_a_dataset_split_provides_input_and_references(
    tiny_checkpoint: Path, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    checkpoint = load_checkpoint(tiny_checkpoint)
    folder = write_dataset(tmp_path / "data", checkpoint)
    split = open_dataset(folder, checkpoint, tiny_checkpoint).split("test")
    source = SplitInput(split, lambda ids: Request("", ids=ids))
    assert source.count() == source.length == len(PAIRS)
    assert source.references(tokenizer) == [target for _, target in PAIRS]


def test_a_shard_of_a_pipe_or_device_is_refused(text: Path, tmp_path: Path) -> None:
    assert shard_of(TextInput(text), "2/3", buffer=1) == slice(1, 2)
    assert shard_of(TextInput(text), None, buffer=1) == slice(0, None)
    with pytest.raises(UserError, match="--shard cannot count the lines of a pipe"):
        shard_of(TextInput(Path("/dev/null")), "1/2", buffer=1)


@pytest.mark.parametrize(("different", "refused"), [(0, False), (1, False), (2, True)])
def test_a_resume_tolerates_few_differences_in_the_last_lines(different: int, refused: bool) -> None:
    last = [b"line %d\t-0.5\n" % number for number in range(16)]
    again = [b"other\t-0.5\n" if number < different else row.replace(b"0.5", b"0.6") for number, row in enumerate(last)]
    if refused:
        with pytest.raises(UserError, match="are translated differently now"):
            check_same(last, again, "output.partial")
    else:
        check_same(last, again, "output.partial")
