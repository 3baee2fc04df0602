"""Brackets and quotes of a query: what has its partner is let through, what has none is said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mx_operator.policies.queries import unbalanced

_TEXTS = st.one_of(
    st.text("()[]{}#'`x", max_size=6).map(lambda text: f'"{text}"'),
    st.text('()[]{}#"`x', max_size=6).map(lambda text: f"'{text}'"),
    st.text("()[]{}#'\"\\\nx", max_size=6).map(lambda text: f"`{text}`"),
    st.text("()[]{}#'`\"x", max_size=6).map(lambda text: f"# {text}\n"),
)
_WHOLE = st.recursive(
    st.one_of(_TEXTS, st.sampled_from(["up", " ", " or ", '"\\""', "'\\''", "=~"])),
    lambda inner: st.tuples(st.sampled_from(["()", "[]", "{}"]), st.lists(inner, max_size=3)).map(
        lambda made: made[0][0] + "".join(made[1]) + made[0][1]
    ),
    max_leaves=12,
)


@given(_WHOLE)
def test_what_is_whole_is_let_through(query: str) -> None:
    assert unbalanced(query) is None


@given(_WHOLE, st.sampled_from("()[]{}\"'`"))
def test_one_more_bracket_or_quote_is_said(query: str, more: str) -> None:
    assert unbalanced(query + more) is not None


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("rate(x[5m])", None),
        ("x # ( is a comment", None),
        ("x{a='b\\'c'}", None),
        ("rate(x[5m)", "has a ) where a ] belongs"),
        ("(x", "has a ( that nothing closes"),
        ("x)", "has a ) that nothing opens"),
        ("x{a=`b}", "has a ` that nothing closes"),
        ('x{a="b}\ny{a="c}', 'has a " that nothing closes'),
        ("# )\n]", "has a ] that nothing opens"),
    ],
)
def test_what_is_said(query: str, said: str | None) -> None:
    assert unbalanced(query) == said
