"""Generation against a literal loop, and its independence of batches and of rounding."""

import json
import random
import shutil
from typing import Any

import pytest
import torch
import transformers

from denserk.errors import ModelError, UsageError
from denserk.modeling import generator as module
from denserk.modeling.decoders import CausalDecoder, Seq2SeqDecoder
from denserk.modeling.generator import Generator
from denserk.modeling.sampling import draw_one, row_keys
from denserk.settings.encoding import ComputeSettings
from denserk.settings.generate import Drawing, SamplingRule
from tests.conftest import WORDS
from tests.writing_models import POSITIONS

KINDS: dict[str, Any] = {"t5": Seq2SeqDecoder, "mt5": Seq2SeqDecoder, "gpt2": CausalDecoder}
TOKENS = 12


def texts(count=12):
    draw = random.Random(5)
    made = [" ".join(draw.choices(WORDS, k=draw.randint(1, 30))) for _ in range(count)]
    return [*made[:3], "", *made[3:]]


NUCLEUS = SamplingRule(top_p=0.9)


def load(folder, decoder, *, rule=NUCLEUS, samples=2, tokens=TOKENS, **compute):
    drawing = Drawing("queries", samples, rule, tokens)
    settings = ComputeSettings(**{"device": "cpu", **compute})
    return Generator(decoder, str(folder), drawing, 42, settings)


def written(generator, passages, longest=40):
    names = [f"d{i}" for i in range(len(passages))]
    return generator.generate(generator.read(passages, longest), names)


def literal(folder, kind, passages, rule, samples):
    """One text, one sample, one token after the other, by transformers' own model in float64."""
    auto = "AutoModelForCausalLM" if kind == "gpt2" else "AutoModelForSeq2SeqLM"
    model = getattr(transformers, auto).from_pretrained(folder, dtype=torch.float64)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    found = []
    for number, passage in enumerate(passages):
        own = []
        text = tokenizer(passage).input_ids if passage else []
        for key in row_keys(42, "queries", [f"d{number}"], samples) if text else ():
            tokens: list[int] = []
            while len(tokens) < TOKENS:
                if kind == "gpt2":
                    logits = model(input_ids=torch.tensor([text + tokens])).logits[0, -1]
                else:
                    ids, begun = torch.tensor([text]), torch.tensor([[0, *tokens]])
                    logits = model(input_ids=ids, decoder_input_ids=begun).logits[0, -1]
                token = draw_one(logits, key.view(1), len(tokens), rule)
                if token == tokenizer.eos_token_id:
                    break
                tokens.append(token)
            own.append(str(tokenizer.decode(tokens, skip_special_tokens=True)).strip())
        found.append([sample for sample in own if sample])
    return found


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_batches_write_what_a_literal_loop_writes(kind, writer):
    rule = SamplingRule(top_k=20, top_p=0.9)
    expected = literal(writer(kind), kind, texts(6), rule, 2)
    assert written(load(writer(kind), KINDS[kind], rule=rule), texts(6)) == expected
    assert len(set(map(tuple, expected))) == 7
    assert expected[3] == []


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
@pytest.mark.parametrize("rule", [SamplingRule(top_k=10), SamplingRule(top_p=0.9)])
def test_batches_and_order_change_nothing(kind, rule, writer):
    whole = written(load(writer(kind), KINDS[kind], rule=rule), texts())
    for compute in ({"batch_size": 1}, {"batch_size": 5}, {"batch_tokens": 200}):
        assert written(load(writer(kind), KINDS[kind], rule=rule, **compute), texts()) == whole
    generator = load(writer(kind), KINDS[kind], rule=rule)
    ids = generator.read(texts(), 40)
    for places in ([7], [12, 0, 3, 5]):
        some = generator.generate([ids[i] for i in places], [f"d{i}" for i in places])
        assert some == [whole[i] for i in places]


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_what_rounding_could_change_is_settled(kind, writer, monkeypatch):
    def shaken(tolerance, settles):
        class Shaken(KINDS[kind]):  # type: ignore[misc, valid-type]
            def begin(self, batch, samples):
                return self.shake(super().begin(batch, samples))

            def go_on(self, tokens):
                return self.shake(super().go_on(tokens))

            def shake(self, logits):
                reach = 0.9 * tolerance * logits.abs().amax(1, keepdim=True)
                return logits + reach * (torch.randint(0, 3, logits.shape) - 1)

            def exact(self):
                return KINDS[kind](self.model).exact()

        monkeypatch.setattr(module, "TOLERANCE", tolerance if settles else 0.0)
        torch.manual_seed(3)
        generator = load(writer(kind), Shaken)
        return written(generator, texts()), generator.tally

    still = written(load(writer(kind), KINDS[kind]), texts())
    found, tally = shaken(0.01, settles=True)
    assert found == still
    assert 0 < tally.settled < tally.drawn / 2
    assert 0.5 < tally.worst <= 1
    assert shaken(0.01, settles=False)[0] != still


@pytest.mark.parametrize("kind", KINDS)
def test_the_likeliest_token_is_what_transformers_takes(kind, writer):
    generator = load(writer(kind), KINDS[kind], rule=SamplingRule(top_k=1), samples=1)
    auto = "AutoModelForCausalLM" if kind == "gpt2" else "AutoModelForSeq2SeqLM"
    model = getattr(transformers, auto).from_pretrained(writer(kind))
    tokenizer = transformers.AutoTokenizer.from_pretrained(writer(kind))
    passages = [text for text in texts() if text]
    for passage, found in zip(passages, written(generator, passages), strict=True):
        ids = torch.tensor([tokenizer(passage).input_ids])
        mask = torch.ones_like(ids)
        made = model.generate(
            ids, attention_mask=mask, max_new_tokens=TOKENS, do_sample=False, pad_token_id=0
        )[0]
        new = made[ids.shape[1] :] if kind == "gpt2" else made
        expected = str(tokenizer.decode(new, skip_special_tokens=True)).strip()
        assert found == ([expected] if expected else [])


