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
        "{count} event{s} not valid JSON, the first at byte {where}: {repaired} repaired, "
        "{skipped} skipped; {device}",
    ),
    "trailing-bytes": NoticeKind(
        "info", "{count} byte{s} after the end of the compressed data ignored; no number changes"
    ),
    "untimed-events": NoticeKind(
        "warning",
        "{count} device event{s} without a usable time ({reasons}): counted, but in no sum",
    ),
    "skipped-file": NoticeKind("info", "left out: {reason}"),
    "unreadable-file": NoticeKind("warning", "could not be read: {reason}; its rank is missing"),
    "rank-unknown": NoticeKind(
        "warning", "says no rank, neither inside nor in its name; it is shown as rank {rank}"
    ),
    "duplicate-rank": NoticeKind(
        "warning",
        "rank {rank} is in {count} files that are no cycles of one process ({names}); they are "
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
        "so there are no per-step numbers; call `prof.step()` once per optimizer step",
    ),
    "before-first-step": NoticeKind(
        "info",
        "{count} device event{s} launched before the first profiled step (while the device lagged "
        "behind the host): in the totals, in no step",
    ),
    "incomplete-steps": NoticeKind(
        "warning",
        "{count} step{s} cut or without all device records: out of means and of the comparison "
        "with theory",
    ),
    "first-step-slow": NoticeKind(
        "info",
        "the first profiled step takes more than 1.2 x the median (warm-up, lazy set-up); it is "
        "shown, but left out of means",
    ),
    "lost-device-records": NoticeKind(
        "warning",
        "{count} launch{es} without a device record (the profiler's buffer was full, or it stopped "
        "too early); sums of rank {who} are lower bounds",
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
    "group-guessed": NoticeKind(
        "info",
        "the process group of {count} call{s} is not recorded; it was concluded from size ratios "
        "and from the kind of call",
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
    "wait-lower-bound": NoticeKind(
        "info",
        "{count} matched collective{s} with members whose call is in no trace: the last arrival "
        "may be one of theirs, so waiting is a lower bound there",
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
    return Notice(code, kind.level, kind.template.format(**fields), file, rank, count)
