"""Expressions of retrievers, in PyTerrier's operators: `0.3*bm25+0.7*minilm`, `bm25%50>>model`.

expression = sum { ">>" NAME }
sum        = term { "+" term }
term       = [ NUMBER "*" ] atom [ "%" NUMBER ]
atom       = NAME | "(" expression ")"
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, NoReturn, TypeAlias

from denserk.errors import UsageError

TOKEN = re.compile(r"\s*(>>|[+*%()]|[^\s+*%()>]+)")
LABEL = re.compile(r"[A-Za-z0-9_.-]+")
LABELLED = re.compile(rf"(?P<label>{LABEL.pattern})\s*=\s*(?P<text>.+)", re.DOTALL)
NUMBER = re.compile(r"\d+(\.\d+)?")
OPERATORS = (">>", "+", "*", "%", "(", ")")
EXAMPLES = "for example bm25, ./model, bm25+minilm, '0.3*bm25+0.7*minilm' or 'bm25%50>>./reranker'"


class Name(NamedTuple):
    """`bm25`, a model, a file or a folder."""

    name: str

    def __str__(self) -> str:
        return self.name


class Cut(NamedTuple):
    """The first hits of a retriever: `bm25%50`."""

    retriever: "Expression"
    depth: int

    def __str__(self) -> str:
        return f"{_within(self.retriever)}%{self.depth}"


class Sum(NamedTuple):
    """A hybrid; without weights they are fitted: `bm25+minilm`."""

    retrievers: tuple["Expression", ...]
    weights: tuple[float, ...] | None

    def __str__(self) -> str:
        names = [_within(retriever) for retriever in self.retrievers]
        if self.weights is None:
            return "+".join(names)
        terms = [f"{weight:g}*{name}" for weight, name in zip(self.weights, names, strict=True)]
        return "+".join(terms)


class Rerank(NamedTuple):
    """A reranker on top of a retriever: `bm25>>model`."""

    retriever: "Expression"
    model: str

    def __str__(self) -> str:
        return f"{self.retriever}>>{self.model}"


Expression: TypeAlias = Name | Cut | Sum | Rerank


class Candidate(NamedTuple):
    """A retriever that may be chosen, and what results call it."""

    label: str
    expression: Expression


def _within(expression: Expression) -> str:
    """Return the text of an operand, in brackets unless it is a name or has a depth."""
    is_simple = isinstance(expression, Name | Cut)
    return str(expression) if is_simple else f"({expression})"


def parse_candidate(text: str, is_path: Callable[[str], bool]) -> Candidate:
    """Parse `[LABEL=]EXPRESSION`; a text for which `is_path` is true is one name, as it stands.

    >>> parse_candidate("hybrid=bm25 + minilm", lambda text: False)
    Candidate(label='hybrid', expression=Sum(retrievers=(Name(name='bm25'), \
Name(name='minilm')), weights=None))
    >>> str(parse_candidate("bm25%50 >> a/reranker", lambda text: False).expression)
    'bm25%50>>a/reranker'
    """
    text = text.strip()
    if not text:
        raise UsageError("--candidates: an empty text is no retriever", EXAMPLES)
    if is_path(text):
        return Candidate(text, Name(text))
    label_and_text = LABELLED.fullmatch(text)
    if label_and_text is None:
        expression = _Parser(text).parse()
        return Candidate(str(expression), expression)
    label = label_and_text["label"]
    labelled_text = label_and_text["text"].strip()
    if is_path(labelled_text):
        return Candidate(label, Name(labelled_text))
    return Candidate(label, _Parser(labelled_text).parse())


@dataclass
class _Term:
    """An operand of a sum."""

    weight: float | None
    retriever: Expression


class _Parser:
    """Parses one expression by recursive descent, with a method for each rule of the grammar."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split(text)
        self._position = 0

    def _split(self, text: str) -> list[str]:
        """Return the operators and names of a text."""
        tokens = []
        position = 0
        text = text.rstrip()
        while position < len(text):
            match = TOKEN.match(text, position)
            if match is None:
                self._fail(f"found {text[position:].strip()[:20]!r}")
            tokens.append(match[1])
            position = match.end()
        return tokens

    def parse(self) -> Expression:
        """Parse the whole text."""
        expression = self._expression()
        if self._next is not None:
            self._fail(f"found {self._next!r} behind {str(expression)!r}")
        return expression

    def _expression(self) -> Expression:
        """Parse a sum and the rerankers behind it."""
        expression = self._sum()
        while self._next == ">>":
            self._take()
            expression = Rerank(expression, self._name("a reranker"))
        return expression

    def _sum(self) -> Expression:
        """Parse a sum; a term alone is no sum."""
        terms = [self._term()]
        while self._next == "+":
            self._take()
            terms.append(self._term())
        retrievers = tuple(term.retriever for term in terms)
        weights = [term.weight for term in terms if term.weight is not None]
        if len(terms) == 1:
            if weights:
                self._fail("a weight is for the parts of a sum")
            return retrievers[0]
        if not weights:
            return Sum(retrievers, None)
        if len(weights) < len(terms):
            self._fail("some parts of the sum have a weight, and others have none")
        if not any(weights):
            self._fail("one weight must be above 0")
        return Sum(retrievers, tuple(weights))

    def _term(self) -> _Term:
        """Parse an operand with its weight and its number of hits, both optional."""
        weight = None
        if self._is_weight():
            weight = float(self._take())
            self._take()  # the "*"
        retriever = self._atom()
        if self._next != "%":
            return _Term(weight, retriever)
        self._take()
        number = self._name("a number of hits")
        if not number.isdecimal() or int(number) < 1:
            self._fail(f"found {number!r} behind %, expected a number of hits")
        return _Term(weight, Cut(retriever, int(number)))

    def _is_weight(self) -> bool:
        """Return whether a number and `*` come next."""
        following = self._tokens[self._position : self._position + 2]
        return len(following) == 2 and following[1] == "*" and bool(NUMBER.fullmatch(following[0]))

    def _atom(self) -> Expression:
        """Parse a name, or an expression in brackets."""
        if self._next != "(":
            return Name(self._name("a retriever"))
        self._take()
        expression = self._expression()
        if self._next != ")":
            self._fail("a closing bracket is missing")
        self._take()
        return expression

    def _name(self, expected: str) -> str:
        """Take a name; an error says what is expected in its place."""
        if self._next is None:
            self._fail(f"{expected} is missing at the end")
        if self._next in OPERATORS:
            self._fail(f"found {self._next!r}, expected {expected}")
        return self._take()

    @property
    def _next(self) -> str | None:
        """The next token; None at the end."""
        if self._position == len(self._tokens):
            return None
        return self._tokens[self._position]

    def _take(self) -> str:
        """Return the next token, and go behind it."""
        token = self._tokens[self._position]
        self._position += 1
        return token

    def _fail(self, message: str) -> NoReturn:
        raise UsageError(f"--candidates {self._text}: {message}", EXAMPLES)
