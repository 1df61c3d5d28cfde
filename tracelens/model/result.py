"""The result document: the contract between analysis and every report.

`Analysis` is the JSON that `tracelens analyze --json` writes, field by field. Times are integer
nanoseconds (`_ns`), sizes integer bytes (`_bytes`), ratios floats; unknown is None, never 0 or NaN.
Adding a field is free; renaming or removing one bumps the major version in `SCHEMA`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tracelens.model import layout

if TYPE_CHECKING:
    from tracelens.model.tables import Tables

SCHEMA = "tracelens/1"

Status = Literal["ok", "warn", "fail", "unknown"]
Level = Literal["info", "warning", "error"]
Confidence = layout.Confidence
FileStatus = Literal["complete", "partial", "skipped"]
VolumeVerdict = Literal["as expected", "explained", "unexplained", "unknown"]

Axis = layout.Axis
Contention = layout.Contention
Links = layout.Links
Node = layout.Node
RankPosition = layout.RankPosition
SlowedKernel = layout.SlowedKernel
Topology = layout.Topology


@dataclass(frozen=True, slots=True)
class Tool:
    """Which program wrote the document."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One input file and what became of it; `rank` is None if it holds several, see `ranks`."""

    path: str
    format: str | None
    rank: int | None
    cycle: int | None
    status: FileStatus
    reason: str | None
    bytes: int
    events: int | None
    device_events: int | None
    ranks: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Source:
    """What was read: the path as given, every file, and the options that shaped the numbers."""

    path: str
    files: list[SourceFile]
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the traces say about the run they came from."""

    world_size: int | None
    ranks_present: list[int]
    ranks_missing: list[int]
    ranks_partial: list[int]
    ranks_duplicated: list[int]
    backend: str | None
    device_kind: str  # cuda | rocm | xpu | cpu | unknown
    devices: list[str]
    hosts: list[str]
    nccl_version: str | None
    steps: list[int]
    steps_complete: int
    step_source: str | None = None  # ProfilerStep | range | None: the whole window is one step
    started: str | None = None  # ISO 8601, from the trace's own clock
    framework_version: str | None = None


@dataclass(frozen=True, slots=True)
class Metric:
    """One headline number: a tile of the report."""

    name: str
    label: str
    value: float | None
    unit: str
    budget: str | None = None
    status: Status = "unknown"
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """The verdict: one sentence, one status, a handful of numbers."""

    verdict: str
    status: Status
    metrics: list[Metric]


@dataclass(frozen=True, slots=True)
class Notice:
    """Something a reader must know to trust the numbers.

    Codes are documented in docs/messages.md.
    """

    code: str
    level: Level
    message: str
    file: str | None = None
    rank: int | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    """The basic partition of a window (docs/attribution.md).

    `compute + exposed_comm + exposed_copy + idle == window`, exactly.
    """

    window_ns: int
    busy_ns: int
    compute_ns: int
    comm_ns: int
    overlapped_comm_ns: int
    exposed_comm_ns: int
    copy_ns: int
    exposed_copy_ns: int
    idle_ns: int
    comm_by_op_ns: dict[str, int]
    exposed_by_op_ns: dict[str, int]
    kernels: int
    copies: int
    launches_without_record: int
    copied_bytes: int | None = None  # of all `copies`; None if the size of one is not recorded

    @property
    def overlap_pct(self) -> float | None:
        """Share of communication hidden behind compute in percent; None without communication."""
        return 100 * self.overlapped_comm_ns / self.comm_ns if self.comm_ns else None

    @property
    def exposed_comm_pct(self) -> float | None:
        """Share of the window that is exposed communication in percent; None if it is empty."""
        return 100 * self.exposed_comm_ns / self.window_ns if self.window_ns else None


@dataclass(frozen=True, slots=True)
class StepResult:
    """One profiled step of one device."""

    step: int
    occurrence: int
    complete: bool
    in_mean: bool
    period_ns: int
    partition: Partition


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The mean step, exclusive: the parts sum to `window_ns`."""

    window_ns: int
    compute_ns: int
    transfer_by_op_ns: dict[str, int] | None
    wait_ns: int | None
    exposed_unsplit_by_op_ns: dict[str, int]
    bubble_ns: int | None
    exposed_copy_ns: int
    idle_host_ns: int | None
    idle_dependency_ns: int | None
    idle_unknown_ns: int
    transfer_by_dimension_ns: dict[str, int] | None = None
    exposed_unsplit_by_dimension_ns: dict[str, int] | None = None


