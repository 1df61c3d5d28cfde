"""The lists of a result as pandas frames, for notebooks: `analysis.tables.steps`."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.model.result import Analysis, CollectiveResult, DeviceResult, RankResult

Columns = dict[str, str]
Row = dict[str, Any]


def _whole(*names: str) -> Columns:
    return dict.fromkeys(names, "Int64")


def _real(*names: str) -> Columns:
    return dict.fromkeys(names, "Float64")


def _truth(*names: str) -> Columns:
    return dict.fromkeys(names, "bool")


def _text(*names: str) -> Columns:
    return dict.fromkeys(names, "object")


_TIMES = (
    "window_ns",
    "busy_ns",
    "compute_ns",
    "comm_ns",
    "overlapped_comm_ns",
    "exposed_comm_ns",
    "copy_ns",
    "exposed_copy_ns",
    "idle_ns",
)
_RANKS = {
    **_whole("rank", "device", "process"),
    **_text("host"),
    **_truth("partial"),
    **_whole("clock_offset_ns", *_TIMES, "bubble_ns", "wait_ns"),
    **_real("clock_drift_ppm"),
    **_whole("clock_residual_ns"),
}
_STEPS = {
    **_whole("rank", "device", "step", "occurrence"),
    **_truth("complete", "in_mean"),
    **_whole("period_ns", *_TIMES, "kernels", "copies", "copied_bytes", "launches_without_record"),
}
_COLLECTIVES = {
    **_text("group", "role"),
    **_whole("size"),
    **_text("op", "dtype", "kind"),
    **_real("calls_per_step"),
    **_whole("message_bytes_per_step", "wire_bytes_per_step"),
    **_whole("time_per_step_ns", "exposed_per_step_ns", "wait_ns", "transfer_ns"),
    **_real("busbw_gbps", "algbw_gbps", "busbw_of_link_pct", "calls", "calls_without_bytes"),
    **_whole("transfer_estimate_ns"),
    **_real("busbw_estimate_gbps"),
}
_POSITIONS = {
    **_whole("rank"),
    **_text("node"),
    **_whole("stage", "dp", "tp", "pp", "ep", "cp"),
}
_KERNELS = {
    **_whole("rank"),
    **_text("name", "kernel_class", "op"),
    **_whole("count", "total_ns"),
    **_real("mean_ns"),
    **_whole("mean_step_ns"),
}
_PREDICTIONS = {
    **_text("name", "kind"),
    **_real("message_multiple"),
    **_whole("message_bytes", "wire_bytes"),
    **_real("observed_over_predicted"),
    **_truth("matches"),
    **_text("formula", "source"),
}
_NOTICES = {**_text("code", "level", "message", "file"), **_whole("rank", "count")}
_FILES = {
    **_text("path", "format"),
    **_whole("rank", "cycle"),
    **_text("status", "reason"),
    **_whole("bytes", "events", "device_events"),
}


class Tables:
    """Frames over one analysis, each made when it is first asked for.

    Times are integer nanoseconds and sizes integer bytes; what is not known is <NA>, so integer
    columns stay integers (`Int64`).

    Args:
        analysis: The result whose lists become frames.
    """

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis

    @functools.cached_property
    def ranks(self) -> pd.DataFrame:
        """Return the mean step of each device, a row a rank and device.

        Columns: rank, device, process, host, partial, clock_offset_ns; the partition (window_ns,
        busy_ns, compute_ns, comm_ns, overlapped_comm_ns, exposed_comm_ns, copy_ns,
        exposed_copy_ns, idle_ns), <NA> without a mean step; bubble_ns and wait_ns of the
        breakdown; clock_drift_ppm, clock_residual_ns.
        """
        return _frame([_rank_row(rank, device) for rank, device in self._devices()], _RANKS)

    @functools.cached_property
    def steps(self) -> pd.DataFrame:
        """Return the steps of each device, a row a rank, device and step.

        Columns: rank, device, step, occurrence, complete, in_mean, period_ns; the partition
        (window_ns, busy_ns, compute_ns, comm_ns, overlapped_comm_ns, exposed_comm_ns, copy_ns,
        exposed_copy_ns, idle_ns); kernels, copies, copied_bytes, launches_without_record.
        """
        rows = [
            {"rank": rank.rank, "device": device.device, **_fields(step), **_fields(step.partition)}
            for rank, device in self._devices()
            for step in device.steps
        ]
        return _frame(rows, _STEPS)

    @functools.cached_property
    def positions(self) -> pd.DataFrame:
        """Return where each rank of the run sits, a row a rank.

        Columns: rank, node (name of the machine), stage, and the coordinates dp, tp, pp, ep, cp.
        """
        layout = self._analysis.topology
        if layout is None:
            return _frame([], _POSITIONS)
        names = dict(enumerate(node.name for node in layout.nodes or []))
        rows = [
            {
                "rank": one.rank,
                "node": None if one.node is None else names.get(one.node),
                "stage": one.stage,
                **{name: one.coordinates.get(name) for name in ("dp", "tp", "pp", "ep", "cp")},
            }
            for one in layout.positions
        ]
        return _frame(rows, _POSITIONS)

    @functools.cached_property
    def collectives(self) -> pd.DataFrame:
        """Return the collectives, a row a group, operation and type.

        Columns: group, role, size, op, dtype, kind, calls_per_step, message_bytes_per_step,
        wire_bytes_per_step, time_per_step_ns, exposed_per_step_ns, wait_ns and transfer_ns
        (over the window), busbw_gbps, algbw_gbps, busbw_of_link_pct, calls, calls_without_bytes;
        of a lone rank transfer_estimate_ns and busbw_estimate_gbps.
        """
        return _frame([self._collective(one) for one in self._analysis.collectives], _COLLECTIVES)

    @functools.cached_property
    def kernels(self) -> pd.DataFrame:
        """Return the longest kernels, a row a rank and kernel name.

        Columns: rank, name, kernel_class, op, count, total_ns, mean_ns, mean_step_ns.
        """
        rows = [
            {"rank": rank.rank, **_fields(kernel)}
            for rank in self._analysis.ranks
            for kernel in rank.top_kernels
        ]
        return _frame(rows, _KERNELS)

    @functools.cached_property
    def predictions(self) -> pd.DataFrame:
        """Return what each scheme predicts, a row a scheme.

        Columns: name, kind, message_multiple, message_bytes, wire_bytes,
        observed_over_predicted, matches, formula, source.
        """
        return _frame([_fields(one) for one in self._analysis.volumes.predictions], _PREDICTIONS)

    @functools.cached_property
    def notices(self) -> pd.DataFrame:
        """Return what to know to trust the numbers, a row a notice.

        Columns: code, level, message, file, rank, count.
        """
        return _frame([_fields(notice) for notice in self._analysis.notices], _NOTICES)

    @functools.cached_property
    def files(self) -> pd.DataFrame:
        """Return the input files, a row a file.

        Columns: path, format, rank, cycle, status, reason, bytes, events, device_events.
        """
        return _frame([_fields(file) for file in self._analysis.source.files], _FILES)

    def _devices(self) -> Iterator[tuple[RankResult, DeviceResult]]:
        for rank in self._analysis.ranks:
            for device in rank.devices:
                yield rank, device

    def _collective(self, one: CollectiveResult) -> Row:
        group = next((group for group in self._analysis.groups if group.id == one.group), None)
        return {
            **_fields(one),
            "role": group.role if group else "unknown",
            "size": group.size if group else None,
            "message_bytes_per_step": one.bytes_per_step.message,
            "wire_bytes_per_step": one.bytes_per_step.wire,
        }


def _fields(item: Any) -> Row:
    return {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}


def _rank_row(rank: RankResult, device: DeviceResult) -> Row:
    parts = device.breakdown
    times = dict.fromkeys(_TIMES) if device.mean_step is None else _fields(device.mean_step)
    return {
        **_fields(rank),
        **times,
        "device": device.device,
        "process": device.process,
        "bubble_ns": parts.bubble_ns if parts else None,
        "wait_ns": parts.wait_ns if parts else None,
    }


def _frame(rows: list[Row], columns: Columns) -> pd.DataFrame:
    """Return a frame with these columns and their types, even of no rows."""
    return pd.DataFrame(
        {
            name: pd.Series([row[name] for row in rows], dtype=dtype)
            for name, dtype in columns.items()
        }
    )
