"""No file, however broken, draws anything but one of denserk's own errors out of a reader."""

import warnings
from collections import deque
from functools import partial

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from denserk.config.formats import (
    CorpusFormat,
    CorpusSettings,
    QrelsFormat,
    RunFormat,
    TopicsFormat,
    TrainingFormat,
)
from denserk.errors import DenserkError
from denserk.io.corpus import read_passages
from denserk.io.qrels import read_qrels
from denserk.io.runs import read_run, read_run_scores
from denserk.io.topics import read_queries, read_questions
from denserk.io.training import read_sentences, read_training
from denserk.io.vector_formats import read_json_lines

SAMPLES = (
    b'{"_id": "d1", "title": "h", "text": "a", "more": [1, null]}\n{"_id": "d2", "text": "b"}\n',
    b'{"id": "d1", "contents": "h\\none"}\n{"id": 12345678901234567890123, "contents": ""}\n',
    b'[{"question": "who", "answers": ["a"]},\n {"question": "u", "answers": []}]',
    b'{"0": {"question": "who", "answers": ["a"]}, "1": {"question": "u"}}',
    b'{"_id": "q1", "answers": ["a"]}\n',
    b'{"qid": "q1", "docid": "d1", "rank": 1, "score": 2.5}\n',
    b'who sings\t[\'Linda Davis\', "it\'s"]\nwhat\t"[\'a\', ""b""]"\n',
    b'id\ttext\ttitle\n1\t"a ""b"" c"\thead\n2\td\t"e\nf"\n',
    b"d1\thead\ttext \xc3\xb6\r\nd2\t\ttext\r\n",
    b"q1 0 d1 2\nq1 0 d2 0\n",
    b"query-id\tcorpus-id\tscore\nq1\td1\t1\n",
    b"q1 Q0 d1 1 12.5 tag\nq1 Q0 d2 2 1e-3 tag\n",
    b"q1\td1\t1\nq1\td2\t2\n",
    b'{"id":"a","contents":"","vector":[0.5,1.0]}\n' * 3,
    b'{"query_id": 1, "query": "q", "positive_passages": [{"docid": 2, "score": 1}]}\n',
    b'[{"question": "q", "answers": ["a"], "positive_ctxs": [{"passage_id": "1", "title": "h"}]}]',
    b'{"query": "q", "pos": ["a"], "neg": ["b"], "pos_scores": [1], "neg_scores": [0.5]}\n',
    b'{"qid": 3, "pos": [1], "neg": {"bm25": [5, 6], "dense": [6, 7]}}\n',
    b"anchor\tpositive\tnegative\nwho runs\tcat\tdog\n",
    b"1\t20\t30\n1\t20\t31\n2\t20,30\n",
    b'index\tsentence1\tsentence2\tscore\n1\ta plane\tan "air" plane\t5.000\n',
    b'Article Title,Sentence1,Sentence2,Sentence3\nMoon,the moon,the star,"a ""red"" boat"\n',
    b'{"mteb_model_meta": {}, "default": {"test": {"q1": {"d1": 2.5, "d2": 1}}}}',
    b"q_id Q0 doc_id rank score tag\nq1 Q0 d1 1 2.5 a\n",
    b"score\tdocid\tqid\n2.5\td1\tq1\n",
    b"docid\tqid\trelevance\nd1\tq1\t1.0\n",
    b"query\tqid\tanswers\nwho\t1\t['a']\n",
    b'"text"\t"docid"\t"url"\n"a"\t"d1"\t"u"\n',
    b"negative_id\tqid\tpositive_id\n30\t1\t20\n",
    b'answer,label,question\n"a, b",1,who\n',
    b'{"positive": "a", "anchor": "q"}\n{"anchor": "r", "positive": "b"}\n',
    b'{"q1": {"d1": 0.5, "d2": 1}}',
    b'{"q1": "who runs", "q2": "what"}',
    b'{"d1": {"title": "h", "text": "a"}, "d2": {"text": "b"}}',
    b'{"queries": {"q1": "who"}, "corpus": {"d1": "a"}, "relevant_docs": {"q1": ["d1"]}}',
    b'{"doc_key": "a1", "body": "one", "n": 1}\n{"doc_key": "a2", "body": null}\n',
    b'id;title;text\nd1;"a; ""b""";"two\nlines"\nd2;;b\n',
    b"id,query,note\nq1,who,x\n",
    b"<DOC>\n<DOCNO> d1 </DOCNO>\n<HL>a</HL><TEXT>b &amp; c</TEXT>\n</DOC>\n<DOC></DOC>",
    b"---\ntitle: a\n---\n# b\n\nc\n",
    b"<topics><topic><number>1</number><query>a</query></topic></topics>",
    b"<top>\n<num> Number: 1\n<title> a\n<desc> Description:\nb\n</top>\n",
    b"1:who runs\n2:what\n",
    b'query,url,clicks\nwho runs,d1,3\n"what, now",d2,1\n',
    b"qid\tdocid\tcount\nq1\td1\t3\n",
    b"main\tMSR\t2012\t0001\t5.000\ta plane\tan air plane\n",
)
PIECES = (
    b"\t",
    b"\n",
    b"\r",
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"\\",
    b"\x00",
    b"\xff",
    b"\xef\xbb\xbf",  # a byte-order mark
    b"\xc2\xa0",  # a non-breaking space
    b"\\ud800",
    b"nan",
    b"-1e999",
    b"9" * 30,
    b"null",
    b"[" * 300,
)

READERS = [
    read_passages,
    read_queries,
    read_questions,
    read_qrels,
    read_json_lines,
    read_training,
    read_sentences,
    read_run,
    read_run_scores,
    partial(read_passages, fields=("title", "text")),
    partial(read_passages, settings=CorpusSettings(docid_field="id")),
    partial(read_passages, settings=CorpusSettings(text_field="body")),
    partial(read_passages, settings=CorpusSettings(id_field="", title_field="title")),
]
for corpus_format in CorpusFormat:
    READERS.append(partial(read_passages, settings=CorpusSettings(corpus_format)))
for topics_format in TopicsFormat:
    READERS.append(partial(read_queries, topics_format=topics_format))
for qrels_format in QrelsFormat:
    READERS.append(partial(read_qrels, qrels_format=qrels_format))
for run_format in RunFormat:
    READERS.append(partial(read_run, format=run_format))
for training_format in TrainingFormat:
    READERS.append(partial(read_training, training_format=training_format))


@st.composite
def mangled(draw):
    """Draw a file of some format of which up to four pieces are replaced."""
    data = draw(st.sampled_from(SAMPLES))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 20)))
        piece = draw(st.sampled_from(PIECES) | st.binary(max_size=4))
        data = data[:start] + piece + data[end:]
    return data


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=500)
@given(
    reader=st.sampled_from(READERS),
    name=st.sampled_from(["file", "file", "file.csv", "file.md"]),
    data=mangled(),
)
def test_mangled_bytes_are_read_or_rejected_in_one_short_line(tmp_path, reader, name, data):
    path = tmp_path / name
    path.write_bytes(data)
    message = ""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            deque(reader(str(path)), maxlen=0)
        except DenserkError as error:
            message = error.message
    assert "\n" not in message
    assert len(message) < 1000
