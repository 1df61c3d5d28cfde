"""Bytes against theory: observed data-parallel traffic beside paper and framework predictions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tracelens.dtypes import item_size
from tracelens.model.result import PerStepVolume, Prediction, Volumes, VolumeTerm
from tracelens.model.trace import NONE
from tracelens.operations import CODE
from tracelens.theory.scheme import TOLERANCE

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.model.result import VolumeVerdict
    from tracelens.operations_table import OperationsTable
    from tracelens.strategy.inference import Given, Inference
    from tracelens.theory.scheme import Scheme, Term

_GRADIENT_OPS = ("all_reduce", "reduce_scatter", "reduce")


def compare(
    table: OperationsTable, kinds: pd.Series, found: Inference, given: Given, *, combined: bool
) -> Volumes:
    """Compare a run's traffic with the schemes of its inferred strategy.

    Args:
        table: All operations.
        kinds: What each operation carries.
        found: The inference.
        given: The user's options.
        combined: Whether tensor, pipeline or other model parallelism is present; predictions are
            then made by `dimension_volumes`.
    """
    rows = table.frame["complete"].to_numpy(bool) & (kinds == "parameters").to_numpy()
    psi = None if combined else found.parameters
    per_step = _per_step(table, table.frame[rows], kinds, psi)
    schemes = [] if combined or per_step.message_elements is None else found.schemes
    sizes = item_sizes(found, given)
    predictions = [_prediction(scheme, per_step, sizes) for scheme in schemes]
    best = _best(predictions)
    whole = per_step.coverage == 1  # else what was observed is a lower bound
    predictions = [_marked(p, matched=whole and p is best and _close(p)) for p in predictions]
    chosen = schemes[_index(predictions, best)] if best is not None else None
    verdict = _verdict(predictions, per_step)
    explanation = None if combined else _explanation(verdict, chosen, per_step, found)
    return Volumes(
        parameters_bytes=psi * sizes[1] if psi is not None and sizes is not None else None,
        per_step=per_step,
        predictions=predictions,
        terms=_terms(table, table.frame[rows], chosen, sizes, found),
        verdict=verdict,
        unexplained_bytes=_unexplained(per_step, predictions, verdict),
        explanation=explanation,
    )


def _per_step(
    table: OperationsTable, rows: pd.DataFrame, kinds: pd.Series, psi: int | None
) -> PerStepVolume:
    """Average over complete steps and counted ranks."""
    steps = sum(table.complete_steps.values())
    known = rows[(rows["buffer_bytes"] != NONE)]
    if not steps or not len(rows):
        return PerStepVolume(None, None, None, None)
    # Calls whose operation is unknown (RCCL's Generic kernels) may carry parameters too.
    unknown = table.frame["complete"].to_numpy(bool) & (kinds == "unknown").to_numpy()
    calls = len(rows) + int(unknown.sum())
    elements = _mean_elements(known, steps)
    other = table.frame["complete"].to_numpy(bool) & (kinds == "other").to_numpy()
    return PerStepVolume(
        message_bytes=_mean(known["message_bytes"], steps),
        wire_bytes=_mean(known["wire_bytes"], steps),
        multiple_of_parameters=elements / psi if psi and elements is not None else None,
        coverage=len(known) / calls,
        calls=calls,
        calls_with_bytes=len(known),
        message_elements=elements,
        other_message_bytes=_mean(table.frame["message_bytes"][other], steps),
    )


def _mean_elements(rows: pd.DataFrame, steps: int) -> float | None:
    """Average the elements; a call whose bytes are known but not its type leaves them unknown."""
    numbers = rows["message_elements"].to_numpy(np.int64)
    return None if (numbers == NONE).any() else float(numbers.sum()) / steps


def _mean(values: pd.Series, steps: int) -> int | None:
    numbers = values.to_numpy(np.int64)
    return None if (numbers == NONE).any() else round(float(numbers.sum()) / steps)


def item_sizes(found: Inference, given: Given) -> tuple[int, int] | None:
    """Return bytes per gradient and per parameter element, as they travel; None if unknown."""
    if given.dtype is not None:
        size = item_size(given.dtype)
        return (size, size) if size else None
    sizes: dict[str, int] = {}
    for group in found.traffic:
        sizes = {**group.item_bytes, **sizes}
    gradient = next((sizes[op] for op in _GRADIENT_OPS if op in sizes), None)
    parameter = next((size for op, size in sizes.items() if op not in _GRADIENT_OPS), None)
    parameter = parameter or gradient
    return (gradient or parameter, parameter) if parameter else None


def _prediction(
    scheme: Scheme, observed: PerStepVolume, sizes: tuple[int, int] | None
) -> Prediction:
    total = scheme.message_elements
    elements = observed.message_elements
    psi = None
    if observed.multiple_of_parameters and elements:
        psi = elements / observed.multiple_of_parameters
    return Prediction(
        name=scheme.name,
        kind=scheme.kind,
        message_multiple=total / psi if psi else None,
        message_bytes=scheme.message_bytes(*sizes) if sizes else None,
        wire_bytes=scheme.wire_bytes(*sizes) if sizes else None,
        observed_over_predicted=elements / total if elements is not None and total else None,
        formula=scheme.formula,
        source=scheme.source,
    )


def _marked(prediction: Prediction, *, matched: bool) -> Prediction:
    return replace(prediction, matches=matched)


def _close(prediction: Prediction) -> bool:
    ratio = prediction.observed_over_predicted
    return ratio is not None and abs(ratio - 1) <= TOLERANCE


def _best(predictions: list[Prediction]) -> Prediction | None:
    """Return the framework prediction nearest to the observation."""
    candidates = [p for p in predictions if p.kind == "framework" and p.observed_over_predicted]
    return min(candidates, key=lambda p: abs((p.observed_over_predicted or 0) - 1), default=None)


def _index(predictions: list[Prediction], best: Prediction) -> int:
    return next(i for i, p in enumerate(predictions) if p.name == best.name)


def _verdict(predictions: list[Prediction], observed: PerStepVolume) -> VolumeVerdict:
    if not predictions or observed.coverage is None or observed.coverage < 1:
        return "unknown"
    if any(p.kind == "paper" and _close(p) for p in predictions):
        return "as expected"
    return "explained" if any(p.matches for p in predictions) else "unexplained"


def _explanation(
    verdict: VolumeVerdict, chosen: Scheme | None, observed: PerStepVolume, found: Inference
) -> str | None:
    if observed.coverage is not None and observed.coverage < 1:
        return (
            f"Bytes are known for {observed.calls_with_bytes:,} of {observed.calls:,} calls, so no "
            "comparison with theory is complete"
        )
    if observed.calls_with_bytes and observed.message_elements is None:
        return (
            "The type of some collectives is not recorded (NCCL's payloads state bytes), so their "
            "elements are unknown: give --dtype"
        )
    if verdict == "unexplained" and chosen is not None:
        return f"No prediction matches; the nearest is {chosen.name}"
    why = chosen.why if chosen is not None else None
    if chosen is None and not found.schemes and found.evidence:
        why = found.evidence[0]
    return why[0].upper() + why[1:] if why else None


def _terms(
    table: OperationsTable,
    rows: pd.DataFrame,
    chosen: Scheme | None,
    sizes: tuple[int, int] | None,
    found: Inference,
) -> list[VolumeTerm]:
    if chosen is None or sizes is None:
        return []
    steps = sum(table.complete_steps.values())
    return [_term(table, rows, term, sizes, steps, found) for term in chosen.terms]


def _sizes_of(table: OperationsTable, rows: pd.DataFrame) -> pd.Series:
    return rows["group"].map({group.index: group.size or 0 for group in table.groups})


def _term(
    table: OperationsTable,
    rows: pd.DataFrame,
    term: Term,
    sizes: tuple[int, int],
    steps: int,
    found: Inference,
) -> VolumeTerm:
    each = sizes[0] if term.content == "gradient" else sizes[1]
    second = term.on in ("replicate", "regather")
    group = found.traffic[-1 if second else 0].group
    mine = rows[rows["op"] == CODE[term.op]]
    if len(found.traffic) > 1 and found.traffic[0].group.size != found.traffic[1].group.size:
        mine = mine[_sizes_of(table, mine) == group.size]
    predicted = round(term.message_elements * each)
    return VolumeTerm(
        op=term.op,
        group=f"g{group.index}",
        predicted_bytes=predicted,
        observed_bytes=_mean(mine["message_bytes"], steps) if len(mine) else 0,
        formula=f"{'2 x ' if term.op == 'all_reduce' else ''}({term.formula}) x {each} B = "
        f"{predicted:,} B",
        explanation=term.why,
    )


def _unexplained(
    observed: PerStepVolume, predictions: list[Prediction], verdict: VolumeVerdict
) -> int | None:
    if verdict == "unknown" or observed.message_bytes is None:
        return None
    if verdict in ("as expected", "explained"):
        return 0
    best = _best(predictions)
    if best is None or best.message_bytes is None:
        return None
    return observed.message_bytes - best.message_bytes