@dataclass(frozen=True, slots=True)
class DeviceResult:
    """One device timeline: key (process, device); never merged with another."""

    device: int
    process: int
    untimed_events: int
    before_first_step: int
    total: Partition
    mean_step: Partition | None
    steps: list[StepResult]
    breakdown: Breakdown | None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class KernelResult:
    """Total time of all kernels of one name on one rank.

    `op` is set for communication; `mean_step_ns` is the time in steps of the mean over their count.
    """

    name: str
    kernel_class: str  # compute | communication | copy
    op: str | None
    count: int
    total_ns: int
    mean_ns: float
    mean_step_ns: int | None = None


@dataclass(frozen=True, slots=True)
class RankResult:
    """One rank: its files, devices and longest kernels.

    `in_means` is False for partial ranks and for a second set of files of the same rank.
    """

    rank: int
    files: list[str]
    partial: bool
    clock_offset_ns: int | None
    devices: list[DeviceResult]
    top_kernels: list[KernelResult]
    host: str | None = None
    in_means: bool = True
    clock_drift_ppm: float | None = None
    clock_median_ns: int | None = None
    clock_residual_ns: int | None = None


@dataclass(frozen=True, slots=True)
class GroupResult:
    """One process group, merged by its rank list. `ranks` is None if unknown."""

    id: str
    names: list[str]
    description: str | None
    role: str  # dp tp etp pp ep cp edp embedding shard replicate unknown
    role_confidence: Confidence
    size: int | None
    ranks: list[int] | None
    nodes: int | None
    node_names: list[str] | None = None


@dataclass(frozen=True, slots=True)
class StepBytes:
    """Bytes per step and rank in both conventions (docs/attribution.md, Volumes)."""

    message: int | None
    wire: int | None


@dataclass(frozen=True, slots=True)
class RankVolume:
    """One rank's share of a collective over the window."""

    calls: int
    message_bytes: int | None
    wire_bytes: int | None


@dataclass(frozen=True, slots=True)
class CollectiveResult:
    """All calls of one (group, op, dtype); numbers are means per member rank that is present.

    `matched_calls` is how many were matched, by confidence; `wait_per_step_ns` is their waiting,
    and `exposed_transfer_per_step_ns` what is exposed of the rest. The estimates are of one rank's
    trace: what its calls would take if all were as fast as the fastest of their size.
    """

    group: str
    op: str
    dtype: str | None
    calls: float
    calls_without_bytes: float
    message_bytes: int | None
    wire_bytes: int | None
    message_elements_per_step: float | None
    bytes_per_step: StepBytes
    calls_per_step: float | None
    time_ns: int | None
    time_per_step_ns: int | None
    exposed_ns: int | None
    exposed_per_step_ns: int | None
    wait_ns: int | None
    transfer_ns: int | None
    busbw_gbps: float | None
    algbw_gbps: float | None
    alpha_us: float | None
    beta_gbps: float | None
    by_rank: dict[int, RankVolume]
    sources: list[str] = field(default_factory=list)
    kind: str = "unknown"  # parameters | activations | other | unknown
    matched_calls: dict[str, float] = field(default_factory=dict)
    transfer_estimate_ns: int | None = None
    busbw_estimate_gbps: float | None = None
    link_peak_gbps: float | None = None
    busbw_of_link_pct: float | None = None
    large_busbw_gbps: float | None = None
    half_bandwidth_bytes: int | None = None
    latency_bound_calls_pct: float | None = None
    latency_bound_time_pct: float | None = None
    wait_per_step_ns: int | None = None
    exposed_transfer_per_step_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Parameters:
    """Ψ, the number of parameters, and how it is known."""

    count: int | None
    source: str | None  # plugin | option | inferred
    confidence: Confidence


