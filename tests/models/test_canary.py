import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import normalizers, pre_tokenizers

from denserk.commands.app import run
from denserk.config.encoding import ComputeSettings, DtypeChoice, ModelLayout, TextSettings
from denserk.config.options import NOTHING
from denserk.data.tokenization import load_tokenizer
from denserk.errors import InputError, MismatchError
from denserk.io.canary import CANARY_FILE, PASSAGE, QUERY, read_canary, write_canary
from denserk.models.canary import (
    START_TEXTS,
    TEXTS_OF_KIND,
    Stage,
    canary_texts,
    check_start,
    compare,
    cosine_distances,
    first_difference,
)
from denserk.models.canary_encoding import canary_of
from denserk.models.layouts import convert_model
from denserk.models.model_folder import read_model_folder
from denserk.models.text_encoder import TextEncoder
from tests.support.canary_faults import FAULTS, REPRESENTATION, TEXT, own_setting
from tests.support.tiny_models import write_tiny

CPU = ComputeSettings(device="cpu", dtype=DtypeChoice.FLOAT32)


def words_of_canary():
    """Every word of the canary's texts, as a lower-casing BERT splits them."""
    normalizer = normalizers.BertNormalizer(lowercase=True)
    splitter = pre_tokenizers.BertPreTokenizer()
    words = {"query": None, "passage": None, ":": None}
    for kind in (QUERY, PASSAGE):
        for text in canary_texts(kind, 20):
            for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)):
                words[word] = None
    return list(words)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A tiny BERT that knows the words of the canary, saved with prefixes and limits."""
    folder = tmp_path_factory.mktemp("canary")
    write_tiny(folder / "plain", "bert", words_of_canary())
    convert_model(
        str(folder / "plain"), folder / "model", ModelLayout.DENSERK, REPRESENTATION, TEXT
    )
    return folder / "model"


@pytest.fixture
def model(saved, tmp_path):
    """A copy of the saved model that a test may change."""
    return shutil.copytree(saved, tmp_path / "model")


def encoder_of(folder, representation=NOTHING, text=NOTHING, compute=CPU):
    return TextEncoder(str(folder), representation, text, compute)


def start(encoder, texts_at_once=2):
    """Compare what `encode` and `search` compare before they begin."""
    for side in (QUERY, PASSAGE):
        check_start(encoder.canary, encoder.canary_side(side), "m", texts_at_once=texts_at_once)


def test_a_saved_model_has_sixteen_texts_with_ids_and_vectors(saved):
    canary = read_canary(saved)
    encoder = encoder_of(saved)
    assert canary is not None
    assert len(canary.texts) == 2 * TEXTS_OF_KIND
    for kind, limit in ((QUERY, 32), (PASSAGE, 48)):
        texts = canary.of_kind(kind)
        assert len(texts) == TEXTS_OF_KIND
        assert canary.kinds[kind].max_length == limit
        assert len(texts[-1].token_ids) == limit
        assert len(max(texts[:START_TEXTS], key=lambda text: len(text.token_ids)).token_ids) < 24
        vectors = encoder.encode_tokens(kind, [text.token_ids for text in texts])
        np.testing.assert_allclose(vectors, np.concatenate([t.vectors for t in texts]), atol=1e-6)


def test_an_unchanged_model_is_as_saved(saved):
    encoder = encoder_of(saved)
    start(encoder)
    start(encoder, texts_at_once=1)
    assert first_difference(encoder.compare_with_canary()) is None


def test_the_same_model_has_the_same_bytes(saved, tmp_path):
    convert_model(str(saved), tmp_path / "again", ModelLayout.DENSERK)
    assert (tmp_path / "again" / CANARY_FILE).read_bytes() == (saved / CANARY_FILE).read_bytes()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_named_by_its_stage(model, fault):
    fault.plant(model)
    encoder = encoder_of(model)
    difference = first_difference(encoder.compare_with_canary())
    assert difference is not None
    assert difference.stage is fault.stage
    with pytest.raises(MismatchError, match=f"first stage that differs is {fault.stage}: "):
        start(encoder)


@pytest.mark.parametrize(
    ("representation", "text"),
    [
        ({"representation": "cls"}, {}),
        ({"representation": "max", "l2_norm": False}, {}),
        ({"l2_norm": False}, {}),
        ({"truncate_dim": 8}, {}),
        ({}, {"query_prefix": "other: ", "passage_prefix": "this: "}),
        ({}, {"query_max_length": 8, "passage_max_length": 60}),
        ({}, {"normalize_quotes": True}),
    ],
)
def test_settings_that_a_user_replaces_are_no_fault(saved, representation, text):
    encoder = encoder_of(saved, representation, text)
    start(encoder)
    assert first_difference(encoder.compare_with_canary()) is None


def test_a_fault_is_found_under_settings_that_a_user_replaces(model):
    own_setting("text", "query_prefix", "")(model)
    encoder = encoder_of(model, {"representation": "cls"}, {"query_max_length": 8})
    difference = first_difference(encoder.compare_with_canary())
    assert difference is not None
    assert difference.stage is Stage.PROMPT


def test_precision_that_a_user_chooses_is_no_fault(saved):
    compute = replace(CPU, dtype=DtypeChoice.BFLOAT16)
    encoder = encoder_of(saved, compute=compute)
    start(encoder)
    assert first_difference(encoder.compare_with_canary()) is None


@pytest.mark.parametrize("name", ["me-bert", "mlr"])
def test_several_vectors_a_passage_in_bfloat16_are_no_fault(saved, tmp_path, name):
    representation = {"representation": name, "reduction": "multi-vector", "l2_norm": False}
    folder = tmp_path / "several"
    plain = saved.parent / "plain"
    convert_model(str(plain), folder, ModelLayout.DENSERK, representation)
    encoder = encoder_of(folder, compute=replace(CPU, dtype=DtypeChoice.BFLOAT16))
    assert encoder.vectors_per_passage > 1
    start(encoder)
    assert first_difference(encoder.compare_with_canary()) is None


def test_a_model_without_a_canary_is_not_compared(model, capsys):
    (model / CANARY_FILE).unlink()
    encoder = encoder_of(model)
    start(encoder)
    assert encoder.compare_with_canary() == []
    assert run(["doctor", "--model", str(model)]) == 0
    assert "has no canary.json" in capsys.readouterr().out


def test_doctor_compares_a_model(model, capsys):
    assert run(["doctor", "--model", str(model), "--device", "cpu"]) == 0
    assert "is the model that was saved" in capsys.readouterr().out
    own_setting("representation", "representation", "cls")(model)
    assert run(["doctor", "--model", str(model), "--device", "cpu"]) == 1
    assert "pooling" in capsys.readouterr().out
    assert run(["doctor", "--dtype", "float32"]) == 2


def test_encode_and_search_stop(model, toy, monkeypatch, caplog):
    monkeypatch.chdir(toy)
    encode = ["encode", "--model", str(model), "--corpus", "corpus.jsonl", "--device", "cpu"]
    assert run([*encode, "--output", "vectors"]) == 0
    assert run(["index", "--input", "vectors", "--output", "index"]) == 0
    search = ["search", "--index", "index", "--topics", "queries.tsv", "--device", "cpu"]
    assert run([*search, "--output", "run.trec"]) == 0

    # the file of another model: weights and settings, and so the fingerprint, stay
    canary = read_canary(model)
    assert canary is not None
    others = [text._replace(vectors=text.vectors[:, ::-1]) for text in canary.texts]
    write_canary(model, replace(canary, texts=others))
    assert run([*encode, "--output", "other"]) == 1
    assert not (toy / "other").exists()
    assert run([*search, "--output", "other.trec"]) == 1
    assert not (toy / "other.trec").exists()
    assert run([*search[:3], "--query", "river", "--device", "cpu"]) == 1

    # who knows what they do can search with the model as it is, again and again
    for name in ("forced.trec", "forced-again.trec"):
        caplog.clear()
        assert run([*search, "--force", "--output", name]) == 0
        assert "is not the model that was saved" in caplog.text
        assert (toy / name).read_bytes() == (toy / "run.trec").read_bytes()
    assert run([*search, "--output", "other.trec"]) == 1


def test_a_file_of_another_format_or_version_is_not_used(model, caplog):
    path = model / CANARY_FILE
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "version": 2}))
    assert read_canary(model) is None
    assert "version 2" in caplog.text
    path.write_text(json.dumps({"bird": "yellow"}))
    assert read_canary(model) is None


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda content: content["texts"][0].update(vector="%"), "no base64"),
        (lambda content: content["texts"][0].update(vector="AAAA"), "3 bytes"),
        (lambda content: content["texts"][0].update(kind="title"), "title"),
        (lambda content: content.pop("kinds"), "no kinds"),
        (lambda content: content.update(dimension=0), "dimension"),
        (lambda content: content["tolerances"].update(int8=-1), "tolerances.int8 that is -1"),
        (lambda content: content["tolerances"].update(int8="1"), "tolerances.int8 that is 1"),
        (lambda content: content.update(denserk={"representation": [1]}), "denserk.representation"),
    ],
)
def test_a_broken_file_is_an_error_that_names_it(model, change, found):
    path = model / CANARY_FILE
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=found):
        read_canary(model)


def vectors_of(rows):
    return np.array(rows, np.float32)


def test_distances_of_vectors_that_cannot_be_compared_are_infinite():
    one = vectors_of([[1, 0]])
    zero = vectors_of([[0, 0]])
    assert cosine_distances([zero], [zero]) == [0.0]
    assert cosine_distances([vectors_of([[np.nan, 1]])], [one]) == [float("inf")]
    assert cosine_distances([vectors_of([[1, 0, 0]])], [one]) == [float("inf")]
    assert cosine_distances([vectors_of([[1, 0], [1, 0]])], [one]) == [float("inf")]


@pytest.mark.parametrize("representation", [None, {}])
def test_a_canary_of_another_tool_may_have_whole_numbers_and_no_settings(model, representation):
    path = model / CANARY_FILE
    content = json.loads(path.read_text())
    content["tolerances"] = {"float32": 1e-8, "int8": 1}
    content["denserk"] = {"representation": representation}
    path.write_text(json.dumps(content))
    canary = read_canary(model)
    assert canary is not None
    assert canary.tolerances == {"float32": 1e-8, "int8": 1.0}
    own_setting("representation", "representation", "cls")(model)
    difference = first_difference(encoder_of(model).compare_with_canary())
    assert difference is not None
    assert difference.stage is Stage.POOLING


def test_doctor_says_that_no_text_is_of_a_kind_that_it_encodes(model, capsys):
    path = model / CANARY_FILE
    content = json.loads(path.read_text())
    content["kinds"] = {"text": content["kinds"]["passage"]}
    for text in content["texts"]:
        text["kind"] = "text"
    path.write_text(json.dumps(content))
    assert run(["doctor", "--model", str(model), "--device", "cpu"]) == 0
    output = capsys.readouterr().out
    assert "no texts of the kinds query or passage" in output
    assert "is the model that was saved" not in output


def test_the_vector_whose_length_changed_is_reported(model):
    """Only the second text is longer now, so the message is not about the first one."""
    canary = read_canary(model)
    assert canary is not None
    second = canary.of_kind(QUERY)[1]
    texts = [
        text._replace(vectors=text.vectors * 4) if text is second else text for text in canary.texts
    ]
    write_canary(model, replace(canary, texts=texts))
    difference = first_difference(encoder_of(model).compare_with_canary())
    assert difference is not None
    assert difference.stage is Stage.NORMALISATION
    assert difference.message == "a vector has the length 1, and had 4"


def test_vectors_that_are_not_finite_are_reported_as_such(model):
    encoder = encoder_of(model)
    side = encoder.canary_side(QUERY)
    not_finite = replace(
        side, encode=lambda ids, settings: [np.full((1, 32), np.nan, np.float32) for _ in ids]
    )
    assert encoder.canary is not None
    difference = compare(encoder.canary, not_finite).difference
    assert difference is not None
    assert difference.stage in (Stage.WEIGHTS, Stage.DIMENSIONS)


@pytest.mark.parametrize("shorter", ["query", "document"])
def test_untied_encoders_of_different_lengths_are_as_saved(tmp_path, shorter):
    """Queries are cut at the positions of the encoder of passages, too, when a model is loaded."""
    words = words_of_canary()
    write_tiny(tmp_path / "plain", "bert", words)
    stored = read_model_folder(tmp_path / "plain")
    query, passage = stored.build(stored.representation, untie=True)
    assert query is not passage
    encoder = query if shorter == "query" else passage
    encoder.backbone.config.max_position_embeddings = 40
    tokenizer = load_tokenizer(tmp_path / "plain")
    text = TextSettings(query_max_length=48, passage_max_length=48)
    canary = canary_of({QUERY: query, PASSAGE: passage}, tokenizer, text, passage.settings)
    assert canary is not None
    assert canary.kinds[QUERY].max_length == 40
    assert canary.kinds[PASSAGE].max_length == (48 if shorter == "query" else 40)
