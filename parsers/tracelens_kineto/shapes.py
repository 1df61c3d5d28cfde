"""Element counts of collectives from the shapes an operator recorded (`record_shapes=True`).

gloo has no `record_param_comms`, and NCCL's has no named arguments before torch 2.2: the shapes are
all there is. Argument order: torch/csrc/distributed/c10d/Ops.cpp.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tracelens.model.trace import NONE


class Sizes(NamedTuple):
    """Elements in and out of one operation, its tensors' number and dimensions, and the dtype."""

    in_elems: int = NONE
    out_elems: int = NONE
    tensors: int = NONE
    dimensions: int = NONE
    dtype: str = ""


# operator -> (index of the input argument, index of the output argument)
_ARGUMENTS: dict[str, tuple[int | None, int | None]] = {
    "allreduce_": (0, 0),
    "allreduce_coalesced_": (0, 0),
    "broadcast_": (0, 0),
    "reduce_": (0, 0),
    "_allgather_base_": (1, 0),
    "allgather_": (1, None),
    "allgather_coalesced_": (1, None),
    "allgather_into_tensor_coalesced_": (1, 0),
    "_reduce_scatter_base_": (1, 0),
    "reduce_scatter_": (None, 0),
    "reduce_scatter_tensor_coalesced_": (1, 0),
    "alltoall_base_": (1, 0),
    "alltoall_": (1, 0),
    "gather_": (1, None),
    "scatter_": (None, 0),
    "send": (0, 0),
    "recv_": (0, 0),
    "recv_any_source_": (0, 0),
}


def operator_sizes(name: str, dims: list[object], types: list[object]) -> Sizes:
    """Read the sizes of a `c10d::` operator; what the shapes do not say stays `NONE`."""
    indices = _ARGUMENTS.get(name.rpartition("::")[2])
    if indices is None:
        return Sizes()
    source, target = indices
    in_elems, out_elems = _argument(dims, source), _argument(dims, target)
    known = dims[source if source is not None else target or 0] if dims else []
    kind = types[source if source is not None else target or 0] if types else ""
    dtype = kind if isinstance(kind, str) and kind not in ("TensorList", "GenericList") else ""
    return Sizes(in_elems, out_elems, _count(known), _dimensions(known), dtype)


def annotation_sizes(dims: list[object], types: list[object]) -> Sizes:
    """Read the tensor an `nccl:`/`gloo:` range or an old record names as its first argument."""
    dtype = types[0] if types and isinstance(types[0], str) else ""
    if dtype in ("TensorList", "GenericList"):
        dtype = ""
    elems = _argument(dims, 0)
    if dims and dims[0] == [] and dtype:
        elems = 1  # a scalar: no dimensions, but a dtype
    first = dims[0] if dims else []
    return Sizes(elems, elems, _count(first), _dimensions(first), dtype)


def _argument(dims: list[object], index: int | None) -> int:
    if index is None or index >= len(dims):
        return NONE
    return _elements(dims[index])


def _elements(dims: object) -> int:
    """Count elements of a tensor `[2, 3]` or of a list of tensors `[[2, 3], [4]]`."""
    if not isinstance(dims, list) or not dims:
        return NONE  # a list whose shapes were not recorded, or a scalar tensor: not told apart
    if all(isinstance(size, int) for size in dims):
        return math.prod(dims)
    parts = [1 if inner == [] else _elements(inner) for inner in dims]
    return NONE if NONE in parts else sum(parts)


def _count(dims: object) -> int:
    if isinstance(dims, list) and dims and isinstance(dims[0], list):
        return len(dims)
    return 1 if isinstance(dims, list) and dims else NONE


def _dimensions(dims: object) -> int:
    """Count the dimensions of a tensor, or of the first of a list."""
    if not isinstance(dims, list) or not dims:
        return NONE
    return _dimensions(dims[0]) if isinstance(dims[0], list) else len(dims)


def optimizer_elements(dims: list[object]) -> int:
    """Count the elements of the first tensor list of a fused optimizer operator."""
    return _argument(dims, 0)
