import pytest

from denserk.config.candidate_expressions import Cut, Name, Rerank, Sum, parse_candidate
from denserk.errors import UsageError

A, B, C = Name("a"), Name("b"), Name("c")


def parse(text, paths=()):
    return parse_candidate(text, lambda path: path in paths)


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("a", A),
        ("a+b", Sum((A, B), None)),
        (" a + b + c ", Sum((A, B, C), None)),
        ("0.3*a+.7*b", None),
        ("0.3*a+0.7*b", Sum((A, B), (0.3, 0.7))),
        ("1*a + 0*b", Sum((A, B), (1.0, 0.0))),
        ("a>>b", Rerank(A, "b")),
        ("a+b>>c", Rerank(Sum((A, B), None), "c")),
        ("a+(b>>c)", Sum((A, Rerank(B, "c")), None)),
        ("a%5>>b>>c", Rerank(Rerank(Cut(A, 5), "b"), "c")),
        ("(a+b)%5", Cut(Sum((A, B), None), 5)),
        ("0.5*a%5+0.5*b", Sum((Cut(A, 5), B), (0.5, 0.5))),
        ("finetune:a", Name("finetune:a")),
        ("x/y-z.trec", Name("x/y-z.trec")),
    ],
)
def test_operators_bind_as_in_pyterrier(text, expression):
    if expression is None:
        with pytest.raises(UsageError):
            parse(text)
        return
    parsed = parse(text).expression
    assert parsed == expression
    assert parse(str(parsed)).expression == expression


def test_a_label_and_paths():
    assert parse("mine=a+b").label == "mine"
    assert parse("a + b").label == "a+b"
    assert parse("a+b.trec", paths=["a+b.trec"]).expression == Name("a+b.trec")
    assert parse("x=a+b.trec", paths=["a+b.trec"]) == ("x", Name("a+b.trec"))


@pytest.mark.parametrize(
    "text",
    ["", "+", "a+", "a b", "a>>", ">>a", "a%", "a%0", "a%b", "2*a", "2*a+b", "0*a+0*b", "(a", "a)"],
)
def test_mistakes(text):
    with pytest.raises(UsageError, match="--candidates"):
        parse(text)
