"""Turn charts into plotly figures.

Colours are written as `@token` and filled in by the page for its theme. All words go through
`label`, because plotly reads a subset of HTML in any text it draws.
"""

from __future__ import annotations

import functools
import html
from typing import Any

from tracelens.reporting import words
from tracelens.reporting.content import (
    Bars,
    Box,
    Bullets,
    Chart,
    Heat,
    Lines,
    Series,
    Timeline,
)
from tracelens.reporting.numbers import number

Spec = dict[str, Any]

_LONG_LABEL = 24
_MARGINS = 44 + 44
_HATCH = {"shape": "/", "size": 7, "solidity": 0.3, "fillmode": "overlay", "fgopacity": 1}


def label(text: str, *, most: int = 80) -> str:
    """Make a name inert for plotly, and short enough to draw."""
    shown = words.visible(text)
    if len(shown) > most:
        shown = f"{shown[: most - 1]}…"
    return html.escape(shown, quote=False)


def short(value: float | None) -> float | None:
    """Keep six digits: more than a screen can show, at half the size."""
    return None if value is None else float(f"{value:.6g}")


@functools.singledispatch
def spec(chart: Chart) -> Spec:
    """Return plotly's data and layout for a chart."""
    raise TypeError(f"no drawing for {type(chart).__name__}")


def _layout(height: int, **more: Any) -> Spec:
    return {
        "height": height,
        "margin": {"l": 4, "r": 12, "t": 44, "b": 44},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": "@text", "size": 13, "family": "system-ui, sans-serif"},
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1.0,
            "yanchor": "bottom",
            "traceorder": "normal",
        },
        "hoverlabel": {
            "bgcolor": "@raised",
            "bordercolor": "@line",
            "font": {"color": "@text", "family": "system-ui, sans-serif"},
            "align": "left",
            "namelength": -1,
        },
        # Dragging would take a finger's scrolling away; the bar of buttons turns zooming on.
        "dragmode": False,
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "@dim", "activecolor": "@text"},
        **more,
    }


def _title(text: str) -> Spec:
    return {"text": label(text), "font": {"color": "@dim", "size": 12}}


def _value_axis(title: str, **more: Any) -> Spec:
    return {
        "title": _title(title),
        "gridcolor": "@grid",
        "zerolinecolor": "@line",
        "tickfont": {"color": "@dim", "size": 12},
        "automargin": True,
        "rangemode": "tozero",
        **more,
    }


