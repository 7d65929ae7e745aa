"""TMX and PO: what is written is read back, by us and by others; what is wrong is told with its line."""

import io
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.data import read_pairs, tmx
from glassformer.data.languages import find_languages
from glassformer.data.lines import Located, Pair
from glassformer.data.po import PoWriter, read_po
from glassformer.data.tmx import TmxWriter, read_tmx
from glassformer.errors import UserError

few = settings(max_examples=50)
controls = "".join(map(chr, [*range(9), 11, 12, *range(14, 32), 0xFFFE, 0xFFFF]))
hard = st.sampled_from("\n\r\t<>&\"'\\ \u3000\u2028\u0085\x7f]我𠮷🐉n0")
xml_text = st.text(hard | st.characters(codec="utf-8", exclude_characters=controls), max_size=12)
po_text = st.text(hard | st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
po_pairs = st.lists(st.tuples(po_text.filter(bool), po_text.filter(bool)), max_size=5)
Write = Callable[[str, str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return path

    return write


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch") / "file"


def document(body: str, srclang: str = "zh", before: str = "") -> str:
    return f'{before}<tmx version="1.4"><header srclang="{srclang}"/><body>{body}</body></tmx>'


def unit(**variants: str) -> str:
    return (
        "<tu>"
        + "".join(f'<tuv xml:lang="{k.replace("_", "-")}"><seg>{v}</seg></tuv>' for k, v in variants.items())
        + "</tu>"
    )


def written(writer_class: Callable[..., TmxWriter | PoWriter], rows: list[Located], *languages: str) -> str:
    stream = io.StringIO()
    writer = writer_class(stream, *languages)
    for row in rows:
        writer.write(row)
    writer.close()
    return stream.getvalue()


def located(pairs: list[tuple[str, str]]) -> list[Located]:
    return [Located(Pair(*pair), "a:1", "b:1") for pair in pairs]


def mistake(rows: object) -> str:
    with pytest.raises(UserError) as caught:
        list(rows)  # type: ignore[call-overload]
    assert "\n" not in str(caught.value)
    return str(caught.value)


@few
@given(
    st.lists(st.tuples(xml_text, xml_text, st.dictionaries(st.sampled_from(["id", "a b", '"<']), xml_text)), max_size=4)
)
def test_tmx_reads_back_what_it_wrote_and_so_does_an_xml_parser(scratch: Path, rows: list) -> None:
    text = written(TmxWriter, [Located(Pair(s, t), "", "", extra) for s, t, extra in rows], "zh-CN", "en")
    scratch.write_bytes(text.encode("utf-8"))
    assert [(*row.pair, row.extra) for row in read_tmx(scratch, "zh-CN", "en")] == rows
    lang = "{http://www.w3.org/XML/1998/namespace}lang"
    units = ElementTree.fromstring(text.encode("utf-8")).findall("body/tu")
    assert [[(v.get(lang), v.findtext("seg")) for v in u.findall("tuv")] for u in units] == [
        [("zh-CN", s), ("en", t)] for s, t, _ in rows
    ]


# The elements that we write, as TMX 1.4b declares them.
DECLARATIONS = """
<!ELEMENT tmx (header, body)> <!ATTLIST tmx version CDATA #REQUIRED>
<!ELEMENT header (note | prop | ude)*>
<!ATTLIST header creationtool CDATA #REQUIRED creationtoolversion CDATA #REQUIRED datatype CDATA #REQUIRED
  segtype (block | paragraph | sentence | phrase) #REQUIRED adminlang CDATA #REQUIRED srclang CDATA #REQUIRED
  o-tmf CDATA #REQUIRED>
<!ELEMENT note (#PCDATA)> <!ELEMENT ude EMPTY> <!ELEMENT body (tu*)>
<!ELEMENT prop (#PCDATA)> <!ATTLIST prop type CDATA #REQUIRED>
<!ELEMENT tu ((note | prop)*, tuv+)> <!ELEMENT tuv ((note | prop)*, seg)> <!ATTLIST tuv xml:lang CDATA #REQUIRED>
<!ELEMENT seg (#PCDATA)>
"""


def test_what_is_written_is_valid_tmx() -> None:
    from lxml import etree

    validator = etree.DTD(io.StringIO(DECLARATIONS))
    text = written(TmxWriter, [Located(Pair("一 < 二", "a & b"), "", "", {"id": 7})], "zh", "en").encode("utf-8")
    assert validator.validate(etree.fromstring(text)), validator.error_log
    assert not validator.validate(etree.fromstring(text.replace(b' srclang="zh"', b"")))


@pytest.mark.parametrize("bad", ["\0", "\x0b", "\x1f", "\uffff"])
def test_what_xml_cannot_hold_is_refused_with_its_place(bad: str) -> None:
    with pytest.raises(UserError, match=rf"a\.tsv:3: U\+{ord(bad):04X} cannot be written in XML"):
        written(TmxWriter, [Located(Pair("ok", f"x{bad}"), "a.tsv:2", "a.tsv:3")], "zh", "en")


inline = st.recursive(
    st.text("ab 我", min_size=1, max_size=3).map(lambda text: (text, text)),
    lambda inner: st.tuples(
        st.sampled_from(["bpt", "ept", "ph", "it", "ut", "hi", "sub"]), st.lists(inner, max_size=3)
    ).map(
        lambda made: (
            f"<{made[0]}>{''.join(x for x, _ in made[1])}</{made[0]}>",
            "".join(kept for _, kept in made[1]) if made[0] == "hi" else "",
        )
    ),
    max_leaves=6,
)


@few
@given(st.lists(inline, max_size=5), st.integers(1, 60))
def test_inline_codes_go_and_highlighted_text_stays_wherever_the_reads_fall(
    scratch: Path, parts: list, chunk: int
) -> None:
    markup, kept = "".join(x for x, _ in parts), "".join(text for _, text in parts)
    scratch.write_text(document(unit(zh=markup, en="x")), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tmx, "CHUNK", chunk)
        assert [row.pair for row in read_tmx(scratch, "zh", "en")] == [(kept, "x")]


@pytest.mark.parametrize(
    ("tags", "asked", "found"),
    [
        (["zh-CN", "en-US"], ("zh", "en"), (0, 1)),
        (["ZH", "EN"], ("zh-CN", "en-GB"), (0, 1)),
        (["zh-TW", "zh-CN", "en"], ("zh-CN", "en"), (1, 2)),
        (["zh-TW", "zh", "en"], ("zh", "en"), (1, 2)),
        (["zh-TW", "zh-CN", "en"], ("zh", "en"), (0, 2)),
        (["zh_CN", "en"], ("zh-cn", "en"), (0, 1)),
        (["en", "zh", "zh"], ("zh", "en"), (1, 0)),
        (["zh-TW", "en"], ("zh-CN", "en"), None),
        (["zha", "en"], ("zh", "en"), None),
    ],
)
def test_languages_match_by_tag_then_by_what_a_tag_begins_with(
    write: Write, tags: list, asked: tuple, found: object
) -> None:
    variants = "".join(f'<tuv xml:lang="{tag}"><seg>{place}</seg></tuv>' for place, tag in enumerate(tags))
    path = write("a.tmx", document(f"<tu>{variants}</tu>"))
    if found is None:
        told = mistake(read_tmx(path, *asked))
        assert (
            f"a.tmx: no unit holds both {asked[0]} and {asked[1]} (found: en, {tags[0]})" in told and "--from" in told
        )
    else:
        assert [tuple(map(int, row.pair)) for row in read_tmx(path, *asked)] == [found]


def test_units_without_both_languages_are_counted(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    path = write("a.tmx", document(unit(zh="一", en="one") + unit(zh="二", de="zwei") + unit(zh="三", en="three")))
    assert read_pairs(path, source="zh", target="en") == [("一", "one"), ("三", "three")]
    assert "skipped 1 units without zh or without en" in caplog.text


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "iso-8859-1"])
def test_a_doctype_an_old_lang_and_any_encoding_of_xml_are_read(write: Write, encoding: str) -> None:
    name = encoding.removesuffix("-sig")
    before = f'<?xml version="1.0" encoding="{name}"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n'
    body = '<tu><tuv lang="fr"><seg>é&#x4E00;</seg></tuv>\n<tuv lang="en"><seg>e</seg></tuv></tu>'
    path = write("a.tmx", document(body, before=before).encode(encoding))
    (row,) = read_tmx(path, "fr", "en")
    assert row.pair == ("é一", "e")
    assert (row.source_at, row.target_at) == (f"{path}:3", f"{path}:4")


@pytest.mark.parametrize(
    "declared",
    [
        '<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">',
        '<!ENTITY secret SYSTEM "file:///etc/passwd">',
        '<!ENTITY % outer SYSTEM "http://localhost/x.dtd"> %outer;',
    ],
)
def test_entities_are_refused(write: Write, declared: str) -> None:
    path = write("a.tmx", document(unit(zh="&b;", en="x"), before=f"<!DOCTYPE tmx [\n{declared}\n]>"))
    assert re.search(r"a\.tmx:2: it declares the entity '\w+', which is refused", mistake(read_tmx(path, "zh", "en")))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (document("\n<tu>\n<tuv>"), r"a\.tmx:3: a <tuv> without xml:lang"),
        (document("\n\n<tu></body>"), r"a\.tmx:3: not well-formed XML: mismatched tag"),
        ("<html/>", r"a\.tmx:1: the root is <html>, expected <tmx>"),
        ("", r"a\.tmx:1: not well-formed XML: no element found"),
        ("<tmx>", r"a\.tmx:1: not well-formed XML: no element found"),
        ("<?xml version='1.0' encoding='no-such'?><tmx/>", r"a\.tmx:1: .*encoding"),
        ("<?xml version='1.0' encoding='gbk'?><tmx/>", r"a\.tmx:1: .*encoding.*UTF-8"),
        ("zh\ten\n", r"a\.tmx:1: not well-formed XML: syntax error"),
    ],
)
def test_each_mistake_in_tmx_is_told_with_its_line(write: Write, content: str, told: str) -> None:
    assert re.search(told, mistake(read_tmx(write("a.tmx", content), "zh", "en")))


