"""Strategies read from synthetic traffic: each rule, its near misses, and what stays unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import pytest
from builders import Trace

from tracelens import analyze
from tracelens.operations_table import MergedGroup
from tracelens.parallelism import infer
from tracelens.strategy.inference import Given, Inference
from tracelens.traffic import Call, GroupTraffic, Traffic

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PSI = 1_000_000
FORWARD = "DistributedDataParallel.forward"


def group(index: int, size: int, role: str = "unknown") -> MergedGroup:
    return MergedGroup(index, set(), None, size, tuple(range(size)), role)


def traffic_of(
    calls: Sequence[tuple[str, int] | tuple[str, int, str]],
    *,
    size: int = 8,
    index: int = 0,
    role: str = "unknown",
    by_step: list[int] | None = None,
) -> GroupTraffic:
    """One group's step: (operation, elements[, range]) in launch order."""
    listed = [
        Call(call[0], call[1], launch, call[2] if len(call) == 3 else "")
        for launch, call in enumerate(calls, start=1)
    ]
    elements: dict[str, float] = {}
    for call in listed:
        elements[call.op] = elements.get(call.op, 0.0) + call.elements
    total = [round(sum(elements.values()))] * 3
    item_bytes = dict.fromkeys(elements, 2)
    return GroupTraffic(
        group(index, size, role), elements, listed, item_bytes, by_step=by_step or total
    )


def inferred(
    *groups: GroupTraffic, marks: dict[str, float] | None = None, given: Given | None = None
) -> Inference:
    return infer(Traffic(list(groups), pd.Series(dtype=object), marks or {}, 3), given or Given())


def multiple(found: Inference, which: int = -1) -> float:
    assert found.parameters is not None
    return found.schemes[which].message_elements / found.parameters


def reduces(*sizes: int) -> list[tuple[str, int]]:
    return [("all_reduce", size) for size in sizes]


class TestDistributedDataParallel:
    def test_one_all_reduce_a_gradient(self) -> None:
        found = inferred(traffic_of(reduces(600_000, 400_000)), marks={FORWARD: 1})
        assert (found.strategy, found.parameters, multiple(found)) == ("ddp", PSI, 2.0)
        assert found.confidence == "high"

    def test_equal_buckets_without_accumulation_are_not_taken_for_micro_batches(self) -> None:
        found = inferred(traffic_of(reduces(*[250_000] * 4)), marks={FORWARD: 1})
        assert found.parameters == PSI

    def test_accumulation_with_synchronisation_repeats_the_buckets(self) -> None:
        buckets = [600_000, 400_000]
        found = inferred(traffic_of(reduces(*buckets * 3)), marks={FORWARD: 3})
        assert (found.parameters, found.micro_batches, multiple(found)) == (PSI, 3, 6.0)

    def test_accumulation_without_synchronisation_reduces_once(self) -> None:
        found = inferred(traffic_of(reduces(600_000, 400_000, 1_000)), marks={FORWARD: 2})
        assert (found.parameters, found.micro_batches) == (1_001_000, 2)
        assert multiple(found) == 2.0

    @pytest.mark.parametrize("gathered", [27_000, 250_000, 500_000])
    def test_gathers_of_the_program_make_no_sharded_optimizer(self, gathered: int) -> None:
        """Features of a contrastive loss: 37 times less than gradients, or an even part of them."""
        calls = [("all_gather", gathered), *reduces(600_000, 400_000)]
        found = inferred(traffic_of(calls), marks={FORWARD: 1})
        assert (found.strategy, found.parameters, found.confidence) == ("ddp", PSI, "high")
        assert multiple(found) == 2.0
        silent = inferred(traffic_of(calls))
        assert (silent.strategy, silent.parameters) == (None, None)

    def test_without_ranges_confidence_is_less(self) -> None:
        found = inferred(traffic_of(reduces(PSI)))
        assert (found.strategy, found.framework, found.confidence) == ("ddp", None, "medium")
        assert found.micro_batches is None


