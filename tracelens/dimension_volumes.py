"""Bytes against theory, dimension by dimension, for runs that combine several."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracelens import dimensions, parallelism, shared_groups
from tracelens.model.result import DimensionVolume, StepBytes
from tracelens.model.trace import NONE
from tracelens.predicted_traffic import (
    context_parallel,
    expert_parallel,
    pipeline_parallel,
    tensor_parallel,
    tied_embedding,
)
from tracelens.rank_parameters import More, mean_parameters
from tracelens.run import ranges
from tracelens.step_facts import PART_OF_UNIT, MissingFactError, StepFacts
from tracelens.theory.scheme import TOLERANCE, Scheme
from tracelens.volumes import item_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pandas as pd
    from numpy.typing import NDArray

    from tracelens.collectives import Roles
    from tracelens.model.result import Pipeline, Volumes, VolumeVerdict
    from tracelens.operations_table import OperationsTable
    from tracelens.predicted_traffic import RankTraffic
    from tracelens.run import Run
    from tracelens.strategy.inference import Given, Inference
    from tracelens.theory.scheme import Term
    from tracelens.traffic import Traffic

    Predict = Callable[[StepFacts, int], RankTraffic]

_NAMES = ("dp", "tp", "pp", "ep", "cp")


class Seen(NamedTuple):
    """The run as the passes before found it."""

    run: Run
    table: OperationsTable
    roles: Roles
    kinds: pd.Series
    traffic: Traffic
    inference: Inference
    dims: Mapping[str, int]
    pipeline: Pipeline | None


def added(volumes: Volumes, seen: Seen, given: Given) -> Volumes:
    """Add a comparison by dimension to a run's volumes, and take its verdict from there.

    Args:
        volumes: What was observed of data parallelism.
        seen: The run.
        given: The user's options.
    """
    rows = compare(seen, given)
    return replace(
        volumes,
        dimensions=rows,
        verdict=overall(rows),
        unexplained_bytes=unexplained(rows),
        explanation=explanation(rows),
    )


def compare(seen: Seen, given: Given) -> list[DimensionVolume]:
    """Hold each dimension's traffic against what it should be. Args as `added`."""
    facts = StepFacts(
        seen.run,
        seen.table,
        _names_of_rows(seen),
        seen.dims,
        seen.pipeline,
        seen.traffic,
        seen.inference,
        given,
    )
    rows = [_data_parallel(facts, seen), *(_row(facts, n, *_VARIANTS[n]) for n in _NAMES[1:])]
    other = _unassigned(facts)
    rows = [*rows, _embedding(facts), other]
    if other.calls:
        rows = [undecided(row) for row in rows]
    return [row for row in rows if seen.dims.get(row.dimension, 1) > 1 or row.calls]


def undecided(row: DimensionVolume) -> DimensionVolume:
    """Take back that a dimension moves too little: what is missing may be on other groups."""
    if row.verdict != "unexplained" or (row.observed_over_predicted or 0) > 1:
        return row
    why = f"calls on groups of unknown purpose may belong here; {row.explanation}"
    return replace(row, verdict="unknown", explanation=why)


def overall(rows: Sequence[DimensionVolume]) -> VolumeVerdict:
    """Return the verdict on a run: one dimension that deviates is enough."""
    found = {row.verdict for row in rows}
    for verdict in ("unexplained", "unknown", "explained", "as expected"):
        if verdict in found:
            return verdict
    return "unknown"


def explanation(rows: Sequence[DimensionVolume]) -> str | None:
    """Say in a sentence which dimensions move what they should."""
    said = {
        "unexplained": "against theory",
        "as expected": "as theory says",
        "explained": "explained",
        "unknown": "undecided",
    }
    parts = []
    for verdict, words in said.items():
        names = [row.dimension for row in rows if row.verdict == verdict]
        if names:
            parts.append(f"{', '.join(names)} {words}")
    return "; ".join(parts) or None


def unexplained(rows: Sequence[DimensionVolume]) -> int | None:
    """Return the message bytes by which dimensions deviate, taken together."""
    if overall(rows) == "unknown":
        return None
    return sum(
        (row.observed.message or 0) - (row.predicted.message or 0)
        for row in rows
        if row.verdict == "unexplained"
    )


def _names_of_rows(seen: Seen) -> NDArray[np.object_]:
    """Name the dimension of each operation; the embedding's group is one of its own here."""
    codes = dimensions.of_rows(seen.table, seen.roles)
    names = np.array(dimensions.DIMENSIONS, object)[codes]
    tied = [index for index, role in seen.roles.role.items() if role == "embedding"]
    frame = seen.table.frame
    on_ends = frame["group"].isin(tied).to_numpy() | shared_groups.gradients(frame, seen.roles.role)
    found: NDArray[np.object_] = np.where(on_ends & (names == "pp"), "embedding", names)
    return found


