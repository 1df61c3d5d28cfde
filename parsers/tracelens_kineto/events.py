"""Typed shapes of trace events: msgspec builds only the fields named here, the rest is skipped.

Values real files put where others put a number (stream "7", ids as strings) are accepted: the
argument decoders are lax. `args` stays raw until a category is known to need it, because operators
(most of a file) need none of theirs.
"""

from __future__ import annotations

import math

import msgspec

NAN = math.nan
Number = int | float | str | None
# Every phase of Chromium's "Trace Event Format"; an element of another one is no event.
PHASES = frozenset("BEXiICbnestfPNODMVvRc(),T")


def is_phase(value: object) -> bool:
    """Tell whether a value is the phase of an event."""
    return isinstance(value, str) and value in PHASES


class Event(msgspec.Struct, gc=False):
    """One event; times in microseconds as doubles (exact below 2^43 us, see times.py)."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float = NAN
    dur: float = NAN
    args: msgspec.Raw = msgspec.Raw()


class ExactEvent(msgspec.Struct, gc=False):
    """The same with times kept as text, for absolute times that a double cannot hold."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: msgspec.Raw = msgspec.Raw()
    dur: msgspec.Raw = msgspec.Raw()
    args: msgspec.Raw = msgspec.Raw()


class LinkEvent(msgspec.Struct, gc=False):
    """An event with the id of a flow arrow; times as text."""

    ph: str = ""
    cat: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    id: int | str | None = None
    ts: msgspec.Raw = msgspec.Raw()
    dur: msgspec.Raw = msgspec.Raw()
    args: msgspec.Raw = msgspec.Raw()


class WholeEvent(Event, gc=False):
    """Every field any of these has: what decodes to one decodes to all of them."""

    id: int | str | None = None


class CallArgs(msgspec.Struct, gc=False):
    """Arguments of a runtime or driver call."""

    correlation: int | str | None = None
    external: int | str | None = msgspec.field(name="External id", default=None)
    old_external: int | str | None = msgspec.field(name="external id", default=None)


class CommArgs(msgspec.Struct, gc=False):
    """Collective arguments, on kernels and on record_param_comms (torch 2.2 and later)."""

    collective: str | None = msgspec.field(name="Collective name", default=None)
    in_elems: Number = msgspec.field(name="In msg nelems", default=None)
    out_elems: Number = msgspec.field(name="Out msg nelems", default=None)
    # torch 2.2 called them sizes, though they are element counts too.
    old_in_elems: Number = msgspec.field(name="In msg size", default=None)
    old_out_elems: Number = msgspec.field(name="Out msg size", default=None)
    group_size: Number = msgspec.field(name="Group size", default=None)
    dtype: str | None = None
    in_splits: str | list[int] | None = msgspec.field(name="In split size", default=None)
    out_splits: str | list[int] | None = msgspec.field(name="Out split size", default=None)
    group_name: str | int | None = msgspec.field(name="Process Group Name", default=None)
    group_description: str | None = msgspec.field(name="Process Group Description", default=None)
    group_ranks: str | list[int] | None = msgspec.field(name="Process Group Ranks", default=None)
    rank: Number = msgspec.field(name="Rank", default=None)
    source_rank: Number = msgspec.field(name="Src Rank", default=None)
    target_rank: Number = msgspec.field(name="Dst Rank", default=None)
    seq: Number = msgspec.field(name="Seq", default=None)
    comms_id: int | str | None = msgspec.field(name="Comms Id", default=None)


class KernelArgs(CommArgs, gc=False):
    """Arguments of a device event."""

    device: int | str | None = None
    stream: int | str | None = None
    correlation: int | str | None = None
    external: int | str | None = msgspec.field(name="External id", default=None)
    old_external: int | str | None = msgspec.field(name="external id", default=None)
    bytes: Number = None
    graph: Number = msgspec.field(name="graph id", default=None)
    grid: msgspec.Raw = msgspec.Raw()


class OperatorArgs(CommArgs, gc=False):
    """Arguments of an operator or annotation that says something about communication."""

    external: int | str | None = msgspec.field(name="External id", default=None)
    old_external: int | str | None = msgspec.field(name="external id", default=None)
    dims: list[object] = msgspec.field(name="Input Dims", default_factory=list)
    types: list[object] = msgspec.field(name="Input type", default_factory=list)
    concrete: list[str] = msgspec.field(name="Concrete Inputs", default_factory=list)


class LabelArgs(msgspec.Struct, gc=False):
    """Arguments of an event of phase M that says what a process is."""

    labels: str | None = None
    name: str | None = None


EVENTS = msgspec.json.Decoder(list[Event])
LAX_EVENTS = msgspec.json.Decoder(list[Event], strict=False)
EXACT_EVENTS = msgspec.json.Decoder(list[ExactEvent])
LAX_EXACT_EVENTS = msgspec.json.Decoder(list[ExactEvent], strict=False)
LINK_EVENTS = msgspec.json.Decoder(list[LinkEvent])
LAX_LINK_EVENTS = msgspec.json.Decoder(list[LinkEvent], strict=False)
WHOLE_EVENT = msgspec.json.Decoder(WholeEvent, strict=False)
KERNEL_ARGS = msgspec.json.Decoder(KernelArgs, strict=False)
LABEL_ARGS = msgspec.json.Decoder(LabelArgs, strict=False)
CALL_ARGS = msgspec.json.Decoder(CallArgs, strict=False)
OPERATOR_ARGS = msgspec.json.Decoder(OperatorArgs, strict=False)