class TestZeroOneAndTwo:
    def test_deepspeed_all_reduces_and_gathers(self) -> None:
        found = inferred(traffic_of([*reduces(500_000, 500_000), ("all_gather", PSI)]))
        assert (found.strategy, found.framework) == ("zero1-or-2", "deepspeed")
        assert (multiple(found, 0), multiple(found)) == (2.0, 3.0)

    @pytest.mark.parametrize("batches", [2, 4])
    def test_deepspeed_zero_2_repeats_reductions(self, batches: int) -> None:
        calls = [*reduces(*[PSI] * batches), ("all_gather", PSI)]
        found = inferred(traffic_of(calls))
        assert (found.strategy, found.micro_batches) == ("zero2", batches)
        assert multiple(found) == 2 * batches + 1

    def test_reductions_that_do_not_repeat_are_no_micro_batches(self) -> None:
        calls = [*reduces(500_000, 400_000, 100_000), ("all_gather", PSI // 40)]
        assert inferred(traffic_of(calls)).strategy is None

    def test_deepspeed_reduces_to_owners(self) -> None:
        calls = [*[("reduce", PSI // 8)] * 8, ("all_gather", PSI)]
        found = inferred(traffic_of(calls))
        assert found.framework == "deepspeed"
        assert multiple(found) == 2.0

    def test_a_gather_of_another_size_is_no_deepspeed(self) -> None:
        found = inferred(traffic_of([*reduces(PSI), ("all_gather", PSI // 3 * 2)]))
        assert found.strategy is None
        assert found.parameters is None

    def test_sharded_optimizer_scatters_then_gathers(self) -> None:
        calls = [("reduce_scatter", PSI // 2)] * 2 + [("all_gather", PSI // 2)] * 2
        found = inferred(traffic_of(calls))
        assert (found.strategy, found.framework) == ("zero1-or-2", "sharded-optimizer")
        assert multiple(found) == 2.0

    def test_zero_redundancy_optimizer_broadcasts(self) -> None:
        calls = [*reduces(PSI), *[("broadcast", PSI // 4)] * 4]
        marks = {FORWARD: 1.0, "Optimizer.step#ZeroRedundancyOptimizer.step": 1.0}
        found = inferred(traffic_of(calls), marks=marks)
        assert (found.strategy, found.parameter_broadcasts) == ("zero1", True)
        assert multiple(found) == 3.0

    def test_buffer_broadcasts_are_no_sharded_optimizer(self) -> None:
        found = inferred(traffic_of([*reduces(PSI), ("broadcast", 50_000)]), marks={FORWARD: 1})
        assert (found.strategy, found.parameter_broadcasts) == ("ddp", False)

    def test_a_stage_the_user_gives_is_taken(self) -> None:
        calls = [*reduces(PSI), ("all_gather", PSI)]
        assert inferred(traffic_of(calls), given=Given(zero_stage=2)).strategy == "zero2"

    @pytest.mark.parametrize("stage", [0, 3])
    def test_a_stage_that_does_not_fit_is_said_and_not_taken(self, stage: int) -> None:
        calls = [*reduces(PSI), ("all_gather", PSI)]
        found = inferred(traffic_of(calls), given=Given(zero_stage=stage))
        assert found.strategy == "zero1-or-2"
        assert f"stage {stage}, given by --layout, does not fit this traffic" in found.evidence


FSDP2 = {"FSDP::root_pre_forward": 1.0, "FSDP::all_gather (l.0)": 2.0}
FSDP1 = {"FullyShardedDataParallel._pre_forward": 3.0}
ROOT = 100_000
UNIT = 450_000


def gathers(*units: tuple[int, str]) -> list[tuple[str, int, str]]:
    return [("all_gather", size, f"FSDP::all_gather{name}") for size, name in units]


def scatters(*units: tuple[int, str]) -> list[tuple[str, int, str]]:
    return [("reduce_scatter", size, f"FSDP::post_backward_reduce{name}") for size, name in units]


class TestFullyShardedDataParallel:
    root = (ROOT, "")
    first = (UNIT, " (l.0)")
    second = (UNIT, " (l.1)")

    def once(self, *, root_again: bool = False) -> list[tuple[str, int, str]]:
        again = [self.root] if root_again else []
        return [
            *gathers(self.root, self.first, self.second, *again, self.second, self.first),
            *scatters(self.second, self.first, self.root),
        ]

    def test_units_of_equal_size_and_a_kept_root(self) -> None:
        found = inferred(traffic_of(self.once()), marks=FSDP2)
        assert (found.strategy, found.framework, found.parameters) == ("zero3", "fsdp2", PSI)
        assert multiple(found) == pytest.approx(3 - ROOT / PSI)

    def test_a_root_that_reshards_too(self) -> None:
        found = inferred(traffic_of(self.once(root_again=True)), marks=FSDP2)
        assert found.micro_batches == 1
        assert multiple(found) == 3.0

    def test_accumulation_repeats_everything(self) -> None:
        marks = {**FSDP2, "FSDP::root_pre_forward": 2.0}
        found = inferred(traffic_of(self.once() * 2), marks=marks)
        assert (found.parameters, found.micro_batches) == (PSI, 2)
        assert multiple(found) == pytest.approx(2 * (3 - ROOT / PSI))

    def test_accumulation_that_reduces_once(self) -> None:
        calls = [*self.once()[:5], *self.once()]
        marks = {**FSDP2, "FSDP::root_pre_forward": 2.0}
        found = inferred(traffic_of(calls), marks=marks)
        assert found.parameters == PSI
        assert multiple(found) == pytest.approx(2 * (2 - ROOT / PSI) + 1)

    def test_kept_after_forward(self) -> None:
        calls = [*gathers(self.root, self.first, self.second)]
        calls += scatters(self.second, self.first, self.root)
        found = inferred(traffic_of(calls), marks=FSDP2)
        assert found.strategy == "fsdp-grad-op"
        assert (multiple(found, 0), multiple(found)) == (2.0, 2.0)

    @pytest.mark.parametrize("root", [UNIT, 3 * UNIT, 8 * UNIT])
    def test_a_root_may_hold_most_of_a_small_model(self, root: int) -> None:
        """An embedding of 80 % of the parameters: gathers are 1.2 Ψ, and nothing is kept else."""
        calls = [
            *gathers((root, ""), self.first, self.second, self.second, self.first),
            *scatters(self.second, self.first, (root, "")),
        ]
        found = inferred(traffic_of(calls), marks=FSDP2)
        psi = root + 2 * UNIT
        assert (found.strategy, found.parameters) == ("zero3", psi)
        assert multiple(found) == pytest.approx(3 - root / psi)

    @pytest.mark.parametrize("trained", [1000, UNIT])
    @pytest.mark.parametrize("again", [True, False])
    def test_frozen_units_are_gathered_and_never_reduced(
        self, trained: int, *, again: bool
    ) -> None:
        calls = gathers(self.root, self.first, self.second)
        calls += gathers(self.second, self.first) if again else []
        found = inferred(traffic_of([*calls, *scatters((trained, " (l.1)"))]), marks=FSDP2)
        assert (found.strategy, found.parameters) == ("zero3" if again else "fsdp-grad-op", PSI)
        gathered = 2 * PSI - ROOT if again else PSI
        assert multiple(found) == pytest.approx((gathered + trained) / PSI)
        assert f"{PSI - trained:,} of the parameters are frozen" in (found.schemes[-1].why or "")

    def test_replicas_of_frozen_units_are_not_reduced_either(self) -> None:
        calls = [*self.once()[:5], *scatters((UNIT, " (l.1)"))]
        replicas = traffic_of(reduces(UNIT // 4), size=2, index=1)
        found = inferred(traffic_of(calls, size=4), replicas, marks=FSDP2)
        assert found.strategy == "hsdp"
        sent = 2 * PSI - ROOT + UNIT + 2 * UNIT / 4
        assert multiple(found) == pytest.approx(sent / PSI)

    def test_units_that_travel_as_bytes_are_no_elements(self) -> None:
        traffic = traffic_of(self.once())
        traffic.item_bytes["all_gather"] = 1
        halved = [(op, size // 2, mark) for op, size, mark in scatters(self.first, self.root)]
        traffic.calls[-3:] = traffic_of(halved).calls
        traffic.elements["reduce_scatter"] = (UNIT + ROOT) / 2
        assert inferred(traffic, marks=FSDP2).parameters == (UNIT + ROOT) / 2

    def test_resharded_to_a_smaller_group(self) -> None:
        main = traffic_of(
            [
                *gathers(self.root, self.first, self.second),
                *scatters(self.second, self.first, self.root),
            ]
        )
        again = traffic_of(gathers(self.root, self.first, self.second), size=2, index=1)
        found = inferred(main, again, marks=FSDP2)
        assert found.strategy == "zero3"
        assert multiple(found) == 3.0
        assert found.traffic == [main, again]

    def test_fsdp1_has_no_names_but_a_root_of_its_own_size(self) -> None:
        plain = [(op, size) for op, size, _ in self.once()]
        found = inferred(traffic_of(plain), marks=FSDP1)
        assert (found.framework, found.parameters) == ("fsdp1", PSI)
        assert multiple(found) == pytest.approx(3 - ROOT / PSI)

    @pytest.mark.parametrize("roles", [("unknown", "unknown"), ("shard", "replicate")])
    def test_hybrid_sharding_by_the_size_of_the_second_groups_all_reduce(
        self, roles: tuple[str, str]
    ) -> None:
        main = traffic_of(self.once(), size=4, role=roles[0])
        replicas = traffic_of(reduces(PSI // 4), size=2, index=1, role=roles[1])
        found = inferred(main, replicas, marks=FSDP2)
        assert found.strategy == "hsdp"
        assert multiple(found) == pytest.approx(3 - ROOT / PSI + 2 / 4)

    def test_an_all_reduce_of_another_size_is_no_replica_group(self) -> None:
        main = traffic_of(self.once(), size=4)
        other = traffic_of(reduces(PSI // 3), size=2, index=1)
        assert inferred(main, other, marks=FSDP2).strategy == "zero3"


@pytest.mark.parametrize(
    "calls",
    [
        [("reduce_scatter", PSI), ("all_gather", PSI)],
        [("all_gather", PSI), ("all_gather", PSI), ("reduce_scatter", PSI)],
        [("all_reduce", PSI), ("all_gather", PSI)],
        [("all_reduce", PSI), ("broadcast", PSI)],
        [("all_reduce", PSI)],
    ],
)
def test_micro_batches_that_nothing_counts_are_unknown(calls: list[tuple[str, int]]) -> None:
    """Whatever is sent once a step is sent once, however many micro-batches there are."""
    found = inferred(traffic_of(calls))
    assert found.parameters == PSI
    assert found.micro_batches is None


class TestZeroThree:
    def test_gathers_before_reductions_without_fsdp_ranges(self) -> None:
        calls = [("all_gather", PSI // 2)] * 2 + [("reduce_scatter", PSI // 2)] * 2
        found = inferred(traffic_of(calls))
        assert (found.strategy, found.framework) == ("zero3", "deepspeed")
        assert [multiple(found, i) for i in range(3)] == [3.0, 2.0, 3.0]

    def test_more_gathers_than_gradients_ever_take_hide_the_parameters(self) -> None:
        calls = [*[("all_gather", PSI)] * 2, ("reduce_scatter", PSI // 100)]
        found = inferred(traffic_of(calls))
        assert (found.strategy, found.parameters, found.schemes) == ("zero3", None, [])
        assert "some are frozen" in found.evidence[-1]
        given = inferred(traffic_of(calls), given=Given(parameters=PSI))
        assert given.parameters == PSI

    def test_a_large_model_is_gathered_again(self) -> None:
        large = 2 * 10**9
        calls = [("all_gather", large), ("all_gather", large), ("reduce_scatter", large)]
        found = inferred(traffic_of(calls))
        # Defaults keep about half the reuse distance (5e8 elements) until backward.
        assert multiple(found, 1) == pytest.approx(3 - 0.25)


class TestUnknown:
    def test_nothing_to_see(self) -> None:
        found = inferred()
        assert (found.strategy, found.parameters, found.schemes) == (None, None, [])
        assert found.evidence

    def test_steps_that_differ_have_no_single_psi(self) -> None:
        main = traffic_of(reduces(PSI), by_step=[PSI, 2 * PSI, PSI])
        found = inferred(main, marks={FORWARD: 1})
        assert found.parameters is None
        assert found.schemes == []
        assert "differs from step to step" in found.evidence[0]

    def test_steps_that_differ_are_compared_if_the_user_gives_psi(self) -> None:
        main = traffic_of(reduces(PSI), by_step=[PSI, 2 * PSI, PSI])
        found = inferred(main, marks={FORWARD: 1}, given=Given(parameters=PSI))
        assert (found.parameters, found.parameters_confidence) == (PSI, "exact")

    def test_without_sizes_ranges_still_name_the_framework(self) -> None:
        silent = GroupTraffic(group(0, 4), {}, [], {}, unknown=12)
        found = inferred(silent, marks={FORWARD: 1})
        assert (found.strategy, found.parameters) == ("ddp", None)
        assert "record_shapes=True" in found.evidence[0]

    def test_model_parallel_groups_are_no_data_parallel_traffic(self) -> None:
        assert inferred(traffic_of(reduces(PSI), role="tp")).strategy is None


def test_a_map_of_used_parameters_is_no_gradient(tmp_path: Path) -> None:
    """`find_unused_parameters` reduces a number a tensor, here of 1000 tensors: 4 kB of int32."""
    for rank in (0, 1):
        trace = Trace(rank=rank, world=2)
        for number in range(3):
            at = 1000 * number
            trace.step(number, at, 1000).mark("DistributedDataParallel.forward", at + 50, 100)
            trace.kernel("gemm", at + 100, 300)
            trace.all_reduce(at + 500, 200, PSI)
            trace.all_reduce(at + 750, 20, 1000, dtype="Int")
        trace.write(tmp_path / f"rank{rank}.json")
    result = analyze(tmp_path)
    assert result.parallelism.parameters.count == PSI
    assert (result.volumes.verdict, result.volumes.per_step.multiple_of_parameters) == (
        "as expected",
        2.0,
    )
    assert result.volumes.per_step.other_message_bytes == 2 * 4 * 1000


def test_a_profiler_stepped_per_micro_batch_shows_no_half_model(tmp_path: Path) -> None:
    """Every other "step" only accumulates: the mean traffic would fit a model of half the size."""
    for rank in (0, 1):
        trace = Trace(rank=rank)
        for number in range(10, 14):
            at = 1000 * number
            trace.step(number, at, 1000).mark("DistributedDataParallel.forward", at + 50, 100)
            trace.kernel("gemm", at + 100, 300)
            if number % 2:
                trace.all_reduce(at + 500, 200, PSI)
        trace.write(tmp_path / f"rank{rank}.json")
    result = analyze(tmp_path)
    assert result.parallelism.parameters.count is None
    assert result.volumes.verdict == "unknown"
    assert f"({PSI:,}, {PSI:,}, 0, 0 elements)" in result.parallelism.evidence[0]
