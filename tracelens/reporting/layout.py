"""How is the run laid out?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens.reporting import words
from tracelens.reporting.content import (
    Band,
    Block,
    Cell,
    Column,
    Grid,
    Place,
    Section,
    Table,
    Unit,
)
from tracelens.reporting.numbers import UNKNOWN, count, ranges

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.model.result import Analysis, Axis, RankPosition, Topology
    from tracelens.reporting.content import Row

_MOST_DETAILS = 64
_MOST_PLACES = 256
_FOLDED = 16  # ranks of one place where there are more; a machine has no more
_MOST_COMPACT = 32
_INSIDE = ("cp", "tp")  # what makes the ranks of one model-parallel unit
_EMPTY = (
    "The traces list no process groups and no traffic shows any, so there is no layout. "
    "Initialise `torch.distributed` before the profiler starts."
)
_NODES = {
    "option": "Nodes are as given by `--gpus-per-node`.",
    "hosts": "Nodes are told by host names.",
    "devices": "Nodes are concluded from the devices that ranks use; the notices say how.",
}
_NO_NODES = (
    "Which ranks share a node is not known: no host name in the traces, and devices do not tell. "
    "Give `--gpus-per-node`."
)
GLYPHS = {"missing": "○", "partial": "◐", "twice": "2×", "late": "▲"}
_MEANINGS = {
    "missing": "no trace",
    "partial": "read in part",
    "twice": "given twice",
    "late": "the others wait for it",
}


def layout_section(analysis: Analysis) -> Section:
    """Draw every rank on its place: stage, machine and coordinates."""
    title, nav = "How is the run laid out?", "Layout"
    topology = analysis.topology
    if topology is None or not topology.axes:
        return Section("layout", nav, title, _EMPTY, empty=_EMPTY)
    grid = rank_grid(analysis, topology)
    blocks = [
        Block(axis_table(topology)),
        Block(position_table(analysis, topology), folded=True, grid=grid),
    ]
    return Section("layout", nav, title, _lead(topology), blocks, _notes(topology))


def _lead(topology: Topology) -> str:
    ranks = len(topology.positions)
    shape = f"{words.plural(ranks, 'rank')}: {shape_words(topology)}."
    return " ".join([shape, *_spans(topology)])


def shape_words(topology: Topology) -> str:
    """Write the dimensions, the outermost first, and the machines: pp 4 × dp 8 on 4 nodes."""
    outermost = sorted(_counted(topology), key=lambda axis: -(axis.stride or 0))
    shape = " × ".join(f"{axis.name} {axis.size:,}" for axis in outermost)
    if topology.nodes is None:
        return shape
    return f"{shape} on {words.plural(len(topology.nodes), 'node')}"


def _counted(topology: Topology) -> list[Axis]:
    """Return the dimensions that multiply to the ranks.

    HSDP's parts stand for dp, and dp for the experts, who share its ranks.
    """
    names = {axis.name for axis in topology.axes}
    parts = "dp" if names & {"shard", "replicate"} else None
    experts = "ep" if names & {"dp", "shard", "replicate"} else None
    return [axis for axis in topology.axes if axis.name not in {parts, experts}]


def _spans(topology: Topology) -> list[str]:
    """Say which groups stay on one machine, and on how many the others are at most."""
    if topology.nodes is None or len(topology.nodes) < 2:
        return []
    on: dict[int, list[str]] = {}
    for axis in topology.axes:
        if axis.nodes_per_group is not None:
            on.setdefault(axis.nodes_per_group, []).append(axis.name)
    return [
        f"Groups of {_and(on[number])} "
        + ("stay inside a node." if number == 1 else f"span {number:,} nodes.")
        for number in sorted(on)
    ]


def _and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _notes(topology: Topology) -> list[str]:
    notes = [_NODES.get(topology.nodes_source or "", _NO_NODES)]
    unsure = [axis.name for axis in topology.axes if axis.confidence not in ("high", "exact")]
    if unsure:
        notes.append(f"No trace names the groups of {_and(unsure)}: their traffic tells the role.")
    unknown = sum(len(p.coordinates) < len(topology.axes) for p in topology.positions)
    if unknown:
        who = words.plural(unknown, "rank")
        notes.append(f"Not every coordinate of {who} is known: no group of theirs is in a trace.")
    return notes


def summary_line(analysis: Analysis) -> str | None:
    """Say the layout in one line, with what is odd; None where the header says it all."""
    topology = analysis.topology
    if topology is None or not topology.axes:
        return None
    if len(_counted(topology)) == 1 and len(topology.nodes or []) < 2:
        return None
    odd = [f"{mark}: {ranges(ranks, most=4)}" for mark, ranks in _marked(analysis).items() if ranks]
    spans = [said.rstrip(".") for said in _spans(topology)]
    return "; ".join([f"Layout: {shape_words(topology)}", *map(_lower, spans), *odd])


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def axis_table(topology: Topology) -> Table:
    """Return each dimension with its size, how its ranks lie, and the machines a group is on."""
    columns = (
        Column("Dimension"),
        Column("Ranks", "number"),
        Column("Groups", "number"),
        Column("Stride", "number"),
        Column("First group"),
        Column("Nodes a group", "number"),
        Column("Confidence"),
    )
    rows = [
        (
            Cell(words.dimension(axis.name)),
            Cell(count(axis.size), axis.size),
            Cell(count(axis.groups), axis.groups),
            Cell(count(axis.stride), axis.stride),
            Cell(_progression(axis.first_group)),
            Cell(count(axis.nodes_per_group), axis.nodes_per_group),
            Cell(axis.confidence),
        )
        for axis in topology.axes
    ]
    return Table("Dimensions of the layout", columns, rows)


def _progression(ranks: list[int] | None) -> str:
    if ranks is None:
        return UNKNOWN
    if len(ranks) <= 4 or ranks == list(range(ranks[0], ranks[-1] + 1)):
        return ranges(ranks)
    return f"{', '.join(map(str, ranks[:3]))} … {ranks[-1]}"


# places ------------------------------------------------------------------------------------------


def _marked(analysis: Analysis) -> dict[str, list[int]]:
    """Return the ranks that something is to be said about, by mark."""
    run = analysis.run
    return {
        "missing": run.ranks_missing,
        "partial": run.ranks_partial,
        "twice": run.ranks_duplicated,
        "late": [straggler.rank for straggler in analysis.stragglers],
    }


_Members = list["RankPosition"]


@dataclass(frozen=True, slots=True)
class _Run:
    """The layout with what is said about its ranks."""

    topology: Topology
    marks: dict[int, tuple[str, ...]]

    @classmethod
    def of(cls, analysis: Analysis, topology: Topology) -> _Run:
        marks: dict[int, tuple[str, ...]] = {}
        for mark, ranks in _marked(analysis).items():
            for rank in set(ranks):
                marks[rank] = (*marks.get(rank, ()), mark)
        return cls(topology, marks)

    def node(self, position: RankPosition) -> str:
        nodes = self.topology.nodes or []
        place = position.node
        return (
            "unknown node" if place is None or place not in range(len(nodes)) else nodes[place].name
        )

    def stages(self) -> list[tuple[str, _Members]]:
        """Return the ranks of each pipeline stage, those of an unknown one last."""
        found: dict[int | None, _Members] = {}
        for position in self.topology.positions:
            found.setdefault(position.stage, []).append(position)
        ordered = sorted(found, key=lambda stage: (stage is None, stage or 0))
        if ordered == [None]:
            return [("", found[None])]
        return [(_stage(stage), found[stage]) for stage in ordered]

    def units(self, members: _Members) -> list[tuple[str, _Members]]:
        """Split the ranks of a stage by machine; on one machine, by replica."""
        if len(self.topology.nodes or []) > 1:
            return _split(members, self.node)
        if any(axis.name in _INSIDE for axis in self.topology.axes):
            return _split(members, _replica)
        return [("", members)]


def _stage(stage: int | None) -> str:
    return "unknown stage" if stage is None else f"stage {stage}"


def _replica(position: RankPosition) -> str:
    return f"dp {position.coordinates['dp']}" if "dp" in position.coordinates else ""


def _split(members: _Members, label: Callable[[RankPosition], str]) -> list[tuple[str, _Members]]:
    found: dict[str, _Members] = {}
    for position in members:
        found.setdefault(label(position), []).append(position)
    return list(found.items())


def rank_grid(analysis: Analysis, topology: Topology) -> Grid:
    """Return all ranks by stage, and in a stage by machine or, on one machine, by replica."""
    run = _Run.of(analysis, topology)
    parts = [(label, run.units(members)) for label, members in run.stages()]
    used = {mark for found in run.marks.values() for mark in found}
    return Grid(
        caption=f"Where each of {words.plural(len(topology.positions), 'rank')} sits",
        bands=[
            Band(label, [Unit(name, _places(run, members)) for name, members in units])
            for label, units in parts
        ],
        legend=[(GLYPHS[mark], _MEANINGS[mark]) for mark in GLYPHS if mark in used],
        compact=_compact(run, parts),
    )


def _places(run: _Run, members: _Members) -> list[Place]:
    """Return a place a rank; in a large run a place for several."""
    count_of_all = len(run.topology.positions)
    if count_of_all > _MOST_PLACES:
        return [
            _folded(run, members[low : low + _FOLDED]) for low in range(0, len(members), _FOLDED)
        ]
    units = [_unit_of(position) for position in members]
    wide = any(axis.name in _INSIDE for axis in run.topology.axes)
    return [
        Place(
            label=str(position.rank),
            detail=_detail(position) if count_of_all <= _MOST_DETAILS else "",
            title=_title(run, position),
            marks=run.marks.get(position.rank, ()),
            apart=wide and place > 0 and units[place] != units[place - 1],
        )
        for place, position in enumerate(members)
    ]


def _folded(run: _Run, members: _Members) -> Place:
    shown = ranges(position.rank for position in members)
    marks = tuple(mark for mark in GLYPHS if _with(run, members, mark))
    remarks = _remarks(run, members)
    return Place(shown, "", f"ranks {shown}{'; ' if remarks else ''}{remarks}", marks)


def _unit_of(position: RankPosition) -> list[tuple[str, int]]:
    return [(name, at) for name, at in position.coordinates.items() if name not in _INSIDE]


def _detail(position: RankPosition) -> str:
    return " ".join(f"{name}{at}" for name, at in _shown(position) if name != "pp")


def _shown(position: RankPosition) -> list[tuple[str, int]]:
    """Return the coordinates that say all: HSDP's two stand for dp."""
    parts = position.coordinates.keys() & {"shard", "replicate"}
    return [(name, at) for name, at in position.coordinates.items() if not (parts and name == "dp")]