@dataclass(frozen=True, slots=True)
class Parallelism:
    """The strategy of the run, with the evidence for it."""

    strategy: str | None  # ddp zero1 zero2 zero1-or-2 zero3 fsdp-grad-op hsdp tp pp 3d none ...
    framework: str | None
    confidence: Confidence
    source: str  # plugin | option | inferred
    dims: dict[str, int]
    gradient_accumulation: int | None
    evidence: list[str]
    parameters: Parameters


@dataclass(frozen=True, slots=True)
class PerStepVolume:
    """Observed data-parallel traffic per step and rank.

    `multiple_of_parameters` counts elements, so it does not change with dtypes. `coverage` is the
    share of calls whose bytes are known, `calls` and `calls_with_bytes` its two terms.
    """

    message_bytes: int | None
    wire_bytes: int | None
    multiple_of_parameters: float | None
    coverage: float | None
    calls: int = 0
    calls_with_bytes: int = 0
    message_elements: float | None = None
    other_message_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a scheme should move per step and rank, and how the observation compares."""

    name: str
    kind: Literal["paper", "framework"]
    message_multiple: float | None
    message_bytes: int | None
    wire_bytes: int | None
    observed_over_predicted: float | None
    formula: str | None = None
    source: str | None = None
    matches: bool = False


@dataclass(frozen=True, slots=True)
class VolumeTerm:
    """One term of the framework's prediction beside what was observed."""

    op: str
    group: str | None
    predicted_bytes: int | None
    observed_bytes: int | None
    formula: str
    explanation: str | None


@dataclass(frozen=True, slots=True)
class DimensionVolume:
    """What one dimension of a mixed run moves per step and mean rank, beside what it should.

    `calls` and `observed` are of complete steps, without calls of at most 1 KiB. `explanation` says
    what the prediction stands on, or what it lacks.
    """

    dimension: str  # dp tp pp ep cp embedding other
    calls: float
    observed: StepBytes
    predicted: StepBytes
    observed_over_predicted: float | None
    verdict: VolumeVerdict
    formula: str | None
    explanation: str | None


@dataclass(frozen=True, slots=True)
class NetworkVolume:
    """What the network cards of one machine counted per step, beside what collectives ask for.

    `requested_bytes_per_step` is what its ranks have to send to other machines on a ring; None if
    sizes, or machines of a group, are unknown.
    """

    host: str | None
    ranks: list[int]
    sent_bytes_per_step: int | None
    received_bytes_per_step: int | None
    requested_bytes_per_step: int | None


@dataclass(frozen=True, slots=True)
class LinkUse:
    """How much of a link's peak one device used, in per cent, over the steps of the mean.

    `payload_percent` is the part that is data and no protocol; the estimate multiplies it by the
    link's peak. `communicating_…` is while communication runs on the device, waiting included.
    `sample_ns` is how long one sample lasts: what is shorter is blurred.
    """

    rank: int
    device: int
    link: str  # NVLink | PCIe
    direction: Literal["sent", "received"]
    sample_ns: int
    mean_percent: float | None
    peak_percent: float | None
    payload_percent: float | None
    communicating_mean_percent: float | None
    communicating_peak_percent: float | None
    estimated_payload_bytes_per_step: int | None


