"""What is true of a simulated run: the answers an analysis of its files must find.

It is computed from the events themselves and what each is tagged with, not by the analysis: times
are true times, clocks are known, and nothing has to be inferred. docs/simulate.md lists the fields.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from tracelens.simulate.partition import Steps, covered, partition, steps_of
from tracelens.simulate.script import item_bytes
from tracelens.theory.collectives import full_elements, message_factor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracelens.simulate.options import Options
    from tracelens.simulate.recording import (
        Communication,
        DeviceEvent,
        Group,
        RecordedRank,
        Recording,
    )

SCHEMA = "tracelens-truth/1"
_COMPUTING = ("forward", "backward", "weight")
_MODEL_PARALLEL = ("TENSOR_", "CONTEXT_", "EXPERT_MODEL_")
"""Groups whose exposed communication is work of a stage, by how their description begins."""


def truth(recording: Recording, options: Options) -> dict[str, Any]:
    """Return the truth about a whole run, before any window cuts it."""
    steps = {rank.rank: steps_of(rank, options) for rank in recording.ranks}
    return {
        "schema": SCHEMA,
        "options": recording.options,
        "seed": recording.seed,
        "parameters": options.model.parameters,
        "groups": [_group(group) for group in recording.groups],
        "ranks": [_rank(rank, options, steps[rank.rank]) for rank in recording.ranks],
        "pipeline": _pipeline(recording, options, steps),
        "volumes": _volumes(recording, steps),
        "instances": instances(recording),
    }


def text(document: dict[str, Any]) -> str:
    """Return the document as JSON, one instance a line."""
    listed = document["instances"]
    rest = json.dumps({**document, "instances": []}, indent=1)
    lines = ",\n  ".join(json.dumps(one) for one in listed)
    return rest[: rest.rindex("[]")] + f"[\n  {lines}\n ]\n}}\n"


def _group(group: Group) -> dict[str, Any]:
    return {"name": group.name, "description": group.description, "ranks": list(group.ranks)}


def _rank(rank: RecordedRank, options: Options, steps: Steps) -> dict[str, Any]:
    machine = options.machine
    return {
        "rank": rank.rank,
        "host": rank.host,
        "stage": options.layout.place(rank.rank).pp,
        "clock": {"offset_ns": rank.clock.offset_ns, "drift_ppm": rank.clock.drift_ppm},
        "slow": machine.slow.get(rank.rank, 1.0),
        "slow_host": machine.slow_hosts.get(rank.rank, 1.0),
        "steps": partition(rank, steps),
    }


# instances ---------------------------------------------------------------------------------------


def instances(recording: Recording) -> list[dict[str, Any]]:
    """List every collective and message: who took part, waited for whom, and how long it took.

    Times are those of the kernels that carry it: a batch's kernel may carry several messages.
    """
    members: dict[int, list[tuple[int, DeviceEvent, Communication]]] = defaultdict(list)
    for rank in recording.ranks:
        for event in rank.device_events:
            for index in event.communications:
                one = rank.communications[index]
                members[one.instance].append((rank.rank, event, one))
    return [_instance(number, members[number], recording) for number in sorted(members)]


def _instance(
    number: int, members: list[tuple[int, DeviceEvent, Communication]], recording: Recording
) -> dict[str, Any]:
    first = members[0][2]
    last = max(event.start for _, event, _ in members)
    group = recording.groups[first.group]
    size = len(group.ranks)
    elements = full_elements(first.op, first.in_elems, first.out_elems, size) or 0
    message = first.op in ("send", "recv")
    return {
        "instance": number,
        "op": "message" if message else first.op,
        "group": group.name,
        "seq": None if message else first.seq,
        "bytes": elements * item_bytes(first.dtype),
        "last_arrival_ns": last,
        "transfer_ns": max(event.end for _, event, _ in members) - last,
        "members": [
            {
                "rank": rank,
                **({"op": one.op} if message else {}),
                "start_ns": event.start,
                "end_ns": event.end,
                "wait_ns": last - event.start,
                "transfer_ns": event.end - last,
            }
            for rank, event, one in members
        ],
    }


# pipeline ----------------------------------------------------------------------------------------


def _pipeline(
    recording: Recording, options: Options, steps: dict[int, Steps]
) -> dict[str, Any] | None:
    """Return stages, schedule and the bubble as docs/attribution.md defines it."""
    if options.layout.pp == 1:
        return None
    by_rank: dict[int, float] = {}
    phases = []
    for chain in _chains(recording):
        worked: dict[int, int] = dict.fromkeys(chain, 0)
        phase = 0
        for place in range(options.steps):
            low, high = _phase(chain, steps, place)
            phase += high - low
            for rank in chain:
                events = steps[rank].events[place]
                worked[rank] += covered(_work(recording.ranks[rank], events, recording.groups))
        phases.append(phase)
        by_rank |= {rank: 1 - work / phase for rank, work in worked.items()}
    return {
        "schedule": options.schedule,
        "stages": options.layout.pp,
        "virtual_stages": options.virtual_stages,
        "micro_batches": options.micro_batches,
        "stage_of_rank": {r.rank: options.layout.place(r.rank).pp for r in recording.ranks},
        "phase_ns": round(sum(phases) / len(phases) / options.steps),
        "bubble": {
            "overall": sum(by_rank.values()) / len(by_rank),
            "by_rank": dict(sorted(by_rank.items())),
        },
    }


def _chains(recording: Recording) -> Iterator[tuple[int, ...]]:
    for group in recording.groups:
        if group.description.startswith("PIPELINE_"):
            yield group.ranks


def _phase(chain: Sequence[int], steps: dict[int, Steps], place: int) -> tuple[int, int]:
    """Return the first start and last end of a pass's kernels over all stages of a pipeline."""
    spans = [
        (event.start, event.end)
        for rank in chain
        for event in steps[rank].events[place]
        if event.part in _COMPUTING and event.kind == "kernel" and not event.communications
    ]
    return min(start for start, _ in spans), max(end for _, end in spans)


def _work(
    rank: RecordedRank, events: Sequence[DeviceEvent], groups: Sequence[Group]
) -> Iterator[tuple[int, int]]:
    """Yield forward and backward kernels, and model-parallel communication within them."""
    for event in events:
        if event.part not in _COMPUTING or event.kind != "kernel":
            continue
        if event.communications:
            group = groups[rank.communications[event.communications[0]].group]
            if not group.description.startswith(_MODEL_PARALLEL):
                continue
        yield event.start, event.end


# volumes -----------------------------------------------------------------------------------------


def _volumes(recording: Recording, steps: dict[int, Steps]) -> list[dict[str, Any]]:
    """Sum what each rank launches in one step, per kind of group, operation and purpose."""
    found: dict[tuple[int, str, str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for rank in recording.ranks:
        for event in steps[rank.rank].events[0]:
            for one in (rank.communications[index] for index in event.communications):
                group = recording.groups[one.group]
                size = len(group.ranks)
                full = full_elements(one.op, one.in_elems, one.out_elems, size) or 0
                key = (rank.rank, group.description, one.op, one.dtype, event.part)
                found[key][0] += 1
                found[key][1] += full
    return [
        {
            "rank": rank,
            "group": description,
            "op": op,
            "dtype": dtype,
            "part": part,
            "calls": calls,
            "elements": elements,
            "message_bytes": message_factor(op) * elements * item_bytes(dtype),
        }
        for (rank, description, op, dtype, part), (calls, elements) in sorted(found.items())
    ]
