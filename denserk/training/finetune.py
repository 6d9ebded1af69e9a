"""Fine-tune a retriever or a cross-encoder, on queries and passages or on sentences."""

import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from datasets import List, Value
from torch import nn

from denserk.config import encoding, recorded
from denserk.config.formats import CorpusSettings
from denserk.config.options import as_json, given_fields, spelled, unused_options
from denserk.config.retrieval import Metric
from denserk.config.training import BI_ENCODER, CROSS_ENCODER, DevMetric, FinetuneRun, Objective
from denserk.data.batches import plan
from denserk.data.pretraining_data import split_sentences
from denserk.data.tokenization import TextTokenizer
from denserk.data.training_batches import PairTrainingBatches, SentenceBatches, TrainingBatches
from denserk.data.training_data import SentenceStore, prepare, tokenize_sentences, write_sentences
from denserk.errors import ModelError, UsageError
from denserk.extras import require
from denserk.io.corpus import read_passages
from denserk.io.durability import flush_tree
from denserk.io.files import display_name
from denserk.io.model_files import find_model
from denserk.io.topics import read_queries
from denserk.losses.retrieval import RetrievalObjective
from denserk.models import model_folder
from denserk.models.backbone import STATIC, Backbone, StaticConfig, without_special_tokens
from denserk.models.checkpoints import read_tensors
from denserk.models.cross_encoder import Reranker, is_reranker, reranker_to_train
from denserk.models.representation import Aggretriever, Encoder, MultiVector, Retriever
from denserk.models.text_encoder import PASSAGE, QUERY, TextEncoder
from denserk.records import Query
from denserk.reporting import track
from denserk.training import run_folder
from denserk.training.steps import Step, reranking_step, retrieval_step, sentence_step
from denserk.training.trainer import Prepared, Training
from denserk.training.validation import DevSet, dev_sets, measure, measure_groups, measure_sentences

logger = logging.getLogger(__name__)

BLOCK = 4096  # queries that a teacher encodes at once
# Sentences of an example; measures of held-out examples beside the loss.
SENTENCES = {Objective.COSINE_MSE: 2, Objective.TRIPLET: 3, Objective.ALIGN: 1}
MEASURES = {
    Objective.RETRIEVAL: {DevMetric.RR_10, DevMetric.AVERAGE_RANK},
    Objective.COSINE_MSE: {DevMetric.SPEARMAN},
    Objective.TRIPLET: {DevMetric.ACCURACY},
    Objective.ALIGN: {DevMetric.COSINE},
}


def finetune(run: FinetuneRun) -> run_folder.TrainingResult:
    """Train a retriever or a cross-encoder, and save it as a model folder."""
    for note in run.notes:
        logger.info(note)
    special = {CROSS_ENCODER: reranker_training, Objective.ALIGN: alignment_training}
    build = special.get(what_is_trained(run), retriever_training)
    return run_folder.train(run, lambda _: with_adapters(build(run), run))


def what_is_trained(run: FinetuneRun) -> str:
    """Return an objective on sentences, or bi-encoder or cross-encoder, as given or as --model.

    Raise a UsageError for settings that its training does not use.
    """
    trained, best_by = str(run.objective.objective), run.validation.best_by
    measured = {DevMetric.LOSS, *MEASURES[run.objective.objective]}
    others = dict(run.representation)
    kind = others.pop("representation", None)
    reranking = kind == encoding.Representation.CROSS_ENCODER
    if trained not in SENTENCES:
        reranking |= kind is None and is_reranker(find_model(run.finetune.model)[1])
        trained = CROSS_ENCODER if reranking else BI_ENCODER
    if best_by not in {None, *measured}:
        why = f"--best-by {best_by} is not measured under --objective {run.objective.objective}"
        raise UsageError(why, f"--best-by {' or '.join(sorted(measured))}")
    if trained == CROSS_ENCODER and run.sampling.group_size < 2:
        why = "--group-size 1: a cross-encoder has no in-batch negatives"
        raise UsageError(why, "give at least 2")
    groups = (run.finetune, run.sampling, run.objective, run.cache, run.reranking, run.validation)
    unused = unused_options(trained, *groups)
    if trained in SENTENCES:
        if trained != Objective.ALIGN:
            unused += [spelled(name, CorpusSettings) for name in given_fields(run.corpus)]
        if reranking:
            unused.append("--representation cross-encoder")
    elif reranking:
        unused += [spelled(name, encoding.RepresentationSettings) for name in sorted(others)]
    if unused:
        raise UsageError(f"{', '.join(unused)}: not used by {trained}", "leave out what is named")
    return trained


