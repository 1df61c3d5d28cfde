"""The parallel layout: who is where, and which process groups there are.

Ranks are numbered as Megatron numbers them (megatron/core/parallel_state.py, order "tp-cp-dp-pp"):
neighbours in tensor parallelism are neighbours in rank, pipeline stages are farthest apart.
Expert-parallel groups lie inside the data-parallel dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tracelens.errors import OptionError
from tracelens.simulate.recording import Group

if TYPE_CHECKING:
    from collections.abc import Callable


class Place(NamedTuple):
    """Where a rank stands in the layout."""

    tp: int
    cp: int
    dp: int
    pp: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of the parallel dimensions; `ep` divides `dp`."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    cp: int = 1

    def __post_init__(self) -> None:
        if min(self.dp, self.tp, self.pp, self.ep, self.cp) < 1:
            raise OptionError("every dimension of a layout is at least 1")
        if self.dp % self.ep:
            raise OptionError(f"ep={self.ep} does not divide dp={self.dp}")

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def only_data_parallel(self) -> bool:
        """Whether there is no other dimension than dp."""
        return self.world == self.dp and self.ep == 1

    def place(self, rank: int) -> Place:
        """Return where a rank stands."""
        rank, tp = divmod(rank, self.tp)
        rank, cp = divmod(rank, self.cp)
        pp, dp = divmod(rank, self.dp)
        return Place(tp, cp, dp, pp)

    def rank(self, place: Place) -> int:
        """Return who stands at a place."""
        return ((place.pp * self.dp + place.dp) * self.cp + place.cp) * self.tp + place.tp

    def __str__(self) -> str:
        """Return "dp=2,tp=2", without the dimensions that are 1."""
        sizes = {"dp": self.dp, "tp": self.tp, "pp": self.pp, "ep": self.ep, "cp": self.cp}
        return ",".join(f"{k}={v}" for k, v in sizes.items() if v > 1) or "dp=1"


def parse(text: str) -> Layout:
    """Read "dp=2,tp=2,pp=2".

    Raises:
        OptionError: If it is no layout.
    """
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = part.strip().lower().partition("=")
        if name not in ("dp", "tp", "pp", "ep", "cp") or not value.isdecimal():
            raise OptionError(
                f"{part.strip()!r} is no part of a layout",
                hint="write dp=2,tp=2,pp=2 (also ep, cp)",
            )
        if name in sizes:
            raise OptionError(f"{name} stands twice in the layout {text!r}")
        sizes[name] = int(value)
    return Layout(**sizes)


# Descriptions as Megatron's create_group(..., group_desc=...) spells them, and what the members of
# a group have in common. A group of one rank would launch nothing and is not made.
_GROUPS: tuple[tuple[str, str, Callable[[Place], tuple[int, ...]]], ...] = (
    ("dp", "DATA_PARALLEL_GROUP", lambda at: (at.tp, at.cp, at.pp)),
    ("dp_cp", "DATA_PARALLEL_GROUP_WITH_CP", lambda at: (at.tp, at.pp)),
    ("cp", "CONTEXT_PARALLEL_GROUP", lambda at: (at.tp, at.dp, at.pp)),
    ("model", "MODEL_PARALLEL_GROUP", lambda at: (at.cp, at.dp)),
    ("tp", "TENSOR_MODEL_PARALLEL_GROUP", lambda at: (at.cp, at.dp, at.pp)),
    ("pp", "PIPELINE_MODEL_PARALLEL_GROUP", lambda at: (at.tp, at.cp, at.dp)),
)


class ProcessGroups:
    """All process groups of a layout, and each rank's membership.

    Attributes:
        listed: The groups in order of creation, the world first.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.listed: list[Group] = []
        self._of: dict[tuple[str, int], int] = {}
        self._append("world", "default_pg", list(range(layout.world)), always=True)
        for kind, description, common in _GROUPS:
            if kind != "dp_cp" or layout.cp > 1:
                self._add(kind, description, common)
        if layout.pp > 1:
            self._add_ends()
        if layout.ep > 1:
            self._add_experts()

    def of(self, kind: str, rank: int) -> int | None:
        """Return the index of a rank's group of a kind, None if it would have one member.

        Args:
            kind: world, dp, dp_cp (gradients are reduced over both), cp, model, tp, pp, embedding,
                ep or edp.
            rank: The rank.
        """
        if kind == "dp_cp" and self.layout.cp == 1:
            kind = "dp"
        return self._of.get((kind, rank))

    def ranks(self, kind: str, rank: int) -> tuple[int, ...]:
        """Return the members of a rank's group of a kind, itself included."""
        index = self.of(kind, rank)
        return (rank,) if index is None else self.listed[index].ranks

    def _add(self, kind: str, description: str, common: Callable[[Place], tuple[int, ...]]) -> None:
        members: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.layout.world):
            members.setdefault(common(self.layout.place(rank)), []).append(rank)
        for ranks in members.values():
            self._append(kind, description, ranks)

    def _append(
        self, kind: str, description: str, ranks: list[int], *, always: bool = False
    ) -> None:
        if len(ranks) > 1:
            self._of.update({(kind, rank): len(self.listed) for rank in ranks})
        if len(ranks) > 1 or always:
            self.listed.append(Group(str(len(self.listed)), description, tuple(ranks)))

    def _add_ends(self) -> None:
        """Link first and last stage: a tied embedding's gradients are summed over both."""
        for rank in range(self.layout.world):
            line = self.ranks("pp", rank)
            if line[0] == rank:
                self._append("embedding", "EMBEDDING_GROUP", [line[0], line[-1]])

    def _add_experts(self) -> None:
        ep = self.layout.ep
        self._add(
            "ep", "EXPERT_MODEL_PARALLEL_GROUP", lambda at: (at.tp, at.cp, at.pp, at.dp // ep)
        )
        self._add("edp", "EXPERT_DATA_PARALLEL_GROUP", lambda at: (at.tp, at.pp, at.dp % ep))
