"""TREC topics in XML, between tags, and as `id:text`; the fields that make a query."""

import gzip
import subprocess
import time

import pytest

from denserk.config.formats import TopicsFormat
from denserk.errors import InputError
from denserk.io.topics import read_queries

NUMBERS_AS_ELEMENTS = """<?xml version="1.0" encoding="UTF-8"?>
<topics>
<topic>
<number>101</number>
<query>ankle brace
  tendon &amp; bone</query>
<description>Will it help?</description>
</topic>
<topic><number>102</number><query>vitamin d</query><description>Does it?</description></topic>
</topics>
"""
WEB_TRACK = """<webtrack2009>
  <topic number="101" type="faceted">
    <query>ankle brace tendon &amp; bone</query>
    <description> Will it help? </description>
    <subtopic number="1" type="inf">a</subtopic><subtopic number="2" type="inf">b</subtopic>
  </topic>
  <topic number="102" type="ambiguous"><query>vitamin d</query><description>Does it?</description>
  </topic>
</webtrack2009>
"""
FIRE = """<?xml version="1.0" encoding="ISO-8859-1"?>
<topics>
<top lang="en"><num>101</num>
<title>ankle brace tendon &amp; bone</title><desc>Will it help?</desc></top>
<top lang="en"><num>102</num><title>vitamin d</title><desc>Does it?</desc></top>
</topics>
"""
TAGGED = """
<top>
<num> Number: 101
<title> Topic: ankle brace
tendon &amp; bone

<desc> Description:
Will it help?

<narr> Narrative:
Relevant if a < b.
</top>

<top>
<num> 102 </num>
<title>vitamin d</title>
<desc>Does it?</desc>
</top>
"""
TAGGED_WITH_WINDOWS_LINES = TAGGED.replace("\n", "\r\n")


def write(path, text):
    """Write text or bytes, compressed under a name in .gz; return the path as a source."""
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


def ids_and_texts(source, fields=None):
    return [(query.qid, query.text) for query in read_queries(source, fields=fields)]


@pytest.mark.parametrize("name", ["topics", "topics.txt.gz"])
@pytest.mark.parametrize(
    "text", [NUMBERS_AS_ELEMENTS, WEB_TRACK, FIRE, TAGGED, TAGGED_WITH_WINDOWS_LINES]
)
def test_topics(text, name, tmp_path):
    source = write(tmp_path / name, text)
    assert ids_and_texts(source) == [("101", "ankle brace tendon & bone"), ("102", "vitamin d")]
    assert ids_and_texts(source, ["description"]) == [
        ("101", "Will it help?"),
        ("102", "Does it?"),
    ]
    assert ids_and_texts(source, ["title", "desc"]) == [
        ("101", "ankle brace tendon & bone Will it help?"),
        ("102", "vitamin d Does it?"),
    ]
    assert next(read_queries(source)).extra["description"] == "Will it help?"
    assert [query.qid for query in read_queries(source, TopicsFormat.TREC)] == ["101", "102"]


def test_markup_inside_a_field_belongs_to_its_text(tmp_path):
    text = (
        "<top>\n<num> Number: 1\n<title>a</title><desc>the <i>best</i> of\n"
        "all <b>four</b>\n  <smry>b\n</top>"
    )
    source = write(tmp_path / "topics", text)
    assert ids_and_texts(source, ["title", "desc"]) == [("1", "a the best of all four")]
    assert dict(next(read_queries(source)).extra) == {
        "description": "the best of all four",
        "smry": "b",
    }


def test_topics_with_a_question(tmp_path):
    text = "<topics><topic number='1'><question>what is it</question></topic></topics>"
    assert ids_and_texts(write(tmp_path / "topics.xml", text)) == [("1", "what is it")]


def test_topics_that_are_texts_as_those_of_clinical_trials(tmp_path):
    text = "<topics>\n<topic number='1'>\n a 58 year\n old man\n</topic></topics>"
    assert ids_and_texts(write(tmp_path / "topics.xml", text)) == [("1", "a 58 year old man")]


def test_a_topic_without_title_query_and_question_needs_a_field(tmp_path):
    text = "<topics><topic number='1'><disease>a</disease><gene>b</gene></topic></topics>"
    source = write(tmp_path / "topics.xml", text)
    with pytest.raises(InputError, match="found topic 1 with disease, gene") as error:
        ids_and_texts(source)
    assert error.value.hint == "name fields of it: --set topics-field=disease,gene"
    assert ids_and_texts(source, ["disease", "gene"]) == [("1", "a b")]


def test_fields_of_other_formats(tmp_path):
    source = write(
        tmp_path / "q.jsonl", '{"_id": "1", "text": "who", "narrative": "why", "n": 1}\n'
    )
    assert ids_and_texts(source, ["narrative"]) == [("1", "why")]
    assert ids_and_texts(source, ["text", "narrative"]) == [("1", "who why")]
    with pytest.raises(
        InputError, match=r"no field narr2 in query 1 \(there: text, narrative, n\)"
    ):
        ids_and_texts(source, ["narr2"])
    with pytest.raises(InputError, match="n of query 1 is no text"):
        ids_and_texts(source, ["n"])