def retriever_training(run: FinetuneRun) -> Training:
    """Load or initialise the retriever of a run; new layers use torch's random state."""
    name, folder = find_model(run.finetune.model)
    stored = model_folder.read_model_folder(folder)
    chosen = stored.choose(run.representation, run.text)
    if stored.metric is not Metric.INNER:
        logger.info(f"{name} is trained to compare by inner product, and so will the new model")
    sentences, temperature = run.objective.objective in SENTENCES, run.objective.temperature
    if chosen.l2_norm and not sentences and temperature >= 1:
        why = f"--temperature {temperature:g} with L2-normalised vectors: a softmax hardly learns"
        raise UsageError(why, "add --temperature 0.05, or --no-l2-norm")
    if not (stored.has_settings or run.representation):
        logger.info(f"{name} does not record a pooling: training {chosen.representation}")
    texts = model_folder.fit_lengths(stored.text, run.text, stored.passage.max_length)
    model = Retriever(*stored.build(chosen, train=True, untie=run.finetune.untie))
    of_queries = stored.load_tokenizer(stored.query.folder)
    of_passages = stored.load_tokenizer(stored.passage.folder)
    tokenizers = TextTokenizer(of_queries, texts), TextTokenizer(of_passages, texts)

    def save(folder: Path) -> None:
        query = None if model.shared else model.query
        sizes = run.objective.dimensions or ()
        model_folder.save_model(folder, model.passage, of_passages, texts, query, name, sizes)

    def load(folder: Path) -> None:
        saved = model_folder.read_model_folder(folder)
        model.load_state_dict(Retriever(*saved.build(saved.representation)).state_dict())

    step: Step
    prepare: Callable[[Path], Prepared]
    resolved = {"representation": as_json(chosen), "text": as_json(texts)}
    if sentences:
        if not model.shared:
            why = f"{run.finetune.model} has separate encoders for queries and passages"
            raise UsageError(why, "train on sentences from a model whose sides share their weights")
        step = partial(sentence_step, model.passage, run.objective, run.cache)
        size, scale = SENTENCES[run.objective.objective], run.objective.label_scale
        read = partial(tokenize_sentences, tokenizer=tokenizers[1], size=size, label_scale=scale)
        prepare = partial(prepare_sentences, run, model.passage, read)
    else:
        objective, across = objective_of(run, model), run.finetune.negatives_x_device
        guide = None
        if run.objective.guide is not None:
            guide = load_guide(run, run.objective.guide)
            resolved["guide"] = guide.description()
        step = partial(retrieval_step, model, objective, run.cache, across, guide=guide)
        size = run.optimizer.batch_size
        measured = partial(measure, model, batch=size, temperature=temperature)
        prepare = partial(prepare_queries, run, tokenizers, TrainingBatches, measured, guide=guide)
    return Training(model, step, save, load, prepare, resolved)


def load_guide(run: FinetuneRun, model: str) -> TextEncoder:
    """Load the model that keeps probable positives out of the negatives."""
    if "-" in run.finetune.train_data:
        raise UsageError("--guide reads --train-data twice: give a file, not a stream")
    compute = encoding.ComputeSettings(device=run.finetune.device, dtype=run.optimizer.dtype)
    guide = TextEncoder(model, compute=compute)
    if guide.metric is not Metric.INNER:
        raise ModelError(
            f"--guide {guide.name} compares by Euclidean distance; texts are guided by inner "
            "product or cosine",
            "choose another guide",
        )
    return guide


