"""`tracelens analyze`: traces in, verdict and reports out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracelens.cli import values
from tracelens.cli.output import (
    STDOUT,
    check_default_folder,
    check_target,
    check_targets,
    render,
    say_notices,
    say_written,
    write,
)

if TYPE_CHECKING:
    from tracelens.engine import Options
    from tracelens.model.result import Analysis

_INCOMPLETE = 4


@click.command("analyze", short_help="Read traces, print the verdict, write reports.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH…")
@click.option(
    "-o",
    "--output",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Write a report; the suffix chooses it (.html .md .json). May repeat. Without -o and "
    "--json: tracelens-report/report.html and analysis.json.",
)
@click.option("--json", metavar="FILE", help="Write the result as JSON; - is stdout.")
@click.option(
    "--steps",
    type=values.Typed("range", values.step_range),
    help="Steps to look at, ends included: 10:30, 10:, :30, 12.",
)
@click.option(
    "--ranks", type=values.Typed("list", values.rank_list), help="Ranks to look at: 0-7,16."
)
@click.option(
    "--step-pattern",
    type=values.Typed("REGEX", values.pattern),
    help="Which named ranges are the steps.",
)
@click.option(
    "--layout",
    type=values.Typed("layout", values.layout),
    help="The parallel layout, where the trace does not say it: dp=8,tp=2,pp=4,zero=3.",
)
@click.option(
    "--params",
    type=values.Typed("count", values.count),
    help="Number of parameters Ψ: 863360, 125M, 6.7B.",
)
@click.option(
    "--model",
    type=values.Typed("model", values.described_model),
    help="The model and its micro-batch, for runs with tp, pp, ep or cp: "
    "llama-2-7b,sequence=4096,batch=1,dtype=bf16.",
)
@click.option(
    "--dtype", type=values.Typed("dtype", values.dtype), help="Dtype that travels: bf16, fp32 …"
)
@click.option(
    "--gpus-per-node",
    type=click.IntRange(1),
    metavar="N",
    help="Each N consecutive ranks share a machine (default: by host names and devices).",
)
@click.option(
    "--intra-bw",
    type=values.Typed("bandwidth", values.bandwidth),
    help="One-way peak of the links inside a machine, per GPU: 450GB/s (default: by GPU name).",
)
@click.option(
    "--inter-bw",
    type=values.Typed("bandwidth", values.bandwidth),
    help="One-way peak of the network between machines, per GPU: 400Gb/s.",
)
@click.option(
    "--comm-kernel",
    multiple=True,
    type=values.Typed("REGEX=OP", values.kernel_rule),
    help="Kernels of this name are communication: 'my_reduce.*=all_reduce'. May repeat.",
)
@click.option(
    "--max-inflated",
    type=values.Typed("size", values.size),
    help="What a compressed file may inflate to: 100GB (default: 200 times its size).",
)
@click.option("--workers", type=click.IntRange(1, 1024), help="Processes (default: by size).")
@click.option("-f", "--force", is_flag=True, help="Overwrite existing files.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@click.option("-v", "--verbose", count=True, help="Print all notices, not only warnings.")
@click.option("--strict", is_flag=True, help="Exit with 4 if ranks or events are missing.")
@click.option("--no-color", is_flag=True, help="No colours (also: NO_COLOR).")
def command(
    paths: tuple[str, ...],
    output: tuple[Path, ...],
    json: str | None,
    *,
    force: bool,
    quiet: bool,
    verbose: int,
    strict: bool,
    no_color: bool,
    **asked: Any,
) -> None:
    r"""Analyse the traces under PATH (folders, files or globs) and print the verdict.

    \b
    Exit codes: 0 done · 1 nothing analysable, or refused to overwrite · 2 wrong usage ·
    4 with --strict, if ranks or events are missing
    """
    from tracelens.cli.progress import progress_for
    from tracelens.engine import analyze

    options = _options(asked)
    targets = _targets(output, json, force=force)
    analysis = analyze(list(paths), options, progress_for(quiet=quiet))
    if not quiet:
        several = {file.path for file in analysis.source.files if len(file.ranks or ()) > 1}
        say_notices(analysis.notices, verbose, several)
    _write_all(analysis, targets, json, quiet=quiet)
    if not quiet and json != STDOUT:
        _print_summary(analysis, no_color=no_color)
    if strict and incomplete(analysis):
        sys.exit(_INCOMPLETE)


def _options(asked: dict[str, Any]) -> Options:
    from tracelens.engine import Options
    from tracelens.limits import Limits
    from tracelens.reduction import Selection
    from tracelens.strategy.inference import Given

    low, high = asked["steps"] or (None, None)
    dims, stage = asked["layout"] or ({}, None)
    return Options(
        selection=Selection(low, high, asked["step_pattern"], tuple(asked["comm_kernel"])),
        ranks=asked["ranks"],
        given=Given(
            parameters=asked["params"],
            zero_stage=stage,
            dims=dims,
            dtype=asked["dtype"],
            gpus_per_node=asked["gpus_per_node"],
            intra_gbps=asked["intra_bw"],
            inter_gbps=asked["inter_bw"],
            model=asked["model"],
        ),
        workers=asked["workers"],
        limits=Limits(asked["max_inflated"]),
        shown=_shown(asked),
    )


def _shown(asked: dict[str, Any]) -> dict[str, str]:
    """Return the options that shaped the numbers, as one would type them."""
    shown: dict[str, str] = {}
    if asked["steps"]:
        shown["--steps"] = ":".join("" if end is None else str(end) for end in asked["steps"])
    if asked["ranks"] is not None:
        from tracelens.run import ranges

        shown["--ranks"] = ranges(sorted(asked["ranks"])).replace(" ", "")
    if asked["layout"]:
        dims, stage = asked["layout"]
        parts = {**dims, **({"zero": stage} if stage is not None else {})}
        shown["--layout"] = ",".join(f"{name}={size}" for name, size in parts.items())
    for name in ("params", "dtype", "step_pattern", "gpus_per_node"):
        if asked[name] is not None:
            shown[f"--{name.replace('_', '-')}"] = str(asked[name])
    if asked["model"] is not None:
        shown["--model"] = asked["model"].text
    for name in ("intra_bw", "inter_bw"):
        if asked[name] is not None:
            shown[f"--{name.replace('_', '-')}"] = f"{asked[name]:g}GB/s"
    if asked["comm_kernel"]:
        rules = [f"{rule.pattern.pattern}={rule.operation}" for rule in asked["comm_kernel"]]
        shown["--comm-kernel"] = " ".join(rules)
    return shown


def _targets(outputs: tuple[Path, ...], json_file: str | None, *, force: bool) -> list[Path]:
    if not outputs and json_file is None:
        return check_default_folder(force=force)
    check_targets(list(outputs), force=force)
    if json_file is not None and json_file != STDOUT:
        check_target(Path(json_file), force=force)
    return list(outputs)


def _write_all(
    analysis: Analysis, targets: list[Path], json_file: str | None, *, quiet: bool
) -> None:
    wanted = [(target, target.suffix) for target in targets]
    if json_file is not None and json_file != STDOUT:
        wanted.append((Path(json_file), ".json"))
    # JSON first: a report plugin that fails must not cost the result.
    for target, suffix in sorted(wanted, key=lambda item: item[1] != ".json"):
        data = render(analysis, suffix)
        write(target, data)
        if not quiet:
            say_written(target, len(data))
    if json_file == STDOUT:
        click.echo(render(analysis, ".json").decode(), nl=False)


def _print_summary(analysis: Analysis, *, no_color: bool) -> None:
    import os

    from tracelens.reporting.terminal import summary

    colour = sys.stdout.isatty() and not no_color and "NO_COLOR" not in os.environ
    click.echo(summary(analysis, colour=colour), nl=False, color=colour or None)


def incomplete(analysis: Analysis) -> bool:
    """Tell whether ranks, files or events are missing."""
    run = analysis.run
    lost = {
        "unreadable-file",
        "lost-device-records",
        "reported-range-loss",
        "incomplete-steps",
        "world-size-conflict",
    }
    return bool(
        run.ranks_missing
        or run.ranks_partial
        or run.ranks_duplicated
        or any(notice.code in lost for notice in analysis.notices)
    )
