"""Every notice TraceLens can give: code, level and message in one place.

A notice names the file or rank, what was found, how many, and what it does to the numbers. Each
code has its section in docs/messages.md; a test holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.model.result import Level, Notice


@dataclass(frozen=True, slots=True)
class NoticeKind:
    """One kind of notice; the template's fields are given to `notice` by name."""

    level: Level
    template: str


NOTICES: dict[str, NoticeKind] = {
    "truncated-file": NoticeKind(
        "warning",
        "the file ends early ({where}); what was read is kept, sums of rank {who} are lower bounds",
    ),
    "damaged-events": NoticeKind(
        "warning",
        "{count} damaged event{s}, the first at byte {where}: {repaired} repaired, "
        "{skipped} skipped; {device}",
    ),
    "metadata-cut": NoticeKind(
        "warning",
        "the file ends behind its events, inside the metadata: no event is lost, but facts about "
        "the run (rank, groups, devices) may be",
    ),
    "several-traces": NoticeKind(
        "info", "the file holds {count} traces, one after the other; each is read by itself"
    ),
    "several-writers": NoticeKind(
        "warning",
        "several processes wrote into this file at once: in {count} place{s} one's text begins "
        "inside the other's; what could be told apart is kept, sums are lower bounds",
    ),
    "several-processes": NoticeKind(
        "warning",
        "the trace holds events of {count} processes: each is shown as a rank of its own, here "
        "process {process}{guess}",
    ),
    "unknown-categories": NoticeKind(
        "info",
        "{count} event{s} of unknown categories ({names}) left out; nothing says that they are a "
        "device's",
    ),
    "unread-device-events": NoticeKind(
        "warning",
        "{count} event{s} of a device in a form TraceLens cannot attribute ({names}): in no "
        "number, sums are lower bounds",
    ),
    "device-unknown": NoticeKind(
        "warning",
        "{count} device event{s} that name no device, and there are several: left out, sums are "
        "lower bounds",
    ),
    "trailing-bytes": NoticeKind(
        "info", "{count} byte{s} after the end of {what} ignored; no number changes"
    ),
    "untimed-events": NoticeKind(
        "warning",
        "{count} device event{s} without a usable time ({reasons}): counted, but in no sum",
    ),
    "short-kernels": NoticeKind(
        "info",
        "{count} kernel{s} shorter than a microsecond, and the trace has whole microseconds: they "
        "are counted with no time",
    ),
    "repeated-events": NoticeKind(
        "info",
        "{count} device event{s}, collective{s} or range{s} in the file more than once: each "
        "counts once",
    ),
    "clipped-durations": NoticeKind(
        "warning",
        "{count} device event{s} that would last far beyond the next one on the same stream: ended "
        "where that one starts",
    ),
    "skipped-file": NoticeKind("info", "left out: {reason}"),
    "damaged-member": NoticeKind(
        "warning", "{reason}: what could be read of it is shown, but any number of it may be wrong"
    ),
    "foreign-trace": NoticeKind("warning", "left out: {reason}; it is counted as no rank"),
    "unreadable-file": NoticeKind("warning", "could not be read: {reason}; its rank is missing"),
    "simulated": NoticeKind(
        "info",
        "{count} file{s} written by a simulator, as said inside: times were computed, not measured",
    ),
    "rank-unknown": NoticeKind(
        "warning", "says no rank, neither inside nor in its name; it is shown as rank {rank}"
    ),
    "rank-conflict": NoticeKind(
        "info", "{others}, but the trace counts as rank {rank}: the more reliable source wins"
    ),
    "ranks-by-communicator": NoticeKind(
        "warning",
        "{count} process{es} without a rank taken for rank{s} {ranks}, by the places in a "
        "communicator of all that are here: right if no other process belongs to the run",
    ),
    "ranks-by-device": NoticeKind(
        "warning",
        "says no ranks: its {count} processes are taken for ranks {ranks}, in order of their "
        "devices (and files in order of their names)",
    ),
    "duplicate-rank": NoticeKind(
        "warning",
        "rank {rank} is in {count} {what} that are no cycles of one process ({names}); they are "
        "shown apart, and only {kept} is in the means",
    ),
    "missing-ranks": NoticeKind(
        "warning",
        "no trace for {count} of {world} ranks ({ranks}); means are over the ranks that are there",
    ),
    "world-size-conflict": NoticeKind(
        "warning", "the files disagree on the world size ({sizes}); {chosen} is used"
    ),
    "different-times": NoticeKind(
        "warning",
        "the ranks were recorded {minutes} minutes apart: they look like ranks of different runs, "
        "and nothing across them means anything; give one run at a time",
    ),
    "no-steps": NoticeKind(
        "warning",
        "no step marks (ProfilerStep#N or a repeating range): the whole trace is one window, "
        "so there are no per-step numbers; {hint}",
    ),
    "before-first-step": NoticeKind(
        "info",
        "{count} device event{s} launched before the first profiled step (while the device lagged "
        "behind the host): in the totals, in no step",
    ),
    "incomplete-steps": NoticeKind(
        "warning",
        "{count} step{s} cut or without all device records and times: out of means and of the "
        "comparison with theory",
    ),
    "unended-steps": NoticeKind(
        "warning",
        "{count} step mark{s} without a usable duration (step {steps}): each ends where the next "
        "one begins, the last with the trace, and is no complete step",
    ),
    "unmarked-steps": NoticeKind(
        "warning",
        "in {count} place{s} time without a step mark lies before a later step (behind step "
        "{steps}): what was launched there counts to the step before, which is no complete one",
    ),
    "untimed-host-events": NoticeKind(
        "warning",
        "{count} host event{s} without a usable time ({kinds}): what they launched or named is not "
        "known, and the operator time of a CPU run is a lower bound",
    ),
    "first-step-slow": NoticeKind(
        "info",
        "the first profiled step takes more than 1.2 x the median (warm-up, lazy set-up); it is "
        "shown, but left out of means",
    ),
    "lost-device-records": NoticeKind(
        "warning",
        "{count} launch{es} without a device record, and no other notice says why (the profiler's "
        "buffer was full, it stopped too early, or a part of the file is missing); sums of rank "
        "{who} are lower bounds",
    ),
    "reported-device-loss": NoticeKind(
        "warning",
        "the profiler itself reports that it lost {some} device events, and no launch shows which; "
        "sums of rank {who} are lower bounds",
    ),
    "reported-range-loss": NoticeKind(
        "warning",
        "the profiler itself reports that it lost {some} ranges: steps, sizes and groups they "
        "would have told are missing, times of the device are not affected",
    ),
    "reported-counter-loss": NoticeKind(
        "info",
        "the profiler itself reports that it lost {some} samples of counters: what links and "
        "network cards carried is unknown where too few are left",
    ),
    "bytes-unknown": NoticeKind(
        "warning",
        "the size of {count} of {calls} collective calls in complete steps is unknown ({why}); no "
        "ratio to theory is complete without them",
    ),
    "bytes-unknown-outside-steps": NoticeKind(
        "info",
        "the size of {count} collective call{s} outside complete steps is unknown ({why}); no "
        "number per step changes",
    ),
    "selected-ranks": NoticeKind("info", "only ranks {ranks} were analysed, as asked for"),
    "layout-mismatch": NoticeKind(
        "warning",
        "the layout given ({layout}) makes {product} ranks, the traces say {world}; sizes as given "
        "are shown",
    ),
    "layout-contradicted": NoticeKind(
        "warning",
        "--layout says {name} {given}, but the groups in the traces have {found} ranks; the size "
        "as given is shown",
    ),
    "dtype-contradicted": NoticeKind(
        "warning",
        "--dtype says {dtype}, but gradients and parameters travel in elements of {found} bytes; "
        "bytes are predicted for {dtype}, ratios to theory count elements",
    ),
    "stage-contradicted": NoticeKind(
        "warning",
        "--layout says ZeRO stage {stage}, which does not send this traffic; what the traffic "
        "shows is taken",
    ),
    "group-guessed": NoticeKind(
        "info",
        "the process group of {count} call{s} is not recorded; it was concluded from size ratios "
        "and from the kind of call",
    ),
    "group-size-seen": NoticeKind(
        "info",
        "the size of {count} communicator{s} is not recorded (made before the recording): it is "
        "the number of ranks whose calls name it",
    ),
    "type-concluded": NoticeKind(
        "info",
        "the type of {count} call{s} is not recorded, only bytes; the size of their elements is "
        "the one with which they gather what is reduced",
    ),
    "cpu-run": NoticeKind(
        "info",
        "CPU run: no device events, so compute is operator time of the threads and "
        "communication is the backend's own ranges; times depend on how busy the host was",
    ),
    "no-device-events": NoticeKind(
        "warning", "no device event and no collective was recorded; there is nothing to attribute"
    ),
    "several-devices": NoticeKind(
        "info", "one process drives {count} devices: each is a timeline of its own"
    ),
    "cuda-graphs": NoticeKind(
        "info",
        "{count} communication kernel{s} inside CUDA graphs: known by name only, sizes are unknown",
    ),
    "steps-differ": NoticeKind(
        "warning",
        "the ranks recorded different steps ({steps}); per-step rows cover each rank's own",
    ),
    "clocks-aligned": NoticeKind(
        "info",
        "clocks were aligned on the ends of matched collectives: offsets up to {largest} us"
        "{drift}; after that ends agree within {median} us (median) and {high} us (95 %)",
    ),
    "clocks-apart": NoticeKind(
        "info",
        "the ranks fall into {count} sets without a common collective: times compare within a set",
    ),
    "mixed-runs": NoticeKind(
        "warning",
        "{others} cannot be of one run with {first}: {why}; no collective is matched between them",
    ),
    "clock-undated": NoticeKind(
        "warning",
        "the clocks of some traces say the date and those of others do not: nothing shows whether "
        "{others} ran with {first}, and no collective is matched between them",
    ),
    "uncertain-matches": NoticeKind(
        "warning",
        "{count} of {matched} matched collectives could be told from their neighbours neither by "
        "number nor by size nor by time: their waiting may be that of other calls",
    ),
    "implausible-matches": NoticeKind(
        "warning",
        "{count} matched collective{s} ended on one rank before another had entered: the match is "
        "wrong, and the time is not split into waiting and transfer",
    ),
    "wait-unknown": NoticeKind(
        "info",
        "no collective could be matched across ranks (it takes the traces of two ranks of a group, "
        "with device times), so waiting and transfer are not told apart",
    ),
    "members-missing": NoticeKind(
        "warning",
        "{count} matched collective{s} in groups of which some members have no whole trace: the "
        "last arrival may be one of theirs, so waiting and bandwidth are lower bounds there, and "
        "blame may fall on the wrong rank",
    ),
    "wait-lower-bound": NoticeKind(
        "info",
        "{count} matched collective{s} with members whose call is in no trace: the last arrival "
        "may be one of theirs, so waiting is a lower bound there",
    ),
    "groups-contradict": NoticeKind(
        "warning",
        "the process groups of the ranks contradict each other ({how}): they look like ranks of "
        "different runs, and nothing across them means anything; give one run at a time",
    ),
    "host-shared": NoticeKind(
        "info",
        "{count} ranks name the host {host}, but too many use the same device there: several "
        "machines share the name (containers do), so it tells no node; give --gpus-per-node",
    ),
    "nodes-from-devices": NoticeKind(
        "info",
        "no host name tells nodes apart: rank r drives device r modulo {size}, so each {size} "
        "consecutive ranks are taken for one node ({nodes} in all); --gpus-per-node overrides that",
    ),
    "nodes-disagree": NoticeKind(
        "warning",
        "--gpus-per-node {size} puts ranks of different hosts on one node ({count} node{s}, the "
        "first with {hosts}); nodes are as given",
    ),
    "payloads-not-exported": NoticeKind(
        "warning",
        "{count} NCCL call{s} whose sizes were recorded but not exported: `nsys export -t sqlite "
        "--include-blobs=true --include-json=true -f true X.nsys-rep` brings them, without "
        "recording again",
    ),
    "payloads-unread": NoticeKind(
        "warning",
        "{count} NCCL call{s} with a payload that is damaged, or of a form TraceLens does not "
        "know: their sizes are unknown",
    ),
    "opaque-graphs": NoticeKind(
        "warning",
        "{count} CUDA graph launch{es} recorded without their contents ({busy} ms): counted as "
        "compute, whatever ran in them; record with `--cuda-graph-trace=node`",
    ),
    "nccl-trace-unread": NoticeKind(
        "warning",
        "{count} NCCL call{s} of advanced tracing (`-t nccl`) whose details are not in the export, "
        "or in words that TraceLens does not know: their sizes are unknown; `nsys export -t sqlite "
        "--include-blobs=true --include-json=true -f true X.nsys-rep` brings the details",
    ),
    "device-unseen": NoticeKind(
        "warning",
        "signs of a device ({found}), but no event of one has a usable time: times of this rank "
        "are unknown, and the host's do not stand for them",
    ),
    "link-samples-unassigned": NoticeKind(
        "info",
        "the links of GPUs were sampled, but nothing says which GPU is this rank's (containers "
        "hide it): how busy its links were is unknown",
    ),
    "no-device-time": NoticeKind(
        "info", "{count} recorded collective{s} without device time; the bytes are counted"
    ),
}


def notice(
    code: str,
    *,
    file: str | None = None,
    rank: int | None = None,
    count: int | None = None,
    **values: object,
) -> Notice:
    """Build a notice from its template.

    Raises:
        KeyError: If the code or a field of the template is unknown (a bug, caught by tests).
    """
    kind = NOTICES[code]
    plural = {"s": "" if count == 1 else "s", "es": "" if count == 1 else "es"}
    shown = f"{count:,}" if count is not None else ""
    fields = {"count": shown, "rank": rank, **plural, **values}
    # Names from a trace may hold line breaks; a notice is one line.
    message = " ".join(kind.template.format(**fields).splitlines())
    return Notice(code, kind.level, message, file, rank, count)