def objective_of(run: FinetuneRun, model: Retriever) -> RetrievalObjective:
    """Return the loss of a run; an Aggretriever's vectors are split into [CLS] and agg parts."""
    parts, settings = None, model.passage.settings
    made, sizes = model.passage.representation, run.objective.dimensions or ()
    if sizes and isinstance(made, Aggretriever):
        raise UsageError(f"--dimensions: {encoding.NO_PREFIX}", encoding.SMALLER_AGG)
    if (largest := max(sizes, default=0)) > (width := model.passage.dimension):
        raise UsageError(f"--dimensions {largest}: the model's vectors have {width} dimensions")
    if isinstance(made, Aggretriever) and made.cls_dim and made.agg_dim:
        cls_first = settings.agg_order is encoding.AggOrder.CLS_AGG
        split = made.cls_dim if cls_first else made.agg_dim
        halves = slice(0, split), slice(split, made.dimension)
        parts = halves if cls_first else halves[::-1]
    several = settings.reduction is encoding.Reduction.SELF_CONTRASTIVE
    several = several and isinstance(made, MultiVector)
    return RetrievalObjective(run.objective, parts, several, settings.l2_norm)


def reranker_training(run: FinetuneRun) -> Training:
    """Load the cross-encoder of a run, or give an encoder a new linear head."""
    model = reranker_to_train(find_model(run.finetune.model)[1], run.sampling.seed)
    model = model.fit(run.text, run.reranking.pair_max_length)
    joiner, tokenizers = model.joiner(), (model.tokenizer(), model.tokenizer())
    batches, measured = partial(PairTrainingBatches, joiner), partial(measure_groups, model, joiner)
    prepare = partial(prepare_queries, run, tokenizers, batches, measured)
    settings = encoding.RepresentationSettings(encoding.Representation.CROSS_ENCODER)
    resolved = {"representation": as_json(settings), "text": as_json(model.text)}
    step = partial(reranking_step, model, run.reranking.r_drop, run.cache)
    return Training(model, step, model.save, model.load, prepare, resolved)


def prepare_queries(
    run: FinetuneRun,
    tokenizers: tuple[TextTokenizer, TextTokenizer],
    kind: Callable[..., TrainingBatches],
    measured: Callable[[list[DevSet]], dict[str, float]],
    output: Path,
    guide: TextEncoder | None = None,
) -> Prepared:
    """Tokenise queries and passages below the run's folder."""
    tokenize = partial(prepare, again=not run_folder.is_resumable(output))
    store, guided, held_out = tokenize(run, output / run_folder.DATA, *tokenizers), None, None
    if guide is not None:
        own = (guide.sides[side].tokenizer for side in (QUERY, PASSAGE))
        fields = tokenizers[1].settings.fields  # rows are those of the model's own data
        guided = tokenize(run, output / "guide-data", *own, distinct_by=fields)
    if (file := run.validation.dev_data) is not None:
        finetune = replace(run.finetune, train_data=(file,), train_format=None, qrels=None)
        of_dev, folder = replace(run, finetune=finetune), output / run_folder.DEV_DATA
        held_out = tokenize(of_dev, folder, *tokenizers)
    dev, options = dev_sets(run, held_out, tokenizers), run_folder.share_of_batches(run)
    options["with_scores"] = run.objective.distillation is not None
    options["masks"] = run.objective.mask_false_negatives or guide is not None
    batches = kind(store, run.sampling, run.optimizer.batch_size, guide=guided, **options)
    return batches, partial(measured, dev) if dev else None


def prepare_sentences(
    run: FinetuneRun, encoder: Encoder, tokenize: Callable[..., SentenceStore], output: Path
) -> Prepared:
    """Tokenise the sentences of a run below its folder; return batches, and what measures."""
    tokenize = partial(tokenize, again=not run_folder.is_resumable(output))
    store = tokenize(run.finetune.train_data, output / run_folder.DATA)
    size, share = run.optimizer.batch_size, run_folder.share_of_batches(run)
    batches = SentenceBatches(store, run.sampling, size, **share)
    if run.validation.dev_data is None:
        return batches, None
    dev = tokenize([run.validation.dev_data], output / run_folder.DEV_DATA)
    return batches, partial(measure_sentences, encoder, run.objective, dev)


