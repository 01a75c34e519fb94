"""Documents: the identity keeps all bytes, translations replace text only, what cannot be held is refused."""

import csv
import io
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_documents import DOCX_BODY, ODF, SAMPLES, docx, zipped

from nmtkit.documents import FORMATS, Prepared
from nmtkit.documents.document import Options, plain
from nmtkit.documents.wrapping import wrapped
from nmtkit.errors import UserError
from nmtkit.text.document_formats import DOCUMENTS, format_of
from nmtkit.text.segment import PLACEHOLDERS, Segment, place, words

Translate = Callable[[Sequence[Segment]], Sequence[Segment]]
GERMAN = Options(target_language="de")
TARGETS = {
    "po": rb'(msgstr(?:\[\d\])?[ ]+)(?:"(?:[^"\\]|\\.)*"\s*)+',
    "xliff": rb"\s*<target>.*?</target>|<target/>",
    "tmx": rb"\s*<tuv xml:lang=.de.>.*?</tuv>",
}
CASES = [(format, sample) for format, samples in SAMPLES.items() for sample in samples]


def reversal(segments: Sequence[Segment]) -> list[Segment]:
    """Words in upper case and in reverse order."""
    result = []
    for segment in segments:
        spans = words(segment.text)
        target = " ".join(segment.text[a:b].upper() for a, b in reversed(spans))
        result.append(place(segment, target, [(i, len(spans) - 1 - i) for i in range(len(spans))]))
    return result


def upper(segments: Sequence[Segment]) -> list[Segment]:
    return [place(s, s.text.upper(), [(i, i) for i in range(len(words(s.text)))]) for s in segments]