def _title(run: _Run, position: RankPosition) -> str:
    where = ", ".join(f"{name} {at}" for name, at in position.coordinates.items())
    parts = [where or "no coordinate known"]
    if run.topology.nodes is not None:
        parts.append(run.node(position))
    parts += [_MEANINGS[mark] for mark in run.marks.get(position.rank, ())]
    return f"rank {position.rank}: {'; '.join(parts)}"


def _compact(run: _Run, parts: list[tuple[str, list[tuple[str, _Members]]]]) -> Table:
    """Return a row a unit, or a row a stage where that would be too many."""
    several = len(run.topology.nodes or []) > 1
    what = "node" if several else "replica"
    whole = sum(len(units) for _, units in parts) > _MOST_COMPACT
    rows: list[Row] = []
    for label, units in [(label, _one(units, what)) for label, units in parts] if whole else parts:
        rows += [
            (
                Cell(label or "all"),
                Cell(name or "all"),
                Cell(ranges(position.rank for position in members)),
                Cell(_remarks(run, members) or "–"),
            )
            for name, members in units
        ]
    columns = (
        Column("Stage"),
        Column(words.upper_first(what)),
        Column("Ranks"),
        Column("Remarks", "prose"),
    )
    return Table("Where the ranks sit", columns, rows)