def alignment_training(run: FinetuneRun) -> Training:
    """Load the teacher and the student of a run; a student of other dimensions is projected.

    The student learns the teacher's query vectors, to search an index that exists faster: "Query
    Encoder Distillation via Embedding Alignment is a Strong Baseline Method to Boost Dense
    Retriever Online Efficiency" (Wang and Lyu, 2023).
    """
    if run.finetune.teacher is None:
        raise UsageError("--objective align needs --teacher, whose query vectors are learned")
    compute = encoding.ComputeSettings(device=run.finetune.device)
    teacher = TextEncoder(run.finetune.teacher, compute=compute)
    name, stored, tokenizer = read_student(run.finetune.model, teacher)
    start = stored.query.keep_layers(run.finetune.keep_layers)
    # a query has one vector, whatever passages have
    usual = {"l2_norm": teacher.representation.l2_norm, "layers": (), "reduction": "average"}
    chosen = model_folder.override(stored.representation, {**usual, **run.representation})
    encoder = start.build(chosen, train=True)
    if encoder.dimension != teacher.dimension:
        chosen = model_folder.override(chosen, {"projection": teacher.dimension})
        encoder = start.build(chosen, train=True)
    for module in encoder.modules():
        if isinstance(module, nn.Dropout):  # vectors with noise are not the teacher's
            module.p = 0.0
    texts = model_folder.fit_lengths(stored.text, run.text, start.max_length)
    own = TextTokenizer(tokenizer, texts)
    described = {key: teacher.description()[key] for key in model_folder.TEACHER}
    # a folder without the folders of this machine: the fingerprint tells whose vectors they are
    public = {**described, "name": recorded.public_name(teacher.name, Path(teacher.name).parent)}

    def save(folder: Path) -> None:
        model_folder.save_model(folder, encoder, tokenizer, texts, base=name, queries_of=public)

    def load(folder: Path) -> None:
        saved = model_folder.read_model_folder(folder)
        encoder.load_state_dict(saved.query.build(saved.representation).state_dict())

    tokenize = partial(prepare_alignment, run, own, teacher)
    prepare = partial(prepare_sentences, run, encoder, tokenize)
    step = partial(sentence_step, encoder, run.objective, run.cache)
    resolved = {"representation": as_json(chosen), "text": as_json(texts), "teacher": described}
    return Training(encoder, step, save, load, prepare, resolved)


def read_student(model: str, teacher: TextEncoder) -> tuple[str, model_folder.StoredModel, Any]:
    """Return name, model and tokenizer to start from; static ones have the teacher's of tokens."""
    if model != STATIC:
        name, folder = find_model(model)
        stored = model_folder.read_model_folder(folder)
        return name, stored, stored.load_tokenizer(stored.query.folder)
    of_teacher = model_folder.read_model_folder(find_model(teacher.name)[1])
    folder = of_teacher.query.folder
    tokenizer = of_teacher.load_tokenizer(folder)
    encoder, _ = teacher.sides[QUERY]
    tokenizer.backend_tokenizer.no_padding()
    text = tokenizer.backend_tokenizer.encode("a")
    first, last = (text.sequence_ids[::step].index(0) for step in (1, -1))
    before, after = text.ids[:first], text.ids[len(text.ids) - last :]
    count = encoder.backbone.config.vocab_size
    planned = plan([[*before, token, *after] for token in range(count)], 0, teacher.batch_tokens)
    with track("encoding single tokens", count, "tokens") as progress:
        vectors = teacher.encode_planned(QUERY, planned, progress.advance)
    config = StaticConfig(vocab_size=count, hidden_size=teacher.dimension)
    weights = {"embedding.weight": torch.from_numpy(vectors)}
    start = model_folder.StoredEncoder(folder, config, weights, {})
    pooling = encoding.RepresentationSettings(encoding.Representation.MEAN)
    stored = model_folder.StoredModel(folder, start, start, pooling, teacher.text)
    return STATIC, stored, without_special_tokens(tokenizer)