def test_samples_end_where_the_model_ends_them(writer):
    generator = load(writer("t5"), Seq2SeqDecoder, samples=8, rule=SamplingRule(), tokens=20)
    ids = [own for own in generator.read(texts(), 40) if own]
    names = [str(i) for i in range(len(ids))]
    whole = generator._run(ids, names)
    ends = {1, 5, 17, 40, 41, 60, 90}
    generator._ends = torch.tensor(sorted(ends))
    lengths = [next((i for i, t in enumerate(own) if t in ends), len(own)) for own in whole]
    assert generator._run(ids, names) == [
        own[:length] for own, length in zip(whole, lengths, strict=True)
    ]
    assert min(lengths) == 0
    assert len(set(lengths)) > 10


def test_long_texts_keep_their_first_tokens_for_queries_and_their_last_to_go_on(writer):
    words = " ".join(WORDS)
    t5, gpt2 = load(writer("t5"), Seq2SeqDecoder), load(writer("gpt2"), CausalDecoder)
    assert t5._tokenizer.decode(t5.read([words], 9)[0]).split() == [*WORDS[:8], "</s>"]
    assert gpt2._tokenizer.decode(gpt2.read([words], 9)[0]).split() == WORDS[-9:]
    assert len(gpt2.read([words * 3], 500)[0]) == POSITIONS - TOKENS


def test_no_room_for_a_passage_is_refused(writer):
    with pytest.raises(UsageError, match="reads 64 tokens in all: 64 new ones leave no room"):
        load(writer("gpt2"), CausalDecoder, tokens=64)


def test_bfloat16_settles_nothing(writer):
    generator = load(writer("gpt2"), CausalDecoder, dtype="bfloat16")
    assert len(written(generator, texts())) == 13
    assert generator.tally.settled == 0


def test_numbers_that_are_not_finite_are_refused(writer):
    generator = load(writer("t5"), Seq2SeqDecoder)
    with torch.no_grad():
        generator._decoder.model.shared.weight[5] = torch.nan
    with pytest.raises(ModelError, match="logits that are not finite in float32"):
        written(generator, texts())


def test_a_batch_that_does_not_fit_is_told(writer, monkeypatch):
    def full(*arguments):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Generator, "_run", full)
    with pytest.raises(ModelError, match="no room for a batch of 12 passages with 2 samples each"):
        written(load(writer("t5"), Seq2SeqDecoder), texts())


@pytest.mark.parametrize(
    ("made", "decoder", "said"),
    [
        ("gpt2", Seq2SeqDecoder, "--queries-model .* is a gpt2 model; a sequence-to-sequence"),
        ("t5", CausalDecoder, "--continuation-model .* is a t5 model; a causal"),
    ],
)
def test_the_wrong_kind_is_refused_with_the_right_option(made, decoder, said, writer):
    with pytest.raises(ModelError, match=said) as caught:
        load(writer(made), decoder)
    other = {"gpt2": "--continuation-model", "t5": "--queries-model"}[made]
    assert caught.value.hint == f"give it as {other}"


def test_an_encoder_is_no_writer(tiny):
    with pytest.raises(ModelError, match="is a bert model") as caught:
        load(tiny("bert"), Seq2SeqDecoder)
    assert caught.value.hint is None
    with pytest.raises(ModelError, match="is no whole sequence-to-sequence model: it lacks"):
        load(tiny("t5"), Seq2SeqDecoder)


@pytest.fixture
def copied(writer, tmp_path):
    return shutil.copytree(writer("t5"), tmp_path / "t5")


def test_a_pickle_is_read_only_when_asked_for(copied):
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(copied)
    torch.save(model.state_dict(), copied / "pytorch_model.bin")
    before = written(load(copied, Seq2SeqDecoder), texts(3))
    (copied / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="its weights are a pickle") as caught:
        load(copied, Seq2SeqDecoder)
    assert "--allow-pickle" in (caught.value.hint or "")
    drawing = Drawing("queries", 2, SamplingRule(top_p=0.9), TOKENS)
    compute = ComputeSettings(device="cpu")
    opened = Generator(Seq2SeqDecoder, str(copied), drawing, 42, compute, allow_pickle=True)
    assert written(opened, texts(3)) == before


def test_a_file_cut_short_is_refused(copied):
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelError, match="cannot be loaded"):
        load(copied, Seq2SeqDecoder)


def test_a_tokenizer_that_is_too_large_is_refused(copied):
    tokenizer = transformers.AutoTokenizer.from_pretrained(copied)
    tokenizer.add_tokens([f"<{i}>" for i in range(9)])
    tokenizer.save_pretrained(copied)
    with pytest.raises(ModelError, match=r"gives .* the id \d+, and the model has \d+ tokens"):
        load(copied, Seq2SeqDecoder)


def test_a_model_that_nothing_begins_is_refused(copied):
    for name in ("config.json", "generation_config.json"):
        config = json.loads((copied / name).read_text())
        config.pop("decoder_start_token_id", None)
        (copied / name).write_text(json.dumps(config))
    with pytest.raises(ModelError, match="decoder_start_token_id"):
        load(copied, Seq2SeqDecoder)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_writes_what_the_cpu_writes(kind, writer):
    on_gpu = load(writer(kind), KINDS[kind], device="cuda", samples=4)
    assert written(on_gpu, texts(40)) == written(
        load(writer(kind), KINDS[kind], samples=4), texts(40)
    )
