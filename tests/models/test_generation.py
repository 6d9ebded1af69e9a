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
from tests.tiny_models import POSITIONS

OPTIONS = {"t5": QUERIES, "mt5": QUERIES, "gpt2": CONTINUATIONS}
TOKENS = 12
DRAW = random.Random(5)
TEXTS = [" ".join(DRAW.choices(WORDS, k=DRAW.randint(1, 30))) for _ in range(12)]
TEXTS.insert(3, "")


def load(folder, option, *, samples=2, tokens=TOKENS, top_k=0, allow_pickle=False, **compute):
    return TextGenerator(
        option,
        str(folder),
        Sampling(samples, max_tokens=tokens, top_k=top_k, top_p=0.9),
        ComputeSettings(**{"device": "cpu", **compute}),
        allow_pickle=allow_pickle,
    )


@pytest.mark.parametrize("kind", OPTIONS)
def test_the_same_seed_gives_the_same_samples(kind, writer):
    generator = load(writer(kind), OPTIONS[kind], batch_size=5)
    state = torch.get_rng_state()
    made = generator.generate(TEXTS, 40, seed=7)
    assert torch.equal(torch.get_rng_state(), state)
    assert made == load(writer(kind), OPTIONS[kind], batch_size=5).generate(TEXTS, 40, seed=7)
    assert made != generator.generate(TEXTS, 40, seed=8)
    assert made[3] == []
    assert [len(own) for own in made].count(2) > 9
    assert len({text for own in made for text in own}) > 15
    assert generator.generate(["", ""], 40, seed=7) == [[], []]


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("length", [9, 500])
def test_one_possible_token_is_greedy_decoding(kind, writer, length):
    """Of a long text the first tokens make queries, and the last ones are continued."""
    generator = load(writer(kind), OPTIONS[kind], top_k=1, samples=1)
    auto = "AutoModelForCausalLM" if kind == "gpt2" else "AutoModelForSeq2SeqLM"
    model = getattr(transformers, auto).from_pretrained(writer(kind))
    tokenizer = transformers.AutoTokenizer.from_pretrained(writer(kind))
    passages = [text for text in (*TEXTS, " ".join(WORDS * 3)) if text]
    for passage, found in zip(passages, generator.generate(passages, length, 1), strict=True):
        if kind == "gpt2":
            own = tokenizer(passage).input_ids[-min(length, POSITIONS - TOKENS) :]
        else:
            own = tokenizer(passage, truncation=True, max_length=length).input_ids
        ids = torch.tensor([own])
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=TOKENS,
            do_sample=False,
            pad_token_id=0,
        )[0]
        new = made[len(own) :] if kind == "gpt2" else made
        expected = str(tokenizer.decode(new, skip_special_tokens=True)).strip()
        assert found == ([expected] if expected else [])


def test_the_models_own_sampling_settings_are_not_used(writer, tmp_path):
    folder = shutil.copytree(writer("t5"), tmp_path / "t5")
    path = folder / "generation_config.json"
    own = json.loads(path.read_text())
    path.write_text(json.dumps({**own, "num_beams": 4, "no_repeat_ngram_size": 1, "max_length": 3}))
    expected = load(writer("t5"), QUERIES).generate(TEXTS, 40, 7)
    assert load(folder, QUERIES).generate(TEXTS, 40, 7) == expected


def test_failures_of_a_model_are_errors(writer, monkeypatch):
    with pytest.raises(UsageError, match="has 64 positions: 64 new tokens leave no room"):
        load(writer("gpt2"), CONTINUATIONS, tokens=64)
    generator = load(writer("t5"), QUERIES)
    with torch.no_grad():
        generator._model.shared.weight[5] = torch.nan
    with pytest.raises(ModelError, match="logits that are not finite in float32"):
        generator.generate(TEXTS, 40, 1)

    def full(**_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(generator._model, "generate", full)
    with pytest.raises(ModelError, match="no room for a batch of 12 passages with 2 samples each"):
        generator.generate(TEXTS, 40, 1)


def test_the_wrong_kind_is_refused_with_the_right_option(writer, tiny):
    for folder, option, said, hint in (
        (writer("gpt2"), QUERIES, "is a gpt2 model; a sequence-to-sequence", CONTINUATIONS),
        (writer("t5"), CONTINUATIONS, "is a t5 model; a causal", QUERIES),
        (tiny("bert"), QUERIES, "is a bert model", None),
        (tiny("bert"), CONTINUATIONS, "is a bert model", None),
        (tiny("t5"), QUERIES, r"config.json; missing: decoder\.", None),
    ):
        with pytest.raises(ModelError, match=said) as caught:
            load(folder, option)
        assert caught.value.hint == (f"give it as {hint}" if hint else None)


def test_broken_folders(writer, tmp_path):
    copied = shutil.copytree(writer("t5"), tmp_path / "t5")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(copied)
    torch.save(model.state_dict(), copied / "pytorch_model.bin")
    before = load(copied, QUERIES).generate(TEXTS[:3], 40, 1)
    (copied / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="its weights are a pickle") as caught:
        load(copied, QUERIES)
    assert "--allow-pickle" in (caught.value.hint or "")
    assert load(copied, QUERIES, allow_pickle=True).generate(TEXTS[:3], 40, 1) == before
    for name in ("config.json", "generation_config.json"):
        config = json.loads((copied / name).read_text())
        config.pop("decoder_start_token_id", None)
        (copied / name).write_text(json.dumps(config))
    with pytest.raises(ModelError, match="decoder_start_token_id"):
        load(copied, QUERIES, allow_pickle=True)