def prepare_alignment(
    run: FinetuneRun,
    tokenizer: TextTokenizer,
    teacher: TextEncoder,
    sources: Sequence[str],
    folder: Path,
    *,
    again: bool,
) -> SentenceStore:
    """Tokenise queries, to train also the sentences of --corpus, and encode them by the teacher."""
    fields = teacher.text.fields
    corpus = run.finetune.corpus if folder.name == run_folder.DATA else None

    def texts() -> Iterator[Query]:
        for source in sources:
            yield from read_queries(source)
        for passage in read_passages(corpus, run.corpus, fields) if corpus else ():
            for part in map(passage.field, fields):
                yield from (Query(passage.docid, text) for text in split_sentences(part))

    def rows() -> Iterator[dict[str, Any]]:
        left = texts()
        with track("encoding by the teacher", None, "queries") as progress:
            while block := list(islice(left, BLOCK)):
                vectors = teacher.encode_queries(block)
                for ids, vector in zip(tokenizer.queries(block), vectors, strict=True):
                    yield {"input_ids": ids, "label": vector}
                progress.advance(len(block))

    settings = {"size": 1, "corpus": as_json(run.corpus), "teacher": teacher.description()}
    inputs, label = {"file": sources, "corpus": corpus}, List(Value("float32"), teacher.dimension)
    return write_sentences(folder, tokenizer, settings, inputs, label, rows, again=again)


def with_adapters(training: Training, run: FinetuneRun) -> Training:
    """Return the training of adapters and new heads of a model, if a run asks for it.

    LoRA (Hu et al., 2022), by peft: a target's weights W (out, in) become W + alpha / r B A, with A
    (r, in) random and B (out, r) zero at first. `save` writes these sums, and `adapter/` in peft's
    format, which `load` reads.
    """
    if run.adapters.lora is None:
        return training
    owners = [each for each in training.model.modules() if isinstance(each, Backbone | Reranker)]
    sides = (model_folder.PASSAGE_SIDE, model_folder.QUERY_SIDE) if len(owners) > 1 else ("",)
    adapted = {
        Path(side, "adapter"): (owner, _adapted(owner, run))
        for side, owner in zip(sides, owners, strict=True)
    }
    sizes = {each: each.numel() for each in training.model.parameters()}
    trained = sum(size for each, size in sizes.items() if each.requires_grad)
    logger.info(f"LoRA trains {trained:,} of {sum(sizes.values()):,} weights")

    def with_sums(work: Callable[[Path], None], folder: Path) -> None:
        for owner, model in adapted.values():
            owner.model = copy.deepcopy(model).merge_and_unload()
        work(folder)
        for owner, model in adapted.values():
            owner.model = model.get_base_model()

    def save(folder: Path) -> None:
        for place, (_, model) in adapted.items():
            model.save_pretrained(folder / place, save_embedding_layers=False)
            flush_tree(folder / place)
        with_sums(training.save, folder)

    def load(folder: Path) -> None:
        with_sums(training.load, folder)  # heads that are no part of a transformer
        for place, (_, model) in adapted.items():
            tensors = read_tensors(folder / place / "adapter_model.safetensors")
            require("peft", "--lora").set_peft_model_state_dict(model, tensors)

    return replace(training, save=save, load=load)


def _adapted(owner: Backbone | Reranker, run: FinetuneRun) -> Any:
    """Add adapters to a transformer in place; return peft's model of it."""
    settings, model, rank = run.adapters, owner.model, run.adapters.lora or 0
    peft = require("peft", "--lora")
    usual = peft.utils.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=settings.lora_alpha or 2 * rank,
        lora_dropout=settings.lora_dropout,
        target_modules=[*settings.lora_targets] or usual.get(model.config.model_type, "all-linear"),
        modules_to_save=[  # a decoder tied to the embeddings stays so
            name
            for name, module in model.named_modules()
            if f"{name}.".startswith(owner.new_heads)
            and isinstance(module, nn.Linear | nn.LayerNorm)
            and module is not model.get_output_embeddings()
        ],
    )
    # is written beside the adapter: a folder without the folders of this machine
    base = run.finetune.model
    model.name_or_path = display_name(base) if Path(base).is_dir() else base
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # peft's own
            return peft.get_peft_model(model, config)
    except ValueError as error:
        raise UsageError(f"--set lora-targets: {error}") from None