def test_a_bad_byte_in_tmx_stops_or_is_replaced(write: Write) -> None:
    path = write("a.tmx", document("\n" + unit(zh="一", en="QQ")).encode().replace(b"QQ", b"a\xffb"))
    assert re.search(r"a\.tmx:2: not well-formed .*--errors replace", mistake(read_tmx(path, "zh", "en")))
    assert [row.pair for row in read_tmx(path, "zh", "en", "replace")] == [("一", "a\ufffdb")]


def test_units_come_before_the_file_ends(write: Write) -> None:
    path = write("a.tmx", document(unit(zh="一", en="one") * 9 + "<broken"))
    rows = read_tmx(path, "zh", "en")
    assert [next(rows).pair for _ in range(9)] == [("一", "one")] * 9
    assert "not well-formed" in mistake(rows)


@few
@given(po_pairs)
def test_po_reads_back_what_it_wrote(scratch: Path, pairs: list[tuple[str, str]]) -> None:
    scratch.write_bytes(written(PoWriter, located(pairs), "zh_CN").encode("utf-8"))
    assert [row.pair for row in read_po(scratch, "en", "zh")] == pairs


@few
@given(po_pairs)
def test_polib_reads_what_is_written(scratch: Path, pairs: list[tuple[str, str]]) -> None:
    # Of gettext's escapes it leaves out \a alone.
    pairs = [(source.replace("\a", "a"), target.replace("\a", "a")) for source, target in pairs]
    polib = pytest.importorskip("polib", reason="polib, of the test extra, is not installed")
    scratch.write_bytes(written(PoWriter, located(pairs + pairs[:1]), "zh_CN").encode("utf-8"))
    catalogue = polib.pofile(str(scratch), check_for_duplicates=True)
    assert [(entry.msgid, entry.msgstr) for entry in catalogue] == pairs + pairs[:1]
    assert catalogue.metadata["Language"] == "zh_CN"


