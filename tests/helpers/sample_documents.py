# ruff: noqa: E501
"""Small awkward documents of each format: byte order marks, CRLF, entities, odd quotation marks, comments, nesting."""

import io
import zipfile

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
ODF = " ".join(
    f'xmlns:{p}="urn:oasis:names:tc:opendocument:xmlns:{n}:1.0"'
    for p, n in (("office", "office"), ("text", "text"), ("table", "table"))
)


def zipped(members: dict[str, str], first: str = "") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        if first:
            archive.writestr(zipfile.ZipInfo("mimetype"), first)
        for name, text in members.items():
            archive.writestr(name, text)
    return file.getvalue()


def docx(body: str, **members: str) -> bytes:
    document = f'<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\r\n<w:document {W}><w:body>{body}<w:sectPr/></w:body></w:document>'
    parts = {f"word/{name}.xml": f"<w:{name} {W}>{text}</w:{name}>" for name, text in members.items()}
    return zipped(
        {"[Content_Types].xml": "<Types/>", "word/document.xml": document, **parts, "word/media/a.bin": "\0\1"}
    )


def odt(body: str, styles: str = "") -> bytes:
    content = f'<?xml version="1.0" encoding="UTF-8"?>\n<office:document-content {ODF}><office:body><office:text>{body}</office:text></office:body></office:document-content>'
    members = {"content.xml": content, "styles.xml": f"<office:document-styles {ODF}>{styles}</office:document-styles>"}
    return zipped({**members, "META-INF/manifest.xml": "<manifest/>"}, "application/vnd.oasis.opendocument.text")


def run(text: str, format: str = "") -> str:
    return f'<w:r w:rsidR="00A1"><w:rPr>{format}<w:lang w:val="en-US"/></w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


DOCX_BODY = (
    f"<w:p><w:pPr><w:jc w:val='left'/></w:pPr>{run('The ')}<w:proofErr w:type='spellStart'/>{run('quick ')}{run('brown fox', '<w:b/>')}"
    f"{run(' sees the ')}<w:hyperlink r:id='r1' xmlns:r='r'>{run('lazy', '<w:u/>')}{run(' dog', '<w:u/>')}</w:hyperlink>"
    f"<w:r><w:rPr><w:vertAlign w:val='superscript'/></w:rPr><w:footnoteReference w:id='2'/></w:r>{run(' &amp; sleeps.')}</w:p>"
    f"<w:p>{run('kept')}<w:del w:id='1'><w:r><w:delText>gone</w:delText></w:r></w:del><w:ins w:id='2'>{run(' new')}</w:ins>"
    "<w:bookmarkStart w:id='0' w:name='x'/><w:bookmarkEnd w:id='0'/><w:r><w:tab/><w:t>after tab</w:t><w:br/></w:r></w:p>"
    "<w:p><w:r><w:t>See page </w:t></w:r><w:r><w:fldChar w:fldCharType='begin'/></w:r><w:r><w:instrText>PAGEREF x</w:instrText></w:r>"
    "<w:r><w:fldChar w:fldCharType=\"separate\"/></w:r><w:r><w:t>four</w:t></w:r><w:r><w:fldChar w:fldCharType='end'/></w:r></w:p>"
    "<w:tbl><w:tr><w:tc><w:p><w:r><w:t>cell</w:t></w:r></w:p><w:tbl><w:tr><w:tc><w:p><w:r><w:t>nested cell</w:t></w:r></w:p></w:tc></w:tr></w:tbl><w:p/></w:tc></w:tr></w:tbl>"
    "<w:p><w:r><w:t>before box</w:t></w:r><w:r><w:pict><w:txbxContent><w:p><w:r><w:t>in the box</w:t></w:r></w:p></w:txbxContent></w:pict></w:r><w:r><w:t>after box</w:t></w:r></w:p>"
    f"<w:sdt><w:sdtPr/><w:sdtContent><w:p>{run('in a control')}</w:p></w:sdtContent></w:sdt><w:p/><w:p><w:r><w:t>12</w:t></w:r></w:p>"
)  # fmt: skip

