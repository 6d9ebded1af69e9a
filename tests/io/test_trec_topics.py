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
QUERIES = [("101", "ankle brace tendon & bone"), ("102", "vitamin d")]
DESCRIPTIONS = [("101", "Will it help?"), ("102", "Does it?")]


def write(path, text):
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


def read(source, fields=None):
    return [(query.qid, query.text) for query in read_queries(source, fields=fields)]


@pytest.mark.parametrize("name", ["topics", "topics.txt.gz"])
@pytest.mark.parametrize(
    "text", [NUMBERS_AS_ELEMENTS, WEB_TRACK, FIRE, TAGGED, TAGGED.replace("\n", "\r\n")]
)
def test_topics(text, name, tmp_path):
    source = write(tmp_path / name, text)
    assert read(source) == QUERIES
    assert read(source, ["description"]) == DESCRIPTIONS
    both = [f"{title} {text}" for (_, title), (_, text) in zip(QUERIES, DESCRIPTIONS, strict=True)]
    assert [text for _, text in read(source, ["title", "desc"])] == both
    assert next(read_queries(source)).extra["description"] == "Will it help?"
    assert [query.qid for query in read_queries(source, TopicsFormat.TREC)] == ["101", "102"]


def test_markup_inside_a_field_belongs_to_its_text(tmp_path):
    text = (
        "<top>\n<num> Number: 1\n<title>a</title><desc>the <i>best</i> of\n"
        "all <b>four</b>\n  <smry>b\n</top>"
    )
    source = write(tmp_path / "topics", text)
    assert read(source, ["title", "desc"]) == [("1", "a the best of all four")]
    assert dict(next(read_queries(source)).extra) == {
        "description": "the best of all four",
        "smry": "b",
    }


def test_texts_of_topics_with_a_question_and_of_topics_that_are_texts(tmp_path):
    covid = "<topics><topic number='1'><question>what is it</question></topic></topics>"
    assert read(write(tmp_path / "topics.xml", covid)) == [("1", "what is it")]
    trials = "<topics>\n<topic number='1'>\n a 58 year\n old man\n</topic></topics>"
    assert read(write(tmp_path / "topics.xml", trials)) == [("1", "a 58 year old man")]


def test_a_topic_without_title_query_and_question_needs_a_field(tmp_path):
    text = "<topics><topic number='1'><disease>a</disease><gene>b</gene></topic></topics>"
    source = write(tmp_path / "topics.xml", text)
    with pytest.raises(InputError, match="found topic 1 with disease, gene") as error:
        read(source)
    assert error.value.hint == "name fields of it: --set topics-field=disease,gene"
    assert read(source, ["disease", "gene"]) == [("1", "a b")]


def test_fields_of_other_formats(tmp_path):
    source = write(
        tmp_path / "q.jsonl", '{"_id": "1", "text": "who", "narrative": "why", "n": 1}\n'
    )
    assert read(source, ["narrative"]) == [("1", "why")]
    assert read(source, ["text", "narrative"]) == [("1", "who why")]
    with pytest.raises(
        InputError, match=r"no field narr2 in query 1 \(there: text, narrative, n\)"
    ):
        read(source, ["narr2"])
    with pytest.raises(InputError, match="n of query 1 is no text"):
        read(source, ["n"])


def test_lines_with_a_colon(tmp_path):
    text = "wt09-1:obama family tree\r\n2: who: me\n\n3:x"
    source = write(tmp_path / "topics.txt", text)
    assert read(source) == [("wt09-1", "obama family tree"), ("2", "who: me"), ("3", "x")]


LAUGHS = (
    '<?xml version="1.0"?>\n<!DOCTYPE topics [<!ENTITY a "ha">'
    + "".join(f'<!ENTITY a{n} "{f"&a{n - 1 if n else str()};" * 10}">' for n in range(30))
    + "]>\n<topics><topic number='1'><query>&a29;</query></topic></topics>"
)
OUTSIDE = (
    '<!DOCTYPE topics [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
    "<topics><topic number='1'><query>&a;</query></topic></topics>"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LAUGHS, "found XML that declares entities"),
        (OUTSIDE, "found XML that declares entities"),
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
        (
            "".join(f"{n}:who\n" for n in range(100)) + "what\n",
            "line 101: found a line without a colon",
        ),
    ],
)
def test_broken_topics(text, message, tmp_path):
    source = write(tmp_path / "topics", text)
    start = time.monotonic()
    with pytest.raises(InputError, match=message):
        read(source)
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("text", [TAGGED, NUMBERS_AS_ELEMENTS.partition("\n")[2]])
def test_topics_in_latin_1(text, tmp_path):
    data = text.replace("vitamin d", "crème").encode("latin-1")
    source = write(tmp_path / "my topics.txt", data)
    with pytest.raises(InputError, match=r"found a byte that is not UTF-8 \(0xe8\)") as error:
        read(source)
    assert error.value.line == 1 + data[: data.index(b"\xe8")].count(b"\n")
    command = str(error.value.hint).partition(": ")[2]
    subprocess.run(["bash", "-c", command], check=True)
    assert [text for _, text in read(source) if "crème" in text] == ["crème"]


def test_xml_may_declare_its_encoding(tmp_path):
    data = FIRE.replace("vitamin d", "crème").encode("latin-1")
    assert read(write(tmp_path / "topics.xml", data))[1] == ("102", "crème")