@few
@given(
    st.lists(
        st.tuples(po_text.filter(bool), po_text, st.booleans(), st.booleans(), st.sampled_from([None, "menu"])),
        max_size=5,
    )
)
def test_what_polib_writes_is_read(scratch: Path, entries: list) -> None:
    polib = pytest.importorskip("polib", reason="polib, of the test extra, is not installed")
    catalogue = polib.POFile(wrapwidth=20)
    catalogue.metadata = {"Language": "zh", "Content-Type": "text/plain; charset=UTF-8"}
    for msgid, msgstr, fuzzy, obsolete, context in entries:
        catalogue.append(
            polib.POEntry(
                msgid=msgid,
                msgstr=msgstr,
                msgctxt=context,
                flags=["c-format", *["fuzzy"] * fuzzy],
                obsolete=obsolete,
                comment="a comment",
                occurrences=[("a.c", 3)],
                previous_msgid="old",
            )
        )
    scratch.write_bytes(str(catalogue).encode("utf-8"))
    expected = [(s, t) for s, t, fuzzy, obsolete, _ in entries if t and not fuzzy and not obsolete]
    assert [row.pair for row in read_po(scratch, "en", "zh")] == expected


CATALOGUE = r"""
# Translators of the thing
msgid ""
msgstr ""
"Language: zh_CN\n"
"Content-Type: text/plain; charset=UTF-8\n"

#. comment
#: a.c:1
msgid ""
"Two "
"lines\n"
msgstr "两"
  "行\n"
msgctxt "menu"
msgid "Open"
msgstr "打开"

#, fuzzy, c-format
#| msgid "Sav"
msgid "Save"
msgstr "保存？"
msgid "Untranslated"
msgstr ""
#, c-format
msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d 个文件"

msgid "one"
msgid_plural "many"
msgstr[0] "eins"
msgstr[1] "zwei"
msgstr[2] "viele"

#~ msgid "gone"
#~ msgstr "没了"
"""