SAMPLES: dict[str, list[bytes]] = {
    "html": [
        b"\xef\xbb\xbf<!DOCTYPE html>\r\n<HTML lang=en><head><meta charset=utf-8><title>My &amp; page</title><META NAME='description' content='A \"good\" page'>"
        b"<style>p > a { color: red }</style><script>if (a<b) document.write('<p>no</p>')</script></head>\r\n<body onload='x()'><!-- note --><p>Hello <B CLASS=x>big\r\n world</B>,"
        b"<br/>it&#39;s &nbsp;fine<img src=a.png alt='A red dog'> now.<ul><li>one<li>two <i>three</i></ul><pre>  line one\n    line <b>two</b></pre>"
        b"<p translate=no>keep <span class='translate'>but this</span></p><td><a href='?a=1&b=2' title=\"Go &quot;there&quot;\">go there</a> <code>ls -l</code> today</td>"
        b"<input type=submit value='Send it'><textarea>Dear <you></textarea><svg><text>no</text></svg> 5 < 6 <p>x</p></body></html>\r\n",
        b"<p>caf\xe9 <meta charset='iso-8859-1'>cr\xe8me</p>", b"", b"plain text only", b"<p>unclosed <a href='x>text",
        "<p>wide ünï</p>".encode("utf-16"),
    ],
    "docx": [docx(DOCX_BODY, header1=f"<w:p>{run('a header')}</w:p>", footnotes=f"<w:footnote w:id='2'><w:p>{run('a note')}</w:p></w:footnote>",
                  comments=f"<w:comment w:id='0'><w:p>{run('a comment')}</w:p></w:comment>"), docx("")],
    "odt": [odt("<text:h text:outline-level='1'>A heading</text:h><text:p text:style-name='P1'>Some\n  <text:span text:style-name='T1'>bold</text:span>\r\n text<text:note><text:note-citation>1</text:note-citation>"
                "<text:note-body><text:p>a foot &amp; note</text:p></text:note-body></text:note> with<text:s text:c='2'/>a <text:a>link</text:a>.</text:p><text:p/>"
                "<table:table><table:table-row><table:table-cell><text:p>cell one</text:p></table:table-cell></table:table-row></table:table>", "<text:p>a footer</text:p>"), odt("")],
    "srt": [b"\xef\xbb\xbf1\r\n00:00:01,000 --> 00:00:02,500 X1:10 X2:20\r\n{\\an8}<i>Hello there,</i>\r\nmy good friend & all\r\n\r\n\r\n2\r\n00:00:03,000 --> 00:00:04,000\r\n- Who is it?\r\n- <b>It is me.</b>\r\n\r\n3\r\n00:00:05,000 --> 00:00:06,000\r\n\r\n4\r\n00:00:07,000 --> 00:00:08,000\r\n42", b""],
    "vtt": [b"WEBVTT - A title\n\nNOTE\nnot a cue\n\nSTYLE\n::cue { color: red }\n\nintro\n00:01.000 --> 00:02.000 align:start\n<v Roger Bing>We are <c.loud>very &amp; very</c> happy\nto see <00:00:01.500>you\n\n00:00:03.000 --> 00:00:04.000\nbye\n", b"WEBVTT"],
    "po": [b'\xef\xbb\xbf# A comment\nmsgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n\n#: a.c:1\n#, c-format\nmsgctxt "menu"\nmsgid ""\n"Open \\"%s\\"\\n"\n"now"\nmsgstr ""\n\nmsgid "one file"\nmsgid_plural "%d files"\nmsgstr[0] ""\nmsgstr[1] ""\n\nmsgid "done"\nmsgstr  "fertig"\n\n#~ msgid "old"\n#~ msgstr ""\n', b""],
    "xliff": [
        b"<?xml version='1.0'?>\r\n<xliff version='1.2'><file source-language=\"en\"><body><trans-unit id='1' >\r\n  <source>Press <g id='1'>the <x id='2'/>key</g> &#65; now</source>\r\n</trans-unit>"
        b"<trans-unit id='2'><source>old text</source><target>alter Text</target></trans-unit><trans-unit id='3' translate='no'><source>No</source></trans-unit>"
        b"<trans-unit id='4'><source>a <bpt id='1'>&lt;b></bpt>bold<ept id='1'>&lt;/b></ept> <mrk mtype='protected'>K8s</mrk></source><target/><alt-trans><source>x</source><target>y</target></alt-trans></trans-unit></body></file></xliff>",
        b"<xliff xmlns='urn:oasis:names:tc:xliff:document:2.0' version='2.0'><file id='f'><unit id='1'><segment>\n<source>Some <pc id='1'>bold</pc> <ph id='2' canReorder='no'/>text</source>\n<target></target></segment><ignorable><source> </source></ignorable></unit></file></xliff>",
    ],
    "tmx": [b"<?xml version=\"1.0\"?><!DOCTYPE tmx SYSTEM \"tmx14.dtd\"><tmx version='1.4'><header srclang='en-US' /><body><tu>\n <tuv xml:lang='en-us'><seg>Click <bpt i='1'>&lt;b></bpt>here<ept i='1'>&lt;/b></ept></seg></tuv>\n</tu>"
            b"<tu><tuv xml:lang='en-US'><seg>yes</seg></tuv><tuv xml:lang='DE-AT'><seg>ja</seg></tuv></tu><tu><tuv xml:lang='de'><seg/></tuv><tuv xml:lang='en-US'><seg>no</seg></tuv></tu></body></tmx>"],
    "txt": [b"\xef\xbb\xbfA first line\r\nthat goes on.\r\n\r\n  - an item\r\n- another\r\n\r\n\r\nLast", b"", b"\n\n"],
    "md": [b"---\ntitle: x\n---\n# A *heading* here\r\n\r\nSome **bold _and_ text** with `code x`, [a link](http://x.org \"T\") and\nmore 2 \\* 3 &amp; lines.\n\n> quoted text\n> goes on\n\n- item one\n  continues\n1. item two ![alt](a.png)\n\n| a b | c |\n|---|:-:|\n| cell one | `x` cell |\n\n```py\nno code\n```\n\n<div>no html</div>\n\n[ref]: http://x.org\n", b""],
    "csv": [b'\xef\xbb\xbfid;text\r\n1;"A ""good"" text"\r\n2;plain text;\r\n\r\n3;"two\r\nlines"', b"", b"a,b\n"],
    "tsv": [b"id\ttext\n1\tsome text\n"],
    "json": [b'{"a": "A text", "b" : [1e3, "one \\u00e9 two", {"a":"\xc3\xa9t\xc3\xa9 {name}"}], "a": null, "c": "http://x.org"}\r\n', b'"x"', b"{}"],
}  # fmt: skip
