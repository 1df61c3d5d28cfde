"""Find out how large the elements of calls are whose bytes are recorded, but not their type.

NCCL's payloads state bytes; a kernel's name tells the type of a reduction, never of a gather. Bytes
alone say nothing about Ψ: 4Ψ bytes are a gather of 32-bit parameters, or two of 16-bit ones. What a
sharded strategy gathers is what it reduces, so one size of element makes both agree: unit by unit
(FSDP, Megatron's distributed optimizer), or in all where the gathers follow the reductions (ZeRO-1
and 2). Where no size or more than one does, elements stay unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens import operations
from tracelens.dtypes import item_size
from tracelens.model.trace import NONE
from tracelens.operations import CODE
from tracelens.theory.collectives import message_factor

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from tracelens.operations_table import OperationsTable

_GATHERS = (operations.ALL_GATHER, operations.BROADCAST)
_REDUCTIONS = (operations.ALL_REDUCE, operations.REDUCE_SCATTER, operations.REDUCE)
_SIZES = (1, 2, 4, 8)
_MOST_BYTES = 0.9  # of what is gathered: frozen parameters and buffers are never reduced
_PADDING = 0.02  # docs/theory.md, "Padding"


def resolve(table: OperationsTable, dtype: str | None) -> int:
    """Fill in the elements of gathers without a type; return how many were concluded.

    Args:
        table: All operations.
        dtype: The type of parameters as the user gives it; it wins.
    """
    frame = table.frame
    untyped = _untyped(frame)
    if not untyped.any():
        return 0
    given = item_size(dtype)
    if given is not None:
        _fill(frame, untyped, given)
        return 0
    concluded = 0
    for group in np.unique(frame["group"].to_numpy(np.int64)[untyped]):
        mine = untyped & (frame["group"] == group).to_numpy(bool)
        size = _size_of(frame, mine, int(group))
        if size is not None:
            # What is as small as a counter tells no type, and may have another one.
            shown = mine & ~frame["small"].to_numpy(bool)
            _fill(frame, shown, size)
            concluded += int(shown.sum())
    return concluded


def _untyped(frame: pd.DataFrame) -> NDArray[np.bool_]:
    gathers = frame["op"].isin([CODE[name] for name in _GATHERS]).to_numpy(bool)
    unknown = (frame["elements"] == NONE).to_numpy(bool)
    sized = (frame["buffer_bytes"] != NONE).to_numpy(bool)
    found: NDArray[np.bool_] = gathers & unknown & sized & (frame["dtype"] == "").to_numpy(bool)
    return found


def _fill(frame: pd.DataFrame, rows: NDArray[np.bool_], size: int) -> None:
    sizes = frame["buffer_bytes"].to_numpy(np.int64)
    whole = rows & (sizes % size == 0)
    factors = np.array([message_factor(name) for name in operations.OPERATIONS])
    factor = factors[frame["op"].to_numpy(np.int64)]
    for name, each in (("elements", 1), ("message_elements", factor)):
        column = frame[name].to_numpy(np.int64, copy=True)
        column[whole] = (sizes // size * each)[whole]
        frame[name] = column
    column = frame["item_bytes"].to_numpy(np.int64, copy=True)
    column[whole] = size
    frame["item_bytes"] = column


def _size_of(frame: pd.DataFrame, mine: NDArray[np.bool_], group: int) -> int | None:
    """Return the one size of element with which a group gathers what it reduces."""
    complete = frame["complete"].to_numpy(bool)
    reduced = frame[
        complete
        & (frame["group"] == group).to_numpy(bool)
        & frame["op"].isin([CODE[name] for name in _REDUCTIONS]).to_numpy(bool)
        & ~frame["small"].to_numpy(bool)
    ]
    gathered = frame[mine & complete & ~frame["small"].to_numpy(bool)]
    if not len(gathered) or not len(reduced) or (reduced["elements"] == NONE).any():
        return None
    by_unit = [size for size in _SIZES if _same_units(gathered, reduced, size)]
    if by_unit:
        return by_unit[0] if len(by_unit) == 1 else None
    in_all = [size for size in _SIZES if _same_total(gathered, reduced, size)]
    return in_all[0] if len(in_all) == 1 and _follows(gathered, reduced) else None


def _same_units(gathered: pd.DataFrame, reduced: pd.DataFrame, size: int) -> bool:
    """Tell whether the calls gather buffers that are reduced as well, nearly all of them."""
    units = reduced["elements"].to_numpy(np.int64) * size
    sizes = gathered["buffer_bytes"].to_numpy(np.int64)
    return bool(sizes[np.isin(sizes, units)].sum() >= _MOST_BYTES * sizes.sum())


def _same_total(gathered: pd.DataFrame, reduced: pd.DataFrame, size: int) -> bool:
    total = int(reduced["elements"].sum()) * size
    return abs(int(gathered["buffer_bytes"].sum()) / total - 1) <= _PADDING if total else False


def _follows(gathered: pd.DataFrame, reduced: pd.DataFrame) -> bool:
    """Tell whether each step of a rank gathers after it has reduced."""
    keys = ["rank", "cycle", "step"]
    first = gathered.groupby(keys)["launch"].min()
    last = reduced.groupby(keys)["launch"].max()
    return bool(len(first) == len(last) and (first > last).all())