def test_lines_with_a_colon(tmp_path):
    text = "wt09-1:obama family tree\r\n2: who: me\n\n3:x"
    source = write(tmp_path / "topics.txt", text)
    assert ids_and_texts(source) == [("wt09-1", "obama family tree"), ("2", "who: me"), ("3", "x")]


BILLION_LAUGHS = """<!DOCTYPE topics [
<!ENTITY a0 "ha">
<!ENTITY a1 "&a0;&a0;&a0;&a0;&a0;&a0;&a0;&a0;&a0;&a0;">
<!ENTITY a2 "&a1;&a1;&a1;&a1;&a1;&a1;&a1;&a1;&a1;&a1;">
<!ENTITY a3 "&a2;&a2;&a2;&a2;&a2;&a2;&a2;&a2;&a2;&a2;">
<!ENTITY a4 "&a3;&a3;&a3;&a3;&a3;&a3;&a3;&a3;&a3;&a3;">
<!ENTITY a5 "&a4;&a4;&a4;&a4;&a4;&a4;&a4;&a4;&a4;&a4;">
<!ENTITY a6 "&a5;&a5;&a5;&a5;&a5;&a5;&a5;&a5;&a5;&a5;">
<!ENTITY a7 "&a6;&a6;&a6;&a6;&a6;&a6;&a6;&a6;&a6;&a6;">
<!ENTITY a8 "&a7;&a7;&a7;&a7;&a7;&a7;&a7;&a7;&a7;&a7;">
<!ENTITY a9 "&a8;&a8;&a8;&a8;&a8;&a8;&a8;&a8;&a8;&a8;">
]>
<topics><topic number='1'><query>&a9;</query></topic></topics>
"""
HUNDRED_COLON_LINES = "".join(f"{number}:who\n" for number in range(100))
ENTITY_OF_A_FILE = (
    '<!DOCTYPE topics [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
    "<topics><topic number='1'><query>&a;</query></topic></topics>"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BILLION_LAUGHS, "found XML that declares entities"),
        (ENTITY_OF_A_FILE, "found XML that declares entities"),
        (NUMBERS_AS_ELEMENTS[:250], "line 9: found XML that is not well-formed"),
        (WEB_TRACK.replace("&amp;", "&"), "line 3: found XML that is not well-formed"),
        (FIRE.replace("ISO-8859-1", "nonsense"), "XML in an encoding|XML that is not well-formed"),
        ("<topics></topics>", "found no topics"),
        ("<topics><topic><query>a</query></topic></topics>", "found a topic without a number"),
        (TAGGED.replace("</top>", "", 1), "line 2: found a topic that does not end"),
        (TAGGED[:-10], "line 14: found a topic that does not end"),
        (TAGGED.replace("<num> Number: 101", ""), "line 2: found a topic without a number"),
        (TAGGED.replace("102", "101"), "found the query id 101 twice"),
        (
            TAGGED.replace("<title>vitamin d</title>", ""),
            "line 14: found topic 102 with description",
        ),
        (TAGGED.replace("102", "10 2"), "line 14: found the query id '10 2'"),
        (HUNDRED_COLON_LINES + "what\n", "line 101: found a line without a colon"),
    ],
)
def test_broken_topics(text, message, tmp_path):
    source = write(tmp_path / "topics", text)
    start = time.monotonic()
    with pytest.raises(InputError, match=message):
        ids_and_texts(source)
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("text", [TAGGED, NUMBERS_AS_ELEMENTS.partition("\n")[2]])
def test_topics_in_latin_1(text, tmp_path):
    data = text.replace("vitamin d", "crème").encode("latin-1")
    source = write(tmp_path / "my topics.txt", data)
    with pytest.raises(InputError, match=r"found a byte that is not UTF-8 \(0xe8\)") as error:
        ids_and_texts(source)
    assert error.value.line == 1 + data[: data.index(b"\xe8")].count(b"\n")
    _, _, command = str(error.value.hint).partition(": ")
    subprocess.run(["bash", "-c", command], check=True)
    texts = [text for _, text in ids_and_texts(source)]
    assert texts == ["ankle brace tendon & bone", "crème"]


def test_xml_may_declare_its_encoding(tmp_path):
    data = FIRE.replace("vitamin d", "crème").encode("latin-1")
    assert ids_and_texts(write(tmp_path / "topics.xml", data)) == [
        ("101", "ankle brace tendon & bone"),
        ("102", "crème"),
    ]


def test_a_query_without_a_title_is_not_doubled(tmp_path):
    queries = '{"_id": "1", "text": "who", "title": "A tale"}\n{"_id": "2", "text": "who"}\n'
    source = write(tmp_path / "q.jsonl", queries)
    assert ids_and_texts(source, ["title", "text"]) == [("1", "A tale who"), ("2", "who")]
