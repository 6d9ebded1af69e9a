"""Generated texts: seeds, lengths, special tokens and models that are rejected."""

import json
import random
import shutil

import pytest
import torch
import transformers

from denserk.config.encoding import ComputeSettings
from denserk.config.generate import Sampling
from denserk.errors import ModelError, UsageError
from denserk.models.generation import CONTINUATIONS, QUERIES, TextGenerator
from tests.conftest import WORDS
from tests.writing_models import POSITIONS

OPTIONS = {"t5": QUERIES, "mt5": QUERIES, "gpt2": CONTINUATIONS}
TOKENS = 12


def texts(count=12):
    draw = random.Random(5)
    made = [" ".join(draw.choices(WORDS, k=draw.randint(1, 30))) for _ in range(count)]
    return [*made[:3], "", *made[3:]]


def load(folder, option, *, samples=2, tokens=TOKENS, top_k=0, allow_pickle=False, **compute):
    return TextGenerator(
        option,
        str(folder),
        Sampling(samples, tokens, top_k=top_k, top_p=0.9),
        ComputeSettings(**{"device": "cpu", **compute}),
        allow_pickle=allow_pickle,
    )


@pytest.mark.parametrize("kind", OPTIONS)
def test_the_same_seed_gives_the_same_samples(kind, writer):
    generator = load(writer(kind), OPTIONS[kind], batch_size=5)
    state = torch.get_rng_state()
    made = generator.generate(texts(), 40, seed=7)
    assert torch.equal(torch.get_rng_state(), state)
    assert made == load(writer(kind), OPTIONS[kind], batch_size=5).generate(texts(), 40, seed=7)
    assert made != generator.generate(texts(), 40, seed=8)
    assert made[3] == []
    assert [len(own) for own in made].count(2) > 9
    assert len({text for own in made for text in own}) > 15
    assert generator.generate(["", ""], 40, seed=7) == [[], []]


@pytest.mark.parametrize("kind", OPTIONS)
def test_one_possible_token_is_greedy_decoding(kind, writer):
    generator = load(writer(kind), OPTIONS[kind], top_k=1, samples=1)
    auto = "AutoModelForCausalLM" if kind == "gpt2" else "AutoModelForSeq2SeqLM"
    model = getattr(transformers, auto).from_pretrained(writer(kind))
    tokenizer = transformers.AutoTokenizer.from_pretrained(writer(kind))
    passages = [text for text in texts() if text]
    for passage, found in zip(passages, generator.generate(passages, 40, 1), strict=True):
        ids = torch.tensor([tokenizer(passage).input_ids])
        mask = torch.ones_like(ids)
        made = model.generate(
            ids, attention_mask=mask, max_new_tokens=TOKENS, do_sample=False, pad_token_id=0
        )[0]
        new = made[ids.shape[1] :] if kind == "gpt2" else made
        expected = str(tokenizer.decode(new, skip_special_tokens=True)).strip()
        assert found == ([expected] if expected else [])


def seen_by(generator, monkeypatch):
    """The token ids that the model reads, without padding."""
    seen: list[torch.Tensor] = []
    generate = generator._model.generate

    def stand_in(input_ids, attention_mask):
        seen.extend(ids[own.bool()] for ids, own in zip(input_ids, attention_mask, strict=True))
        return generate(input_ids=input_ids, attention_mask=attention_mask)

    monkeypatch.setattr(generator._model, "generate", stand_in)
    return seen


def test_long_texts_keep_their_first_tokens_for_queries_and_their_last_to_go_on(
    writer, monkeypatch
):
    t5, gpt2 = load(writer("t5"), QUERIES), load(writer("gpt2"), CONTINUATIONS)
    for generator, length, expected in (
        (t5, 9, [*WORDS[:8], "</s>"]),
        (gpt2, 9, WORDS[-9:]),
        (gpt2, 500, (WORDS * 3)[-(POSITIONS - TOKENS) :]),
    ):
        seen = seen_by(generator, monkeypatch)
        generator.generate([" ".join(WORDS * 3 if length == 500 else WORDS)], length, 1)
        assert generator._tokenizer.decode(seen[0]).split() == expected


def test_the_models_own_sampling_settings_are_not_used(writer, tmp_path):
    folder = shutil.copytree(writer("t5"), tmp_path / "t5")
    path = folder / "generation_config.json"
    own = json.loads(path.read_text())
    path.write_text(json.dumps({**own, "num_beams": 4, "no_repeat_ngram_size": 1, "max_length": 3}))
    expected = load(writer("t5"), QUERIES).generate(texts(), 40, 7)
    assert load(folder, QUERIES).generate(texts(), 40, 7) == expected


def test_no_room_for_a_passage_is_refused(writer):
    with pytest.raises(UsageError, match="has 64 positions: 64 new tokens leave no room"):
        load(writer("gpt2"), CONTINUATIONS, tokens=64)


def test_numbers_that_are_not_finite_are_refused(writer):
    generator = load(writer("t5"), QUERIES)
    with torch.no_grad():
        generator._model.shared.weight[5] = torch.nan
    with pytest.raises(ModelError, match="logits that are not finite in float32"):
        generator.generate(texts(), 40, 1)


def test_a_batch_that_does_not_fit_is_an_error(writer, monkeypatch):
    def full(**arguments):
        raise torch.OutOfMemoryError

    generator = load(writer("t5"), QUERIES)
    monkeypatch.setattr(generator._model, "generate", full)
    with pytest.raises(ModelError, match="no room for a batch of 12 passages with 2 samples each"):
        generator.generate(texts(), 40, 1)


@pytest.mark.parametrize(
    ("made", "option", "said"),
    [
        ("gpt2", QUERIES, "--queries-model .* is a gpt2 model; a sequence-to-sequence"),
        ("t5", CONTINUATIONS, "--continuation-model .* is a t5 model; a causal"),
    ],
)
def test_the_wrong_kind_is_refused_with_the_right_option(made, option, said, writer):
    with pytest.raises(ModelError, match=said) as caught:
        load(writer(made), option)
    assert caught.value.hint == f"give it as {OPTIONS[made]}"


def test_an_encoder_is_refused(tiny):
    for option in (QUERIES, CONTINUATIONS):
        with pytest.raises(ModelError, match="is a bert model") as caught:
            load(tiny("bert"), option)
        assert caught.value.hint is None
    with pytest.raises(ModelError, match=r"config.json; missing: decoder\."):
        load(tiny("t5"), QUERIES)


@pytest.fixture
def copied(writer, tmp_path):
    return shutil.copytree(writer("t5"), tmp_path / "t5")


def test_a_pickle_is_read_only_when_asked_for(copied):
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(copied)
    torch.save(model.state_dict(), copied / "pytorch_model.bin")
    before = load(copied, QUERIES).generate(texts(3), 40, 1)
    (copied / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="its weights are a pickle") as caught:
        load(copied, QUERIES)
    assert "--allow-pickle" in (caught.value.hint or "")
    assert load(copied, QUERIES, allow_pickle=True).generate(texts(3), 40, 1) == before


def test_a_file_cut_short_is_refused(copied):
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelError, match="cannot be read as a file of tensors"):
        load(copied, QUERIES)


def test_a_model_without_a_first_decoder_token_is_refused(copied):
    for name in ("config.json", "generation_config.json"):
        config = json.loads((copied / name).read_text())
        config.pop("decoder_start_token_id", None)
        (copied / name).write_text(json.dumps(config))
    with pytest.raises(ModelError, match="decoder_start_token_id"):
        load(copied, QUERIES)