# what was observed -------------------------------------------------------------------------------


def _observed(facts: StepFacts, calls: NDArray[np.bool_]) -> tuple[StepBytes, float]:
    """Return bytes and calls per step and rank."""
    frame, steps = facts.table.frame[calls], sum(facts.table.complete_steps.values())
    if not steps:
        return StepBytes(None, None), 0.0
    sums = [frame[name].to_numpy(np.int64) for name in ("message_bytes", "wire_bytes")]
    message, wire = (None if (n == NONE).any() else round(float(n.sum()) / steps) for n in sums)
    return StepBytes(message, wire), len(frame) / steps


def _check(facts: StepFacts, calls: NDArray[np.bool_]) -> None:
    """Refuse to compare where no call of a dimension is known, or not every size."""
    missing = facts.table.frame["message_bytes"].to_numpy(np.int64)[calls] == NONE
    known = int((~missing).sum())
    if not len(missing):
        raise MissingFactError("calls on groups that are for this dimension")
    if missing.any():
        raise MissingFactError(f"all sizes: they are known for {known:,} of {len(missing):,} calls")


# what was predicted ------------------------------------------------------------------------------


class _Expected(NamedTuple):
    """A prediction per step and mean rank."""

    bytes: StepBytes
    formula: str
    explanation: str
    verdict: VolumeVerdict = "as expected"
    more: More = More()


def _mean(facts: StepFacts, predict: Predict) -> _Expected:
    """Average the predictions of the ranks that count."""
    steps = sum(facts.table.complete_steps.values())
    message = wire = 0.0
    stages: dict[str, set[int]] = defaultdict(set)
    sources: dict[str, None] = {}
    for rank, weight in facts.table.complete_steps.items():
        traffic = predict(facts, rank)
        scheme = Scheme("", "framework", traffic.terms, "")
        message += weight * scheme.message_bytes(traffic.item, traffic.item)
        wire += weight * scheme.wire_bytes(traffic.item, traffic.item)
        if traffic.terms:
            stages[_formula(traffic)].add(facts.stage(rank))
        sources |= dict.fromkeys(traffic.sources)
    if not steps:
        raise MissingFactError("a complete step")
    return _Expected(
        StepBytes(round(message / steps), round(wire / steps)),
        _by_stage(stages),
        ", ".join(sources),
    )


def _formula(traffic: RankTraffic) -> str:
    """Write the terms with the bytes of an element; the loss has its own."""
    of_item: dict[int, list[Term]] = defaultdict(list)
    for term in traffic.terms:
        of_item[term.item or traffic.item].append(term)
    schemes = {item: Scheme("", "framework", tuple(terms), "") for item, terms in of_item.items()}
    return " + ".join(f"({scheme.formula}) x {item} B" for item, scheme in schemes.items())


def _by_stage(stages: Mapping[str, set[int]]) -> str:
    if len(stages) == 1:
        return next(iter(stages))
    parts = sorted((sorted(places), formula) for formula, places in stages.items())
    named = (("stage" if len(at) == 1 else "stages", ranges(at), text) for at, text in parts)
    return "; ".join(f"{word} {at}: {text}" for word, at, text in named)


_VARIANTS: dict[str, tuple[Predict, ...]] = {
    "tp": tuple(
        partial(tensor_parallel, vocabulary=vocabulary, experts=experts, again=again)
        for vocabulary, experts, again in itertools.product(
            (True, False), (True, False), (False, True)
        )
    ),
    "pp": (pipeline_parallel,),
    "ep": (partial(expert_parallel, again=False), partial(expert_parallel, again=True)),
    "cp": (context_parallel,),
}


def _row(facts: StepFacts, name: str, *variants: Predict) -> DimensionVolume:
    """Compare a dimension with the ways in which it can be done, the most usual one first."""
    calls = facts.calls(name)
    if name == "tp":
        calls &= ~_of_the_loss(facts)
    observed, count = _observed(facts, calls)
    try:
        _check(facts, calls)
        return _held(name, observed, count, [_mean(facts, predict) for predict in variants])
    except MissingFactError as missing:
        return _open(name, observed, count, missing)