def _one(units: list[tuple[str, _Members]], what: str) -> list[tuple[str, _Members]]:
    everybody = [position for _, members in units for position in members]
    return [(words.plural(len(units), what), everybody)]


def _remarks(run: _Run, members: _Members) -> str:
    said = [(mark, _with(run, members, mark)) for mark in GLYPHS]
    return "; ".join(f"{_MEANINGS[mark]}: {ranges(found)}" for mark, found in said if found)


def _with(run: _Run, members: _Members, mark: str) -> list[int]:
    return [p.rank for p in members if mark in run.marks.get(p.rank, ())]


def position_table(analysis: Analysis, topology: Topology) -> Table:
    """Return every rank with its coordinates, stage and machine."""
    run = _Run.of(analysis, topology)
    names = [axis.name for axis in topology.axes]
    staged = any(position.stage is not None for position in topology.positions)
    columns = (
        Column("Rank", "number"),
        *(Column(name, "number") for name in names),
        *([Column("Stage", "number")] if staged else []),
        *([Column("Node")] if topology.nodes is not None else []),
        Column("Remarks", "prose"),
    )
    rows = [
        (
            Cell(str(position.rank), position.rank),
            *(_number(position.coordinates.get(name)) for name in names),
            *([_number(position.stage)] if staged else []),
            *([Cell(run.node(position))] if topology.nodes is not None else []),
            Cell(_remarks(run, [position]) or "–"),
        )
        for position in topology.positions
    ]
    return Table("Coordinates of every rank", columns, rows, sortable=True)


def _number(value: int | None) -> Cell:
    return Cell(count(value), value)
