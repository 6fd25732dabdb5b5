"""Who looks at whom: a predicate of key and query as a sum of products, which is all that attention can score.

- A predicate over finite domains is a 0/1 table of query × key. Keys with equal columns are one class; the score
  is the sum over classes of (does the query want this class) · (is the key of this class).
- Equality of integers, however many, is a parabola: of all integers k, 2k(q + ¼) - k² is largest at k = q. The
  quarter makes sure that no two different keys ever score the same.

Knows how to score, not what is done with the keys found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from looped.compiler.graph import Graph
from looped.compiler.nodes import Array, Node
from looped.compiler.refusal import refuse
from looped.compiler.symbols import Symbol, check_table, compared
from looped.rasp.core import _SIGNS, _truth
from looped.rasp.sequence import COMPARE, Kind

MOST_CLASSES = 3  # of an equality that is scored by classes rather than by the parabola
LARGEST_CLASSES = 60  # of any predicate: each class takes an entry of a head


@dataclass(frozen=True)
class Everything:
    """Every key matches."""


@dataclass(frozen=True)
class ByClass:
    """A table of query × class of key, and each key's class (0: wanted by nobody)."""

    pairs: tuple[tuple[Node, Node], ...]  # products whose sum is 1 for a match, else 0
    query: Node
    key: Node
    key_class: Node
    table: Array  # [query value, class]


@dataclass(frozen=True)
class Equal:
    """The key is the query."""

    key: Node
    query: Node


Match = Everything | ByClass | Equal


def match(k: Symbol, q: Symbol, pred: Callable[..., Any]) -> Match:
    """A predicate of keys and queries, ready to be scored."""
    if Kind.INDEX in (k.kind, q.kind):
        return _of_indices(k, q, pred)
    check_table([k.node, q.node])
    table = _table(k, q, pred)
    keys, queries = np.array(k.node.domain.values), np.array(q.node.domain.values)
    if table.all():
        return Everything()
    equality = (table == (keys[None, :] == queries[:, None])).all()
    if equality and table.sum() > MOST_CLASSES:
        return Equal(k.node, q.node)
    return by_class(k.graph, k.node, q.node, table)


def by_class(graph: Graph, key: Node, query: Node, table: Array) -> ByClass:
    """The table [query value, key value] with its keys put into classes."""
    columns, class_of = np.unique(table, axis=1, return_inverse=True)
    class_of = class_of.reshape(-1)
    wanted = [i for i in range(columns.shape[1]) if columns[:, i].any()]
    if len(wanted) > LARGEST_CLASSES:
        refuse(
            "unbounded-domain",
            f"an attention with {len(wanted)} classes of keys, more than {LARGEST_CLASSES}",
        )
    number = {old: new + 1 for new, old in enumerate(wanted)}
    classes = np.array([number.get(int(old), 0) for old in class_of])
    pairs = tuple(
        (graph.apply([query], columns[:, old]), graph.apply([key], classes == new))
        for old, new in number.items()
    )
    wants = np.stack([np.zeros(len(table), dtype=bool), *(columns[:, old] for old in wanted)], axis=1)
    # `classes` may leave out 0, or hold only it: the table of a key's class follows its domain.
    key_class = graph.apply([key], classes)
    return ByClass(pairs, query, key, key_class, wants)


def _table(k: Symbol, q: Symbol, pred: Callable[..., Any]) -> Array:
    keys, queries = np.array(k.node.domain.values), np.array(q.node.domain.values)
    if pred in _SIGNS:
        return np.asarray(COMPARE[_SIGNS[pred]](keys[None, :], queries[:, None]))
    plain_keys, plain_queries = _plain(k, keys), _plain(q, queries)
    return np.array([[_truth(pred(key, query)) for key in plain_keys] for query in plain_queries], dtype=bool)


def _plain(x: Symbol, values: Array) -> list[int | bool]:
    return list(values.astype(bool if x.kind is Kind.BOOL else np.int64).tolist())


def _of_indices(k: Symbol, q: Symbol, pred: Callable[..., Any]) -> Match:
    """Asks the predicate what it compares, with stand-ins for one key and one query."""
    graph = k.graph
    key, query = graph.leaf("a key", k.node.domain), graph.leaf("a query", q.node.domain)
    asked = pred(Symbol(graph, key, k.kind, k.constant), Symbol(graph, query, q.kind, q.constant)).node
    if asked.op == "const" and asked.domain.low == 1:
        return Everything()
    difference = asked.args[0] if asked.op == "compare" and asked.data == "==" else None
    weights = (
        dict(zip(difference.args, difference.data[0], strict=True))
        if difference and difference.op == "affine"
        else {}
    )
    if difference is None or sorted(weights.values()) != [-1, 1] or set(weights) != {key, query}:
        refuse("index-order", "an attention by another comparison of indices")
    offset = difference.data[1] * weights[query]  # key·w - query·w + c = 0  ⇔  key = query + …
    return Equal(k.node, graph.affine([(1, q.node)], offset))


def found(graph: Graph, match: Match, key_read: Node | None) -> Node:
    """Whether what a head brought is a match, given the class (or, for an equality, the value) of its key."""
    if isinstance(match, Everything):
        return graph.const(1)
    assert key_read is not None
    if isinstance(match, Equal):
        if key_read.finite and match.query.finite and key_read.size * match.query.size <= 64:
            keys, queries = np.array(key_read.domain.values), np.array(match.query.domain.values)
            return graph.point((match.query, key_read), keys[None, :] == queries[:, None])
        return compared(graph, "==", key_read, match.query)
    classes = key_read.domain.values or ()
    return graph.point((match.query, key_read), match.table[:, list(classes)])
