"""`tracelens simulate`: write what a training run would leave in a profiler."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracelens.cli import values

if TYPE_CHECKING:
    from tracelens.simulate import Options

_OURS = ("*.pt.trace.json.gz", "*.sqlite", "truth.json")
_FACTORS = values.Typed("RANK:FACTOR", values.rank_factor)


@click.command("simulate", short_help="Write traces of a simulated training run.")
@click.option("--layout", default="dp=8", show_default=True, help="dp=2,tp=2,pp=2, also ep and cp.")
@click.option(
    "--model",
    default="tiny",
    show_default=True,
    help="A known model (llama-2-7b, gpt-3 …), sizes (layers=8,hidden=1024), or both.",
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for one file a rank and truth.json.",
)
@click.option(
    "--strategy",
    default="ddp",
    show_default=True,
    type=click.Choice(["ddp", "zero1", "zero2", "distributed-optimizer", "zero3"]),
    help="What data parallelism sends.",
)
@click.option(
    "--schedule",
    default="1f1b",
    show_default=True,
    type=click.Choice(["gpipe", "1f1b", "interleaved", "zb-h1"]),
    help="The pipeline's schedule.",
)
@click.option(
    "--micro-batches", default=1, show_default=True, type=click.IntRange(1), help="Per step."
)
@click.option(
    "--virtual-stages",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Chunks of a rank (interleaved).",
)
@click.option("--sequence-parallel", is_flag=True, help="Split the sequence outside of tp layers.")
@click.option(
    "--context",
    default="ring",
    show_default=True,
    type=click.Choice(["ring", "all-gather"]),
    help="How cp ranks get all keys and values.",
)
@click.option(
    "--bucket-elements",
    type=values.Typed("count", values.count),
    help="Elements of a gradient bucket (default: the framework's).",
)
@click.option("--steps", default=3, show_default=True, type=click.IntRange(1), help="To record.")
@click.option("--gpus-per-node", default=8, show_default=True, type=click.IntRange(1), help="")
@click.option("--tflops", default=400.0, show_default=True, type=click.FloatRange(0, min_open=True))
@click.option(
    "--intra-bw",
    default=300.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="GB/s of a link inside a node.",
)
@click.option(
    "--inter-bw",
    default=45.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="GB/s of a link between nodes.",
)
@click.option("--slow", multiple=True, type=_FACTORS, help="3:1.3: kernels of rank 3. May repeat.")
@click.option("--slow-host", multiple=True, type=_FACTORS, help="3:2: host of rank 3. May repeat.")
@click.option(
    "--contention",
    default=1.0,
    show_default=True,
    type=click.FloatRange(1),
    help="How much slower kernels are while a collective runs.",
)
@click.option(
    "--skew",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Clocks are off by at most so many microseconds.",
)
@click.option(
    "--drift",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Clocks run wrong by at most so many ppm.",
)
@click.option(
    "--jitter",
    default=0.01,
    show_default=True,
    type=click.FloatRange(0, 0.2),
    help="Standard deviation of all lengths, as a share.",
)
@click.option(
    "--drop-edges",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    help="Let each recording begin and end up to so many device events beside the steps.",
)
@click.option("--seed", default=0, show_default=True, type=int, help="Of the jitter and clocks.")
@click.option(
    "--torch",
    default="2.12",
    show_default=True,
    type=click.Choice(["2.4", "2.12"]),
    help="The release whose files to imitate.",
)
@click.option(
    "--format",
    "kind",
    default="kineto",
    show_default=True,
    type=click.Choice(["kineto", "nsight", "nsight-per-rank"]),
    help="Kineto files, or Nsight Systems exports, one a node or a rank.",
)
@click.option("-f", "--force", is_flag=True, help="Replace an earlier simulation in the folder.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
def command(output: Path, kind: str, *, force: bool, quiet: bool, **asked: Any) -> None:
    """Simulate a training run and write one trace a rank, with truth.json beside them.

    The files are marked as simulated. truth.json says what an analysis must find in them.
    """
    from tracelens.cli.output import clear_folder
    from tracelens.simulate import write

    options = _options(asked)
    clear_folder(output, _OURS, b'"tracelens-truth/', force=force)
    files = write(options, output, kind)
    if not quiet:
        size = sum(file.stat().st_size for file in files)
        click.echo(f"Wrote {output} ({len(files)} files, {size / 1e6:.3g} MB)", err=True)


def _options(asked: dict[str, Any]) -> Options:
    from tracelens.simulate import Link, Machine, Options
    from tracelens.simulate.layout import parse as layout
    from tracelens.theory.transformer import parse as model

    defaults = Machine()
    machine = Machine(
        tflops=asked["tflops"],
        gpus_per_node=asked["gpus_per_node"],
        intra=Link(defaults.intra.latency_ns, asked["intra_bw"]),
        inter=Link(defaults.inter.latency_ns, asked["inter_bw"]),
        slow=dict(asked["slow"]),
        slow_hosts=dict(asked["slow_host"]),
        contention=asked["contention"],
        skew_ns=round(asked["skew"] * 1000),
        drift_ppm=asked["drift"],
        jitter=asked["jitter"],
    )
    same = (
        "strategy", "schedule", "micro_batches", "virtual_stages", "sequence_parallel", "context",
        "bucket_elements", "steps", "drop_edges", "torch", "seed",
    )  # fmt: skip
    return Options(
        layout=layout(asked["layout"]),
        model=model(asked["model"]),
        machine=machine,
        **{name: asked[name] for name in same},
    )
