"""A scheme: the collectives a way of training emits per step, as terms of a sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tracelens.theory.collectives import message_factor, wire_factor

Content = Literal["gradient", "parameter", "activation"]
TOLERANCE = 0.002
"""A prediction matches if observed elements are within this share of it (padding is smaller)."""


@dataclass(frozen=True, slots=True)
class Term:
    """One collective's traffic of a step.

    Attributes:
        op: The operation.
        elements: Elements of the full buffers, summed over the step's calls.
        content: Whether gradients, parameters or activations travel (they may differ in dtype;
            activations have the parameters').
        size: Ranks of the group.
        formula: How `elements` came about, in symbols and numbers.
        on: Role of the group where a scheme uses two: shard or replicate.
        why: Where the term differs from the paper, one clause.
        item: Bytes of an element, if the method fixes them.
    """

    op: str
    elements: float
    content: Content
    size: int
    formula: str
    on: str = "data-parallel"
    why: str | None = None
    item: int | None = None

    @property
    def message_elements(self) -> float:
        """Elements in the message convention: an all-reduce counts twice."""
        return message_factor(self.op) * self.elements

    @property
    def wire_elements(self) -> float:
        """Elements each rank of a ring sends."""
        return (wire_factor(self.op, self.size) or 0.0) * self.elements


@dataclass(frozen=True, slots=True)
class Scheme:
    """A named sum of terms, from a paper or from what a framework really emits."""

    name: str
    kind: Literal["paper", "framework"]
    terms: tuple[Term, ...]
    source: str
    why: str | None = None

    @property
    def message_elements(self) -> float:
        """Elements per step and rank in the message convention."""
        return sum(term.message_elements for term in self.terms)

    def message_bytes(self, gradient: int, parameter: int) -> int:
        """Bytes per step and rank in the message convention, given the two item sizes."""
        return round(sum(t.message_elements * _item(t, gradient, parameter) for t in self.terms))

    def wire_bytes(self, gradient: int, parameter: int) -> int:
        """Bytes each rank of a ring sends per step, given the two item sizes."""
        return round(sum(t.wire_elements * _item(t, gradient, parameter) for t in self.terms))

    @property
    def formula(self) -> str:
        """The terms' formulas by operation; an all-reduce's message counts twice."""
        return "; ".join(
            f"{term.op.replace('_', '-')} {_twice(term)}({term.formula})" for term in self.terms
        )


def _twice(term: Term) -> str:
    return "2 x " if message_factor(term.op) == 2 else ""


def _item(term: Term, gradient: int, parameter: int) -> int:
    if term.item is not None:
        return term.item
    return gradient if term.content == "gradient" else parameter
