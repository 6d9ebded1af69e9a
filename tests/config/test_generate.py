"""What an expansion is told, and what is refused."""

from typing import Any

import pytest

from denserk.config.generate import (
    ContinuationSettings,
    GenerateSettings,
    GenerateTextSettings,
    QuerySettings,
    Sampling,
    sampling_settings,
)
from denserk.errors import UsageError

BASIC: dict[str, Any] = {"corpus": "c", "output": "o", "queries_model": "m"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"queries_model": None}, "give --queries-model, --continuation-model, or both"),
        ({"block_size": 0}, "--block-size 0"),
        ({"shard_id": 2, "shard_num": 2}, "--shard-id 2 of --shard-num 2"),
        ({"resume": True, "overwrite": True}, "exclude each other"),
        ({"output": "-", "resume": True}, "--resume needs a file"),
        ({"corpus": "-", "shard_num": 2}, "--shard-num needs a corpus that can be counted"),
    ],
)
def test_what_cannot_be_done_is_refused(changes, said):
    with pytest.raises(UsageError, match=said):
        GenerateSettings(**{**BASIC, **changes})


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (QuerySettings, {"query_top_k": -1, "query_top_p": 0}, "query-top-k=-1: at least 0"),
        (QuerySettings, {"num_queries": 0}, "--num-queries 0: at least 1"),
        (QuerySettings, {"query_temperature": 0.0}, "query-temperature=0: above 0"),
        (ContinuationSettings, {"continuation_top_p": 1.5}, r"continuation-top-p=1\.5: "),
        (ContinuationSettings, {"continuation_max_tokens": 0}, "continuation-max-tokens=0: "),
        (ContinuationSettings, {"continuation_temperature": float("nan")}, "temperature=nan: "),
        (GenerateTextSettings, {"fields": ()}, "--fields names no field"),
        (GenerateTextSettings, {"join": "sep"}, "join=sep: these models read plain text"),
        (GenerateTextSettings, {"passage_max_length": 1}, "--passage-max-length 1: "),
    ],
)
def test_numbers_that_make_no_sense_are_refused(kind, given, said):
    with pytest.raises(UsageError, match=said):
        kind(**given)


def test_the_defaults_are_those_of_master():
    settings = GenerateSettings(**BASIC, continuation_model="c")
    queries, continuations = sampling_settings(settings, {}, {})
    assert queries is not None
    assert continuations is not None
    assert queries.sampling == Sampling(10, 64, top_k=10)
    assert continuations.sampling == Sampling(1, 128, top_p=0.9)


def test_an_option_of_a_model_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match="--continuation-top-k needs --continuation-model"):
        sampling_settings(GenerateSettings(**BASIC), {"num_queries": 3}, {"continuation_top_k": 3})
    queries, continuations = sampling_settings(GenerateSettings(**BASIC), {"num_queries": 3}, {})
    assert queries is not None
    assert (queries.num_queries, continuations) == (3, None)