def test_a_catalogue_gives_its_finished_translations(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    path = write("a.po", CATALOGUE)
    pairs = [
        ("Two lines\n", "两行\n"),
        ("Open", "打开"),
        ("%d files", "%d 个文件"),
        ("one", "eins"),
        ("many", "viele"),
    ]
    rows = list(read_po(path, "en", "zh"))
    assert [row.pair for row in rows] == pairs
    assert (rows[0].source_at, rows[0].target_at) == (f"{path}:10", f"{path}:13")
    assert "skipped 1 fuzzy and 1 untranslated" in caplog.text
    assert find_languages(path) == ("en", "zh_CN")
    assert read_pairs(path) == pairs
    assert read_pairs(path, source="zh", target="en") == [(target, source) for source, target in pairs]
    assert read_pairs(path, source="zh_TW", target="zh_CN") == pairs, "msgid may be in the same language"


def test_escapes(write: Write) -> None:
    path = write("a.po", r'msgid "\a\b\f\v\t\r\n\"\\n\\"' + "\n" + r'msgstr "\x41\101\x7e\0601"' + "\n")
    assert read_pairs(path) == [('\a\b\f\v\t\r\n"\\n\\', "AA~01")]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('msgid "a"\nmsgstr "b\n', r"a\.po:2: not PO: expected msgid"),
        ('msgid "a"\nmsgstr "b" c\n', r"a\.po:2: not PO"),
        ('msgid "a" "b"\nmsgstr "c"\n', r"a\.po:1: not PO"),
        ('msgid "a"\nmsgstr "b\\"\n', r"a\.po:2: not PO"),
        ("zh\ten\n", r"a\.po:1: not PO"),
        ('"a"\n', r"a\.po:1: text without a msgid"),
        ('msgstr "a"\n', r"a\.po:1: msgstr out of place"),
        ('msgid "a"\nmsgid "b"\n', r"a\.po:2: msgid out of place"),
        ('msgid "a"\nmsgstr "b"\nmsgstr "c"\n', r"a\.po:3: msgstr out of place"),
        ('msgid "a"\nmsgstr[0] "b"\n', r"a\.po:2: msgstr\[0\] out of place"),
        ('msgid "a"\nmsgid_plural "b"\nmsgstr "c"\n', r"a\.po:3: msgstr out of place"),
        ('msgid "a"\nmsgid_plural "b"\nmsgstr[1] "c"\n', r"a\.po:3: msgstr\[1\] out of place"),
        ('msgid[0] "a"\nmsgstr "b"\n', r"a\.po:1: msgid\[0\] out of place"),
        ('msgid "a"\n', r"a\.po:1: the file ends within an entry"),
        ('msgid "a"\nmsgstr "\\q"\n', r"a\.po:2: \\q is not an escape"),
        ('msgid "a"\nmsgstr "\\xe4"\n', r"a\.po:2: \\xe4 is a single byte above 127"),
        (b'msgid "a"\nmsgstr "\xff"\n', r"a\.po:2: byte 0xff at offset 18 is not UTF-8"),
    ],
)
def test_each_mistake_in_po_is_told_with_its_line(write: Write, content: str | bytes, told: str) -> None:
    assert re.search(told, mistake(read_po(write("a.po", content), "en", "zh")))


@pytest.mark.parametrize("pair", [("", "x"), ("a\0", "x"), ("a", "\0")])
def test_what_po_cannot_hold_is_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(UserError, match="a:1: .*which PO cannot hold"):
        written(PoWriter, located([pair]), "zh")
