"""Documents between <DOC> tags, as on the TREC disks."""

import gzip
import subprocess

import pytest

from denserk.config.formats import CorpusFormat, CorpusSettings
from denserk.errors import InputError
from denserk.io.corpus import read_passages
from denserk.records import Passage

# as AP, WSJ, the Financial Times, the LA Times and GOV2 have them, with other words
SAMPLES = {
    "AP": (
        "<DOC>\n<DOCNO> AP-1 </DOCNO>\n<FILEID>AP-NR</FILEID>\n<HEAD>A moon &amp; a</HEAD>\n"
        "<HEAD>river</HEAD>\n<DATELINE>X (AP) </DATELINE>\n<TEXT>\n   It rises.\n</TEXT>\n"
        "<TEXT>It sets.</TEXT>\n</DOC>\n",
        Passage("AP-1", "It rises.\nIt sets.", "A moon & a river"),
    ),
    "WSJ": (
        "<DOC>\n<DOCNO>\nWSJ-1\n</DOCNO>\n<HL> Who's\n@ News </HL>\n<DD> 1 </DD>\n<LP>Lead.</LP>\n"
        "<TEXT>\nText.\n</TEXT>\n</DOC>\n",
        Passage("WSJ-1", "Lead.\nText.", "Who's @ News"),
    ),
    "FT": (
        "<doc><docno>FT-1</docno><profile>_A</profile>\n"
        "<headline>FT: a</headline><text>b <c></text></doc>\n",
        Passage("FT-1", "b", "FT: a"),
    ),
    "LA": (
        "<DOC>\n<DOCNO> LA-1 </DOCNO>\n<DOCID> 7 </DOCID>\n<HEADLINE>\n<P>Head</P>\n</HEADLINE>\n"
        "<!-- PJG --><TEXT>\n<P>\none\n</P>\n<P>\n2 < 3\n</P>\n</TEXT>\n</DOC>",
        Passage("LA-1", "one\n2 < 3", "Head"),
    ),
    "GOV2": (
        "<DOC>\n<DOCNO>GX-1</DOCNO>\n<DOCHDR>\nhttp://x\n</DOCHDR>\n<html><title>A page</title>\n"
        "<script>x()</script><body class='a'>a <b>moon</b></body></html>\n</DOC>\n",
        Passage("GX-1", "a moon", "A page"),
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_documents(name, tmp_path):
    markup, expected_passage = SAMPLES[name]
    path = tmp_path / "docs"
    path.write_text(markup)
    (passage,) = read_passages(str(path))
    assert passage._replace(title=passage.title.replace("\n", " ")) == expected_passage


def write_disk(folder, ending, encode):
    """Write a folder as a TREC disk has it, with files of several documents, encoded."""
    ap, wsj, ft, la, gov2 = [markup.replace("\n", "\r\n") for markup, _ in SAMPLES.values()]
    (folder / "disk1" / "ap").mkdir(parents=True)
    (folder / "disk1" / "ap" / f"ap88{ending}").write_bytes(encode(f"{ap}\r\n{wsj}".encode()))
    (folder / "disk1" / f"z.txt{ending}").write_bytes(encode(f"{ft}{la}{gov2}".encode()))
    (folder / "README").write_text("Documents of TREC\n")


@pytest.mark.parametrize(("ending", "encode"), [("", bytes), (".gz", gzip.compress)])
def test_several_documents_in_files_of_folders(ending, encode, tmp_path, caplog):
    write_disk(tmp_path, ending, encode)
    settings = CorpusSettings(corpus_format=CorpusFormat.TREC)
    docids = [passage.docid for passage in read_passages(str(tmp_path), settings)]
    assert docids == ["AP-1", "WSJ-1", "FT-1", "LA-1", "GX-1"]

    # without a .txt file among them the format is detected
    (tmp_path / "disk1" / f"z.txt{ending}").unlink()
    docids = [passage.docid for passage in read_passages(str(tmp_path))]
    assert docids == ["AP-1", "WSJ-1"]
    assert "files of other kinds (" in caplog.text


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"<DOC>\n<DOCNO>d1</DOCNO>\n<TEXT>a\n", "line 1: found a <DOC> without its end"),
        (b"<DOC>\n<DOCNO>d1</DOCNO>\n<DOC>\n</DOC>\n", "line 1: found a <DOC> without its end"),
        (
            b"<DOC><DOCNO>d1</DOCNO></DOC>\n<DOC>\na</DOC>\n",
            "line 2: found a <DOC> without <DOCNO>",
        ),
        (b"<DOC><DOCNO>d 1</DOCNO></DOC>\n", "line 1: found the DOCNO 'd 1'"),
        (b"<DOC><DOCNO></DOCNO></DOC>\n", "line 1: found the DOCNO ''"),
        (b"<DOC>\n<DOCNO>1</DOCNO>\ncaf\xe9</DOC>\n", "line 3: found a byte that is not UTF-8"),
    ],
)
def test_broken_documents_are_reported_with_their_line(data, found, tmp_path):
    path = tmp_path / "docs"
    path.write_bytes(data)
    with pytest.raises(InputError, match=found):
        list(read_passages(str(path)))


def test_files_of_compress_are_an_error_with_a_command(tmp_path):
    markup, _ = SAMPLES["AP"]
    folder = tmp_path / "my disk"
    folder.mkdir()
    (folder / "AP1").write_text(markup)
    # gunzip reads gzip under a name in .Z, too
    (folder / "AP2.Z").write_bytes(gzip.compress(markup.replace("AP-1", "AP-2").encode()))
    with pytest.raises(InputError, match=r"AP2\.Z: found a file of `compress`") as error:
        list(read_passages(str(folder)))
    _, _, command = str(error.value.hint).partition(": ")
    subprocess.run(["bash", "-c", command], check=True)
    assert [passage.docid for passage in read_passages(str(folder))] == ["AP-1", "AP-2"]