def _of_the_loss(facts: StepFacts) -> NDArray[np.bool_]:
    """Tell which calls carry a number a token, where nothing says how many tokens there are."""
    none = np.zeros(len(facts.table.frame), bool)
    if facts.tokens is not None:
        return none
    try:
        unit = facts.unit("tp")
    except MissingFactError:
        return none
    size = facts.table.frame["buffer_bytes"].to_numpy(np.int64)
    return np.asarray((size != NONE) & (size * PART_OF_UNIT < unit.elements * unit.item), bool)


def _held(
    name: str, observed: StepBytes, count: float, expected: Sequence[_Expected]
) -> DimensionVolume:
    """Compare with the first prediction that fits, else with the first one."""
    message = observed.message or 0
    fitting = (one for one in expected if _verdict(one, message) != "unexplained")
    near = next(fitting, expected[0])
    predicted = near.bytes.message
    ratio = message / predicted if predicted else None
    return DimensionVolume(
        dimension=name,
        calls=count,
        observed=observed,
        predicted=near.bytes,
        observed_over_predicted=ratio,
        verdict=_verdict(near, message),
        formula=near.formula,
        explanation=near.explanation,
    )


def _verdict(near: _Expected, message: int) -> VolumeVerdict:
    predicted = near.bytes.message or 0
    most = 1 + TOLERANCE
    if not (1 - TOLERANCE) * predicted <= message <= (most + near.more.open) * predicted:
        return "unexplained"
    return near.verdict if message <= (most + near.more.right) * predicted else "unknown"


def _open(
    name: str, observed: StepBytes, count: float, missing: MissingFactError
) -> DimensionVolume:
    return DimensionVolume(
        name, count, observed, StepBytes(None, None), None, "unknown", None, f"needs {missing}"
    )


# data parallelism --------------------------------------------------------------------------------


def _data_parallel(facts: StepFacts, seen: Seen) -> DimensionVolume:
    calls = facts.calls("dp") & (seen.kinds == "parameters").to_numpy()
    observed, count = _observed(facts, calls)
    try:
        _check(facts, calls)
        expected = _schemes(facts, seen)
        expected.sort(key=lambda one: abs((one.bytes.message or 0) - (observed.message or 0)))
        return _held("dp", observed, count, expected)
    except MissingFactError as missing:
        return _open("dp", observed, count, missing)


def _schemes(facts: StepFacts, seen: Seen) -> list[_Expected]:
    """Predict what the strategy sends of a mean rank's parameters."""
    held = mean_parameters(facts)
    given = replace(facts.given, parameters=held.number)
    found = parallelism.infer(seen.traffic, given)
    schemes = [scheme for scheme in found.schemes if scheme.kind == "framework"]
    # Gradients and parameters may differ in type: what is recorded says more than --dtype.
    sizes = item_sizes(found, replace(given, dtype=None)) or item_sizes(found, given)
    if not schemes:
        raise MissingFactError(f"a known strategy: {found.evidence[0]}")
    if sizes is None:
        raise MissingFactError("the type that travels: give --dtype")
    if facts.dims["pp"] > 1 and (found.framework or "").startswith("fsdp"):
        raise MissingFactError("the root unit of every stage")
    paper = min(s.message_bytes(*sizes) for s in found.schemes if s.kind == "paper")
    expected = []
    for scheme in schemes:
        message = scheme.message_bytes(*sizes)
        as_paper = abs(message - paper) <= TOLERANCE * paper
        # Experts are reduced over a group of their own, so one size does not hold for the wire.
        wire = None if facts.dims["ep"] > 1 else scheme.wire_bytes(*sizes)
        gradient, parameter = sizes
        formula = f"{scheme.formula}; gradients x {gradient} B, parameters x {parameter} B"
        said = ", ".join(part for part in (scheme.name, held.source, scheme.why) if part)
        verdict: VolumeVerdict = "as expected" if as_paper else "explained"
        expected.append(_Expected(StepBytes(message, wire), formula, said, verdict, held.more))
    return expected


# the rest ----------------------------------------------------------------------------------------


def _embedding(facts: StepFacts) -> DimensionVolume:
    """Compare what first and last stage reduce of an embedding both hold."""
    calls = facts.calls("embedding")
    observed, count = _observed(facts, calls)
    try:
        item = facts.recorded_item("embedding")
        predict = partial(tied_embedding, item=item)
        return _held("embedding", observed, count, [_mean(facts, predict)])
    except MissingFactError as missing:
        return _open("embedding", observed, count, missing)


def _unassigned(facts: StepFacts) -> DimensionVolume:
    """List what travels on groups that are for no known dimension."""
    observed, count = _observed(facts, facts.calls("other"))
    return _open("other", observed, count, MissingFactError("what these groups are for"))
