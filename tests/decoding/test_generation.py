"""A generation from Python: what nmt-generate does, without the command."""

from collections.abc import Callable
from pathlib import Path

import pytest
from prefix_models import ScriptedModel

from nmtkit.checkpoint import Checkpoint
from nmtkit.decoding.config import (
    EngineConfig,
    GenerationOptions,
    InputConfig,
    OutputConfig,
    RequestConfig,
    SearchConfig,
)
from nmtkit.decoding.generation import translate
from nmtkit.decoding.inputs import TextInput
from nmtkit.decoding.requests import RequestFiles
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


@pytest.mark.parametrize(("different", "refused"), [(0, False), (1, False), (2, True)])
def test_a_resume_tolerates_few_differences_in_the_last_lines(different: int, refused: bool) -> None:
    last = [b"line %d\t-0.5\n" % number for number in range(16)]
    again = [b"other\t-0.5\n" if number < different else row.replace(b"0.5", b"0.6") for number, row in enumerate(last)]
    if refused:
        with pytest.raises(UserError, match="are translated differently now"):
            check_same(last, again, "output.partial")
    else:
        check_same(last, again, "output.partial")
