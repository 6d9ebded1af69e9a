import hashlib
from dataclasses import replace

import pytest

from denserk.config.encoding import TextSettings
from denserk.data.prepared import checksum, is_prepared, plan_of, rules_of
from denserk.data.tokenization import TextTokenizer
from denserk.errors import MismatchError
from denserk.io.manifest import Kind, Manifest, write_manifest
from tests.conftest import VOCABULARY
from tests.reporters import Heard
from tests.tiny_models import tiny_tokenizer


@pytest.fixture
def made(tmp_path):
    """`made(plan)`: a folder that was prepared by a plan."""

    def folder(plan, *, complete=True):
        path = tmp_path / "prepared"
        path.mkdir()
        write_manifest(path, replace(plan, complete=complete))
        return path

    return folder


def test_what_a_source_is_known_by(tmp_path):
    (tmp_path / "folder" / "sub").mkdir(parents=True)
    (tmp_path / "folder" / "sub" / "a.txt").write_bytes(b"a")
    digest = hashlib.sha256(b"a").hexdigest()
    assert checksum(str(tmp_path / "folder" / "sub" / "a.txt")) == digest
    assert checksum(str(tmp_path / "folder")) == {"sub/a.txt": digest}
    assert checksum("beir:scifact") is checksum("-") is None


def test_the_same_plan_holds(made):
    plan = plan_of({"size": 2}, {"file 1": "irds:x"})
    heard = Heard()
    assert is_prepared(made(plan), plan)
    assert heard.notes == []


def test_what_differs_is_told(made, tmp_path):
    (tmp_path / "a").write_bytes(b"a")
    plan = plan_of({"size": 2}, {"file 1": str(tmp_path / "a")})
    heard = Heard()
    folder = made(plan)
    (tmp_path / "a").write_bytes(b"b")
    assert not is_prepared(folder, plan_of({"size": 3}, {"file 1": str(tmp_path / "a")}))
    (note,) = heard.notes
    assert note.startswith(f"{folder} is prepared again: size was 2, now 3; file 1.sha256 was")


def test_a_stream_is_never_the_same(made):
    plan = plan_of({}, {"file 1": "-"})
    heard = Heard()
    assert not is_prepared(made(plan), plan)
    assert "standard input may hold something else" in heard.notes[0]


def test_nothing_is_there(tmp_path):
    assert not is_prepared(tmp_path / "none", Manifest(Kind.TRAINING, complete=False))


def test_an_unfinished_folder_is_refused(made):
    plan = plan_of({}, {})
    with pytest.raises(MismatchError, match="unfinished"):
        is_prepared(made(plan, complete=False), plan)


def test_rules_tell_tokenizers_and_settings_apart():
    def rules(kind, **settings):
        return rules_of(TextTokenizer(tiny_tokenizer(kind, VOCABULARY), TextSettings(**settings)))

    assert rules("bert") == rules("bert")
    assert rules("bert")["tokenizer"] != rules("roberta")["tokenizer"]
    assert rules("bert", passage_prefix="p: ")["passage_prefix"] == "p: "