def _name_axis(names: list[str], *, downwards: bool = False, **more: Any) -> Spec:
    """Return an axis of names at whole positions, thinned out where they would not fit."""
    every = max(-(-len(names) // 32), 1)
    at = list(range(0, len(names), every))
    span = [-0.5, len(names) - 0.5]
    return {
        "tickvals": at,
        "ticktext": [label(names[i], most=28) for i in at],
        "tickfont": {"color": "@dim", "size": 12},
        "range": span[::-1] if downwards else span,
        "showgrid": False,
        "zeroline": False,
        "automargin": True,
        **more,
    }


def _marker(role: str) -> Spec:
    if role == "overlapped":
        pattern = {**_HATCH, "fgcolor": "@dim"}
        return {"color": "@page", "pattern": pattern, "line": {"color": "@dim", "width": 1}}
    if role == "bubble":
        return {"color": "@bubble", "pattern": {**_HATCH, "fgcolor": "@page"}}
    return {"color": f"@{role}"}


@spec.register
def _(chart: Bars) -> Spec:
    above = any(len(name) > _LONG_LABEL for name in chart.labels)
    traces = [_bar_trace(chart, series, above) for series in chart.series]
    layout = _layout(
        _bars_height(len(chart.labels), above),
        barmode="stack",
        bargap=0.2 if len(chart.labels) <= 32 else 0.1,
        xaxis=_value_axis(chart.unit),
        yaxis=_name_axis(chart.labels, downwards=True),
    )
    if above:
        totals = [_parts(chart, index) for index in range(len(chart.labels))]
        _write_above(layout, chart.labels, totals)
    return {"data": traces, "layout": layout}


def _bars_height(bars: int, above: bool) -> int:
    """Give few bars room to be read and many room to be told apart."""
    if above:
        return _MARGINS + 56 * bars
    # Whole pixels a bar, or the gaps between many bars would flicker.
    return _MARGINS + (36 if bars <= 8 else 20 if bars <= 32 else 10) * bars


def _bar_trace(chart: Bars, series: Series, above: bool) -> Spec:
    trace = {
        "type": "bar",
        "orientation": "h",
        "name": label(series.label),
        "x": [short(value) for value in series.values],
        "y": list(range(len(series.values))),
        "marker": _marker(series.role),
        "hoverinfo": "text",
        "hovertext": [
            f"{label(name)}<br>{label(series.label)}: {number(value)} {label(chart.unit)}"
            for name, value in zip(chart.labels, series.values, strict=True)
        ],
    }
    return {**trace, "width": 0.42} if above else trace


def _parts(chart: Bars, index: int) -> str:
    parts = [(series.label, series.values[index]) for series in chart.series]
    return ", ".join(f"{number(value, decimals=3)} {name.lower()}" for name, value in parts)


_SMALL = "<span style='font-size:11px'>{}</span>"


def _write_above(layout: Spec, names: list[str], values: list[str]) -> None:
    """Write long names above their bars, where a narrow screen has room for them."""
    layout["yaxis"] |= {"showticklabels": False}
    layout["annotations"] = [
        {
            "text": f"<b>{label(name, most=72)}</b>  {_SMALL.format(label(value))}",
            # What the page writes instead on a narrow screen; plotly does not know it.
            "short": f"<b>{label(name, most=44)}</b>",
            "x": 0,
            "xref": "paper",
            "xanchor": "left",
            "y": index - 0.4,
            "yanchor": "middle",
            "align": "left",
            "showarrow": False,
            "font": {"color": "@text", "size": 12},
        }
        for index, (name, value) in enumerate(zip(names, values, strict=True))
    ]


@spec.register
def _(chart: Bullets) -> Spec:
    positions = list(range(len(chart.labels)))
    traces = [
        _bullet("Predicted", chart.predicted, 0.44, {"color": "@idle", "opacity": 0.45}),
        _bullet("Observed", chart.observed, 0.18, {"color": "@compute"}),
    ]
    layout = _layout(
        _MARGINS + 56 * len(positions),
        barmode="overlay",
        xaxis=_value_axis(chart.unit),
        yaxis=_name_axis(chart.labels, downwards=True),
        shapes=[
            _band(index, predicted)
            for index, predicted in zip(positions, chart.predicted, strict=True)
        ],
    )
    pairs = zip(chart.predicted, chart.observed, strict=True)
    values = [f"{number(seen)} observed, {number(said)} predicted" for said, seen in pairs]
    _write_above(layout, chart.labels, values)
    return {"data": traces, "layout": layout}


def _bullet(name: str, values: list[float], width: float, marker: Spec) -> Spec:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "x": [short(value) for value in values],
        "y": list(range(len(values))),
        "width": width,
        "marker": marker,
        "hoverinfo": "text",
        "hovertext": [f"{name}: {number(value)}" for value in values],
    }


def _band(index: int, predicted: float) -> Spec:
    """Mark the five percent around a prediction in which a volume counts as matched."""
    return {
        "type": "rect",
        "x0": short(predicted * 0.95),
        "x1": short(predicted * 1.05),
        "y0": index - 0.3,
        "y1": index + 0.3,
        "line": {"color": "@dim", "width": 1, "dash": "dot"},
        "layer": "above",
    }


@spec.register
def _(chart: Lines) -> Spec:
    layout = _layout(
        300,
        showlegend=len(chart.series) > 1,
        hovermode="closest",
        xaxis=_name_axis(chart.steps, title=_title("step")),
        yaxis=_value_axis(chart.unit, rangemode="normal"),
    )
    traces = [_line(chart, series, index) for index, series in enumerate(chart.series)]
    return {"data": traces, "layout": layout}


_DASHES = ("solid", "dot", "dash", "dashdot")
_LINE_COLOURS = ("@compute", "@dim")


def _line(chart: Lines, series: Series, index: int) -> Spec:
    colour, dash = _LINE_COLOURS[index // 4 % 2], _DASHES[index % 4]
    if any(one.role == "edge" for one in chart.series):
        colour, dash = ("@idle", "dot") if series.role == "edge" else ("@compute", "solid")
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": label(series.label),
        "x": list(range(len(chart.steps))),
        "y": [short(value) for value in series.values],
        "line": {"color": colour, "width": 2, "dash": dash},
        "marker": {"size": 6, "color": colour},
        "connectgaps": False,
        "hoverinfo": "text",
        "hovertext": [
            f"{label(series.label)}, step {label(step)}: {number(value)} {label(chart.unit)}"
            for step, value in zip(chart.steps, series.values, strict=True)
        ],
    }


@spec.register
def _(chart: Heat) -> Spec:
    trace = {
        "type": "heatmap",
        "x": list(range(len(chart.columns))),
        "y": list(range(len(chart.rows))),
        "z": [[short(value) for value in row] for row in chart.values],
        "colorscale": [[0, "@grid"], [1, "@exposed"]],
        "xgap": 1,
        "ygap": 1 if len(chart.rows) <= 64 else 0,
        "colorbar": {
            "title": _title(chart.unit),
            "tickfont": {"color": "@dim", "size": 12},
            "thickness": 12,
            "outlinewidth": 0,
        },
        "hovertemplate": f"%{{z:.3r}} {label(chart.unit)}<extra></extra>",
    }
    layout = _layout(
        110 + max(len(chart.rows) * (22 if len(chart.rows) <= 16 else 8), 90),
        xaxis=_name_axis(chart.columns, title=_title("step")),
        yaxis=_name_axis(chart.rows, downwards=True),
    )
    return {"data": [trace], "layout": layout}


_TIMELINE_ROLES = (
    ("forward", "Forward", "compute"),
    ("backward", "Backward", "copies"),
    ("backward_input", "Input gradients", "copies"),
    ("backward_weight", "Weight gradients", "exposed"),
    ("other", "Other", "idle"),
)


@spec.register
def _(chart: Timeline) -> Spec:
    end = max((box.start + box.length for box in chart.boxes), default=0)
    traces = [_phase(chart, end)]
    for role, name, colour in _TIMELINE_ROLES:
        boxes = [box for box in chart.boxes if box.role == role]
        if boxes:
            traces.append(_boxes(chart, boxes, name, colour))
    layout = _layout(
        110 + 40 * len(chart.rows),
        barmode="overlay",
        bargap=0.2,
        xaxis=_value_axis(chart.unit),
        yaxis=_name_axis(chart.rows, downwards=True),
    )
    return {"data": traces, "layout": layout}


def _phase(chart: Timeline, end: float) -> Spec:
    """Fill the whole phase with bubble; the work drawn over it leaves only the gaps."""
    return {
        "type": "bar",
        "orientation": "h",
        "name": "Bubble",
        "x": [short(end)] * len(chart.rows),
        "y": list(range(len(chart.rows))),
        "marker": _marker("bubble"),
        "hoverinfo": "skip",
    }


def _boxes(chart: Timeline, boxes: list[Box], name: str, colour: str) -> Spec:
    rows = {row: index for index, row in enumerate(chart.rows)}
    ink = f"@on-{colour}" if colour in ("compute", "copies") else "@text"
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "base": [short(box.start) for box in boxes],
        "x": [short(box.length) for box in boxes],
        "y": [rows[box.row] for box in boxes],
        "marker": {"color": f"@{colour}", "line": {"color": "@page", "width": 1}},
        "text": [label(box.text, most=12) for box in boxes],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "textfont": {"color": ink, "size": 11},
        "constraintext": "inside",
        "hoverinfo": "text",
        "hovertext": [
            f"{label(box.row)}: {name.lower()} {label(box.text)}<br>"
            f"{number(box.start)} + {number(box.length)} ms"
            for box in boxes
        ],
    }
