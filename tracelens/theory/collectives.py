"""What one collective moves, in both conventions.

message: the ZeRO paper's (an all-reduce counts twice its buffer, everything else once).
wire: what each rank of a ring sends, nccl-tests' bus bytes (nccl-tests doc/PERFORMANCE.md).
The buffer S is the full one: all-reduce the tensor, all-gather the output, reduce-scatter and
all-to-all the input, send the tensor.
"""

from __future__ import annotations


def message_factor(operation: str) -> int:
    """Return how often the message convention counts the buffer; a receive is its sender's."""
    if operation == "all_reduce":
        return 2
    return 0 if operation in ("recv", "barrier") else 1


def wire_factor(operation: str, size: int | None) -> float | None:
    """Return the share of the buffer each rank sends in a group of `size` ranks.

    None if the size is needed and unknown. Broadcast and reduce pipeline the whole buffer along
    the ring, so their factor is 1 (nccl-tests).
    """
    if operation in ("send", "broadcast", "reduce"):
        return 1.0
    if operation in ("recv", "barrier"):
        return 0.0
    if size is None:
        return None
    share = (size - 1) / size
    return 2 * share if operation == "all_reduce" else share


def full_elements(
    operation: str, in_elems: int | None, out_elems: int | None, size: int | None
) -> int | None:
    """Return the elements of the full buffer S from what was recorded; None if unknown.

    Where only one side is known (list forms of gloo), the other follows from the group's size.
    """
    if operation in ("all_gather", "gather"):
        return out_elems if out_elems is not None else _times(in_elems, size)
    if operation in ("reduce_scatter", "scatter"):
        return in_elems if in_elems is not None else _times(out_elems, size)
    return in_elems if in_elems is not None else out_elems


def _times(elems: int | None, size: int | None) -> int | None:
    return None if elems is None or size is None else elems * size