@dataclass(frozen=True, slots=True)
class Volumes:
    """Bytes against theory.

    `network` is what really left each machine, `link_use` how busy the links of each device were,
    if they were recorded. `dimensions` are those of a run that combines several; others have none.
    """

    parameters_bytes: int | None
    per_step: PerStepVolume
    predictions: list[Prediction]
    terms: list[VolumeTerm]
    verdict: VolumeVerdict
    unexplained_bytes: int | None
    explanation: str | None = None
    network: list[NetworkVolume] = field(default_factory=list)
    link_use: list[LinkUse] = field(default_factory=list)
    dimensions: list[DimensionVolume] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Bubble:
    """What the stages of a pipeline do not work, as shares and mean times per step and stage.

    `over` says of what `measured` and `by_rank` are shares: of the pipeline phase, or of the whole
    step where the phase is not known. `theory_at_measured_times` is what the same passes in the
    same order would leave idle if messages took no time.
    """

    theory: float | None
    measured: float | None
    by_rank: dict[int, float | None]
    warmup_ns: int | None
    steady_ns: int | None
    cooldown_ns: int | None
    imbalance_ns: int | None
    p2p_ns: int | None
    filled_by_dp_ns: int | None
    over: Literal["phase", "step"] = "phase"
    theory_at_measured_times: float | None = None
    phase_ns: int | None = None


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Mean work of a stage for one micro-batch; `weight_ns`, part of `backward_ns`, if it is apart.

    `work_ns` is all of its forward and backward work in a step.
    """

    stage: int
    forward_ns: int | None
    backward_ns: int | None
    weight_ns: int | None
    work_ns: int


@dataclass(frozen=True, slots=True)
class PassResult:
    """One pass of the step that is drawn: a micro-batch through a stage, forward or backward.

    Times are since the phase began; `virtual_stage` counts over all ranks.
    """

    stage: int
    kind: str  # forward | backward | backward_input | backward_weight
    microbatch: int | None
    start_ns: int
    duration_ns: int
    virtual_stage: int | None = None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The pipeline of the run; `stages` and the counts are None where they cannot be told.

    `source` is what told stages and passes apart: the schedule's own ranges, or messages.
    `device_syncs` is how often a host waits for its whole device between messages, per step.
    """

    schedule: str | None
    stages: int | None
    virtual_stages: int | None
    microbatches: int | None
    stage_of_rank: dict[int, int]
    bubble: Bubble
    timeline: list[PassResult]
    stage_times: list[StageTimes] = field(default_factory=list)
    pipelines: int = 1
    source: str | None = None  # ranges | messages
    device_syncs: float | None = None


@dataclass(frozen=True, slots=True)
class Lateness:
    """How late each rank enters its collectives, rank x step."""

    ranks: list[int]
    steps: list[int]
    late_ns: list[list[int | None]]


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank the others wait for.

    `wait_caused_ns` is what its own pace costs the others, directly or through ranks that waited
    for it; `share_of_wait_pct` its share of all waiting in the run. `groups` are those it is late
    in.
    `persistent` tells whether that is so in most of the `steps`, or in a few; None with less than
    two. `cause` is what its mean step has more of than the others': host (idle until the host
    launches), compute, or None.
    """

    rank: int
    late_in_pct: float
    mean_late_ns: int
    wait_caused_ns: int
    share_of_wait_pct: float | None = None
    cause: str | None = None  # host | compute
    groups: list[str] = field(default_factory=list)
    late_steps: int | None = None
    steps: int | None = None
    persistent: bool | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to change, with its evidence and what it would gain."""

    id: str
    severity: Literal["high", "medium", "low"]
    title: str
    evidence: dict[str, float | int | str | None]
    saving_ns_per_step: int | None
    advice: str
    links: list[str]


@dataclass(frozen=True)
class Analysis:
    """The whole result; every report renders this and nothing else."""

    schema: str
    tool: Tool
    source: Source
    run: RunFacts
    summary: Summary
    budgets: list[dict[str, Any]]
    comparison: dict[str, Any] | None
    notices: list[Notice]
    ranks: list[RankResult]
    groups: list[GroupResult]
    collectives: list[CollectiveResult]
    parallelism: Parallelism
    volumes: Volumes
    pipeline: Pipeline | None
    lateness: Lateness | None
    stragglers: list[Straggler]
    findings: list[Finding]
    topology: Topology | None = None
    contention: Contention | None = None

    @functools.cached_property
    def tables(self) -> Tables:
        """The result's lists as pandas frames."""
        from tracelens.model.tables import Tables

        return Tables(self)

    def to_json(self, *, indent: int | None = 1) -> str:
        """Serialise to the JSON document of docs/result.md."""
        from tracelens.model.document import encode

        return encode(self, indent=indent)

    @classmethod
    def from_json(cls, text: str | bytes) -> Analysis:
        """Read a saved document.

        Raises:
            InputError: If it is no TraceLens result, or one of a newer major version.
        """
        from tracelens.model.document import decode

        return decode(text)