def members(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def translate_document(content: bytes, format: str, translate: Translate, options: Options = GERMAN) -> bytes:
    document = FORMATS[format](content, options)
    prepared = Prepared(document, (PLACEHOLDERS,))
    return document.write(prepared.finished(translate(prepared.segments)))


def translated(format: str, content: bytes | str, options: Options = GERMAN) -> str:
    data = content if isinstance(content, bytes) else content.encode()
    return translate_document(data, format, upper, options).decode()


@pytest.mark.parametrize(("format", "content"), CASES)
def test_the_identity_keeps_all_bytes(format: str, content: bytes) -> None:
    result = translate_document(content, format, lambda segments: segments, GERMAN)
    if content.startswith(b"PK"):
        assert members(result) == members(content)
        assert list(members(result)) == list(members(content))
    elif format in TARGETS:  # without the contents of targets
        assert re.sub(TARGETS[format], rb"\1" if format == "po" else b"", result, flags=re.S) == re.sub(
            TARGETS[format], rb"\1" if format == "po" else b"", content, flags=re.S
        )
    else:
        assert result == content


@pytest.mark.parametrize(("format", "content"), CASES)
def test_documents_can_be_read_again_after_any_translation(format: str, content: bytes) -> None:
    first = FORMATS[format](content, GERMAN).segments
    result = translate_document(content, format, reversal, GERMAN)
    again = FORMATS[format](result, GERMAN).segments
    if format not in TARGETS:
        assert [sorted(re.findall(r"\w", s.text.upper())) for s in again] == [
            sorted(re.findall(r"\w", s.text.upper())) for s in first
        ]
    else:
        assert not again


def test_every_format_has_samples_and_endings() -> None:
    assert SAMPLES.keys() == FORMATS.keys() == set(DOCUMENTS)
    assert format_of(PurePath("a/Report.DOCX")) == "docx"
    assert format_of(PurePath("page.htm")) == "html"
    assert format_of(PurePath("list.csv")) is None


def test_html_keeps_what_readers_do_not_see() -> None:
    html = translated("html", SAMPLES["html"][0])
    for kept in (
        "p > a { color: red }",
        "if (a<b)",
        "<!-- note -->",
        "<B CLASS=x>",
        "<code>ls -l</code>",
        "<svg><text>no</text></svg>",
        ">keep <",
    ):
        assert kept in html
    for text in (
        "MY &amp; PAGE",
        "A &quot;GOOD&quot; PAGE",
        "alt='A RED DOG'",
        'title="GO &quot;THERE&quot;"',
        "BUT THIS",
        "<li>TWO <i>THREE</i>",
        "value='SEND IT'",
    ):
        assert text in html
    assert translated("html", "<kbd>X y</kbd> z", Options(kept=frozenset({"kbd"}))) == "<kbd>X y</kbd> Z"


def test_white_space_around_a_translated_paragraph_stays() -> None:
    assert translated("html", "<p>\r\n   a <b>dog</b>\t</p>") == "<p>\r\n   A <b>DOG</b>\t</p>"


def test_docx_has_few_tags_and_keeps_fields_and_deletions() -> None:
    reader = FORMATS["docx"](docx(DOCX_BODY), Options())
    tags = [[part for part in segment.parts if not isinstance(part, str)] for segment in reader.segments]
    assert len(tags[0]) == 5  # bold, a hyperlink, a reference of a footnote
    document = members(translate_document(docx(DOCX_BODY), "docx", reversal))["word/document.xml"].decode()
    assert "<w:del w:id='1'><w:r><w:delText>gone</w:delText></w:r></w:del>" in document
    field = re.search("fldCharType='begin'.*?PAGEREF x.*?separate.*?FOUR.*?fldCharType='end'", document)
    assert field is not None
    assert "PAGE SEE" not in field.group()
    assert "<w:hyperlink r:id='r1' xmlns:r='r'><w:r><w:rPr><w:u/></w:rPr><w:t xml:space=\"preserve\">DOG" in document
    for text in ("CELL NESTED", "BOX THE IN", "CONTROL A IN", "FOX BROWN"):
        assert text in document


def test_a_field_in_a_link_of_a_table_of_contents_stays_whole() -> None:
    field = [f"<w:r><w:{x}</w:r>" for x in ("fldChar w:fldCharType='begin'/>", "instrText>PAGEREF a</w:instrText>")]
    field += ["<w:r><w:fldChar w:fldCharType='separate'/></w:r>", "<w:r><w:t>7</w:t></w:r>"]
    end = "<w:r><w:fldChar w:fldCharType='end'/></w:r>"
    text = "<w:r><w:t>The aim</w:t></w:r><w:r><w:tab/></w:r>"
    outer = "".join(field[:3]).replace("PAGEREF a", "TOC")
    link = f"<w:hyperlink w:anchor='a'>{text}{''.join(field)}{end}</w:hyperlink>"
    content = docx(f"<w:p>{outer}{link}<w:r><w:t> and more</w:t></w:r></w:p>")
    document = members(translate_document(content, "docx", upper))["word/document.xml"].decode()
    preserved = [f'<w:r><w:t xml:space="preserve">{text}</w:t></w:r>' for text in ("THE AIM ", "7", " AND MORE")]
    tab = "<w:r><w:tab/></w:r>"
    expected = (
        f"{outer}<w:hyperlink w:anchor='a'>{preserved[0]}{tab}{''.join(field[:3])}{preserved[1]}{end}</w:hyperlink>"
    )
    assert f"<w:p>{expected}{preserved[2]}</w:p>" in document


def test_docx_translates_all_its_parts_in_their_order() -> None:
    texts = [segment.text for segment in FORMATS["docx"](SAMPLES["docx"][0], Options()).segments]
    assert texts[0] == "The quick brown fox sees the lazy dog & sleeps."
    assert {"a header", "a note", "a comment", "nested cell", "kept new after tab"} <= set(texts)


def test_a_note_inside_a_paragraph_of_odt_is_a_segment_of_its_own() -> None:
    content = members(translate_document(SAMPLES["odt"][0], "odt", reversal))["content.xml"].decode()
    assert "TEXT<text:note>" in content
    assert "<text:p>NOTE &amp; FOOT A</text:p>" in content


def test_subtitles_keep_times_and_dialogues() -> None:
    srt = translated("srt", SAMPLES["srt"][0])
    assert "\r\n{\\an8}<i>HELLO THERE,</i> MY\r\nGOOD FRIEND & ALL\r\n" in srt
    assert "- WHO IS IT?\r\n- <b>IT IS ME.</b>" in srt
    assert "<v Roger Bing>WE ARE <c.loud>VERY &amp; VERY</c>\nHAPPY TO SEE <00:00:01.500>YOU" in translated(
        "vtt", SAMPLES["vtt"][0]
    )


@pytest.mark.parametrize(
    ("text", "lines", "width", "expected"),
    [
        ("one two three four", 2, 40, "one two\nthree four"),
        ("one two three four", 1, 9, "one two\nthree\nfour"),
        ("unbreakable", 2, 5, "unbreakable"),
        ("日本語の字幕です。はい", 2, 20, "日本語の字幕\nです。はい"),
    ],
)
def test_wrapping(text: str, lines: int, width: int, expected: str) -> None:
    assert plain(wrapped(Segment((text,)), lines, width, "\n")) == expected


def test_targets_are_filled_only_where_they_are_missing() -> None:
    assert 'msgstr "DONE"' not in translated("po", SAMPLES["po"][0])
    assert 'msgstr[1] "%d FILES"' in translated("po", SAMPLES["po"][0])
    xliff = translated("xliff", SAMPLES["xliff"][0])
    assert "\r\n  <target>PRESS <g id='1'>THE <x id='2'/>KEY</g> A NOW</target>\r\n" in xliff
    assert "<mrk mtype='protected'>K8s</mrk></target>" in xliff
    assert ">NO<" not in xliff
    tmx = translated("tmx", SAMPLES["tmx"][0])
    assert "\n <tuv xml:lang=\"de\"><seg>CLICK <bpt i='1'>&lt;b></bpt>HERE<ept i='1'>&lt;/b></ept></seg></tuv>" in tmx
    assert "YES" not in tmx
    assert "<tuv xml:lang='de'><seg>NO</seg></tuv>" in tmx


def test_chosen_columns_and_keys() -> None:
    assert translated("csv", "id,text\na,b\n", Options(columns=["text"])) == "id,text\na,B\n"
    assert translated("tsv", 'x\ty"\n', Options(columns=["2"])) == 'x\t"Y"""\n'
    assert (
        translated("json", '{"a": {"t": "x"}, "b": [{"t": "y"}, "z"]}', Options(keys=["b.*.t"]))
        == '{"a": {"t": "x"}, "b": [{"t": "Y"}, "z"]}'
    )
    with pytest.raises(UserError, match="no column 'x'"):
        translated("csv", "a,b\n", Options(columns=["x"]))


def test_markdown_keeps_its_marks() -> None:
    markdown = translated("md", SAMPLES["md"][0])
    assert '**BOLD _AND_ TEXT** WITH `code x`, [A LINK](http://x.org "T") AND' in markdown
    assert "| CELL ONE | `x` CELL |" in markdown
    assert "> QUOTED TEXT GOES ON\n" in markdown
    assert r"2 \* 3" in markdown


@given(st.text("<>ab!-=\"' /&;[]\n", max_size=60))
def test_any_html_and_text_keep_their_bytes(text: str) -> None:
    for format in ("html", "md", "txt", "csv", "tsv"):
        assert translate_document(text.encode(), format, lambda segments: segments, GERMAN) == text.encode()
        translate_document(text.encode(), format, reversal, GERMAN)


@given(st.lists(st.lists(st.text('a",;\n ', max_size=5), min_size=2, max_size=4), min_size=1, max_size=4))
def test_fields_are_those_of_the_csv_module(rows: list[list[str]]) -> None:
    file = io.StringIO()
    csv.writer(file, delimiter="\t").writerows(rows)
    expected = [field for row in rows for field in row if "a" in field]
    assert [plain(segment) for segment in FORMATS["tsv"](file.getvalue().encode(), GERMAN).segments] == expected


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><x>&b;</x>'
EXTERNAL = '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><xliff>&a;</xliff>'


@pytest.mark.parametrize(
    ("format", "content", "message"),
    [
        ("html", b"caf\xe9", "not valid utf-8"),
        ("html", b"<meta charset=klingon>", "not valid klingon"),
        ("docx", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "encrypted or in an old format"),
        ("docx", b"PK\x03\x04broken", "damaged zip file"),
        ("docx", b"", "damaged zip file"),
        ("docx", zipped({"a": "b"}), "no word/document.xml"),
        ("docx", zipped({"word/document.xml": "<w:document"}), "not well-formed"),
        ("docx", zipped({"word/document.xml": BOMB}), "declares the entity 'a'"),
        ("docx", zipped({"word/document.xml": "<document/>"}), "usual namespace prefix"),
        ("odt", zipped({"content.xml": f"<x {ODF}/>", "META-INF/manifest.xml": "<m:encryption-data/>"}), "encrypted"),
        ("odt", SAMPLES["docx"][0], "no content.xml"),
        ("xliff", EXTERNAL.encode(), "declares the entity"),
        ("xliff", b"<x/>", "not XLIFF"),
        ("xliff", b"<xliff><source></xliff>", "not well-formed"),
        ("html", b"<b>" * 2000 + b"x" + b"</b>" * 2000, "too many elements inside each other"),
        ("tmx", b"<x/>", "not TMX"),
        ("po", b"msgid broken", "line 1 of the document"),
        ("json", b"{", "not JSON"),
        ("json", b"[" * 100_000, "not JSON"),
        ("srt", b"just text", "no subtitles"),
        ("vtt", b"1\n", "does not begin with WEBVTT"),
        ("txt", b"\xff\xfe\x00", "not valid utf-16-le"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(format: str, content: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        translate_document(content, format, upper, GERMAN)


def test_large_zip_files_are_refused_before_they_are_unpacked() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("word/document.xml", "w") as member:
        for _ in range(257):
            member.write(bytes(1 << 20))
    with pytest.raises(UserError, match="larger than 256 MiB"):
        translate_document(file.getvalue(), "docx", upper)


def test_xml_keeps_its_encoding() -> None:
    unit = "<unit><segment><source>é</source></segment></unit>"
    latin = f"<?xml version='1.0' encoding='ISO-8859-1'?><xliff><file>{unit}</file></xliff>"
    result = translate_document(latin.encode("latin-1"), "xliff", lambda s: [place(s[0], "Ж", [(0, 0)])], GERMAN)
    assert b"\xe9</source><target>&#1046;</target>" in result
    wide = b"\xff\xfe" + latin.replace("ISO-8859-1", "UTF-16").encode("utf-16-le")
    assert translate_document(wide, "xliff", upper, GERMAN).decode("utf-16").count("<target>É</target>") == 1


def test_a_placeholder_is_restored_and_a_text_without_letters_is_not_sent() -> None:
    sent: list[str] = []

    def record(segments: Sequence[Segment]) -> Sequence[Segment]:
        sent.extend(segment.text for segment in segments)
        return [place(segment, "X", []) for segment in segments]

    result = translate_document(b'["see {name}", "https://x.org", "12 %", "{a}"]', "json", record)
    assert sent == ["see {name}"]
    assert result == b'["X {name}", "https://x.org", "12 %", "{a}"]'
