"""Who is which rank, and which communicators its ranks share, over one or several files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from command import run
from nsight_exports import KERNEL, Export, process, thread

import tracelens
from tracelens_nsight import NsightParser

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.result import Analysis
    from tracelens.model.trace import RankInfo


def info(export: Export, path: Path, name: str = "x.sqlite") -> RankInfo:
    (trace,) = export.traces(path / name)
    return trace.info


def codes(analysis: Analysis) -> set[str]:
    return {notice.code for notice in analysis.notices}


class TestSources:
    def test_a_mark_wins(self, tmp_path: Path) -> None:
        export = Export().kernel("gemm", 1_000).mark(rank=3, world=8).variable("RANK", "5")
        found = info(export, tmp_path, "run_rank6.sqlite")
        assert (found.rank, found.rank_source, found.world_size) == (3, "mark", 8)

    def test_a_registered_text_is_one_too(self, tmp_path: Path) -> None:
        """The Python package `nvtx` registers the texts of a domain."""
        export = Export().kernel("gemm", 1_000).mark(rank=3, world=8)
        mark = export.rows["NVTX_EVENTS"][-1]
        mark["textId"] = export.string(mark.pop("text"))
        found = info(export, tmp_path)
        assert (found.rank, found.rank_source, found.world_size) == (3, "mark", 8)

    def test_then_mpi(self, tmp_path: Path) -> None:
        export = Export().kernel("gemm", 1_000).variable("RANK", "5")
        export.add("MPI_RANKS", globalTid=thread(), rank=4)
        found = info(export, tmp_path, "run_rank6.sqlite")
        assert (found.rank, found.rank_source) == (4, "MPI_RANKS")

    @pytest.mark.parametrize(
        ("name", "value"),
        [("RANK", "5"), ("SLURM_PROCID", "5"), ("OMPI_COMM_WORLD_RANK", "5"), ("PMI_RANK", "5")],
    )
    def test_then_the_environment(self, name: str, value: str, tmp_path: Path) -> None:
        export = Export().kernel("gemm", 1_000).variable(name, value).variable("WORLD_SIZE", "8")
        found = info(export, tmp_path, "run_rank6.sqlite")
        assert (found.rank, found.rank_source, found.world_size) == (5, "environment", 8)

    @pytest.mark.parametrize("value", ["", "five", "-1", "1e3", "99999999999999999999"])
    def test_which_may_be_nonsense(self, value: str, tmp_path: Path) -> None:
        export = Export().kernel("gemm", 1_000).variable("RANK", value)
        assert info(export, tmp_path).rank is None

    def test_then_the_name_of_the_file(self, tmp_path: Path) -> None:
        found = info(Export().kernel("gemm", 1_000), tmp_path, "run_rank6.sqlite")
        assert (found.rank, found.rank_source) == (6, "file name")

    @pytest.mark.parametrize("name", ["report1.sqlite", "run_2.sqlite"])
    def test_numbers_of_reports_are_no_ranks(self, name: str, tmp_path: Path) -> None:
        assert info(Export().kernel("gemm", 1_000), tmp_path, name).rank is None

    def test_environment_and_name_are_about_one_process(self, tmp_path: Path) -> None:
        export = Export().kernel("a", 1_000).kernel("b", 1_000, pid=4001).variable("RANK", "1")
        found = [t.info.rank for t in export.traces(tmp_path / "run_rank1.sqlite")]
        assert found == [None, None], "torchrun under one nsys: this is the node's"

    @pytest.mark.parametrize("rank", [-1, "3", True, None, 1 << 40])
    def test_a_mark_that_is_none(self, rank: Any, tmp_path: Path) -> None:
        export = Export().kernel("gemm", 1_000).mark(rank=rank, groups=[{"ranks": "x"}, 3])
        assert info(export, tmp_path).rank is None

    def test_a_mark_describes_groups(self, tmp_path: Path) -> None:
        groups = [{"name": "1", "description": "mesh_tp", "ranks": [0, 1]}]
        (group,) = info(
            Export().kernel("gemm", 1_000).mark(rank=0, world=2, groups=groups), tmp_path
        ).process_groups
        assert (group.name, group.description, group.ranks) == ("1", "mesh_tp", (0, 1))


class TestOneFileOfSeveral:
    def node(self, *order: int) -> Export:
        """One process a GPU; the process ids are in another order than the devices."""
        export = Export()
        for gpu, pid in enumerate(order):
            export.kernel("gemm", 1_000 + gpu, 100 * (gpu + 1), pid=pid)
            export.gpu(gpu, "H100", pid=pid, ordinal=0)
        return export

    def test_ranks_are_in_order_of_the_devices(self, tmp_path: Path) -> None:
        self.node(4003, 4001, 4002).write(tmp_path / "x.sqlite")
        analysis = tracelens.analyze(tmp_path)
        assert [rank.devices[0].process for rank in analysis.ranks] == [4003, 4001, 4002]
        assert [file.ranks for file in analysis.source.files] == [[0, 1, 2]]
        assert analysis.source.files[0].rank is None
        assert codes(analysis) >= {"ranks-by-device"}

    @pytest.mark.parametrize("described", [True, False])
    def test_of_the_devices_they_work_on(self, described: bool, tmp_path: Path) -> None:
        """Under torchrun each process sees all GPUs; in containers none is described."""
        export = Export().kernel("gemm", 1_000, pid=4001, device=1)
        export.kernel("gemm", 1_000, pid=4002, device=0)
        for pid in (4001, 4002) if described else ():
            export.gpu(0, "H100", pid=pid).gpu(1, "H100", pid=pid)
        found = export.traces(tmp_path / "x.sqlite")
        assert [trace.info.process for trace in found] == [4002, 4001]

    def test_of_several_files_in_order_of_their_names(self, tmp_path: Path) -> None:
        self.node(4001, 4002).write(tmp_path / "b.sqlite")
        self.node(4003, 4004).write(tmp_path / "a.sqlite")
        analysis = tracelens.analyze(tmp_path)
        assert [rank.devices[0].process for rank in analysis.ranks] == [4003, 4004, 4001, 4002]
        assert [file.ranks for file in analysis.source.files] == [[0, 1], [2, 3]]

    def test_marks_may_name_some(self, tmp_path: Path) -> None:
        export = self.node(4001, 4002).mark(4002, rank=0)
        export.write(tmp_path / "x.sqlite")
        analysis = tracelens.analyze(tmp_path)
        assert [rank.devices[0].process for rank in analysis.ranks] == [4002, 4001]

    def test_a_communicator_of_all_says_them(self, tmp_path: Path) -> None:
        """NCCL's places go before devices and names of files; smaller communicators say nothing."""
        for name, pids, ranks in (("a", (4001, 4002), (3, 1)), ("b", (4003, 4004), (0, 2))):
            export = self.node(*pids)
            for pid, rank in zip(pids, ranks, strict=True):
                export.call("ncclCommInitRank", 10, pid=pid, comm=7, nranks=4, rank=rank)
                export.call("ncclCommInitRank", 20, pid=pid, comm=8, nranks=2, rank=pid % 2)
            export.write(tmp_path / f"{name}.sqlite")
        analysis = tracelens.analyze(tmp_path)
        assert [rank.devices[0].process for rank in analysis.ranks] == [4003, 4002, 4004, 4001]
        (said,) = [n for n in analysis.notices if n.code == "ranks-by-communicator"]
        assert "4 processes without a rank taken for ranks 0-3" in said.message
        assert not codes(analysis) & {"ranks-by-device", "rank-unknown"}

    @pytest.mark.parametrize(
        ("size", "ranks", "mark"), [(3, (0, 1), None), (2, (1, 1), None), (2, (1, 0), 0)]
    )
    def test_unless_it_does_not_fit(
        self, size: int, ranks: tuple[int, int], mark: int | None, tmp_path: Path
    ) -> None:
        """It has members elsewhere, says one place twice, or a mark contradicts it."""
        export = self.node(4001, 4002)
        for pid, rank in zip((4001, 4002), ranks, strict=True):
            export.call("ncclCommInitRank", 10, pid=pid, comm=7, nranks=size, rank=rank)
        if mark is not None:
            export.mark(4001, rank=mark)
        export.write(tmp_path / "x.sqlite")
        analysis = tracelens.analyze(tmp_path)
        assert [rank.devices[0].process for rank in analysis.ranks] == [4001, 4002]
        assert codes(analysis) >= {"ranks-by-device"}

    def test_two_may_say_the_same(self, tmp_path: Path) -> None:
        export = self.node(4001, 4002).mark(4001, rank=0, world=2).mark(4002, rank=0, world=2)
        export.write(tmp_path / "x.sqlite")
        notices = tracelens.analyze(tmp_path).notices
        (said,) = [n.message for n in notices if n.code == "duplicate-rank"]
        one, other = "process 4001 of x.sqlite", "process 4002 of x.sqlite"
        assert f"in 2 traces that are no cycles of one process ({one}, {other})" in said
        assert f"only {one} is in the means" in said

    def test_processes_without_gpu_work_are_no_ranks(self, tmp_path: Path) -> None:
        export = self.node(4001, 4002).runtime("cudaGetDeviceCount", 10, 20, pid=5000)
        export.range("loading", 10, 500, pid=5001)
        assert len(export.traces(tmp_path / "x.sqlite")) == 2

    def test_one_whose_device_events_are_all_lost_is_a_rank(self, tmp_path: Path) -> None:
        export = self.node(4001, 4002, 4003)
        export.collective("ncclAllReduce", 5_000, pid=4002, comm=7, size=64)
        export.rows[KERNEL] = [r for r in export.rows[KERNEL] if r["globalPid"] != process(4002)]
        export.write(tmp_path / "x.sqlite")
        analysis = tracelens.analyze(tmp_path)
        assert [len(rank.devices) for rank in analysis.ranks] == [1, 0, 1]
        assert analysis.run.ranks_partial == [1]
        assert [n.rank for n in analysis.notices if n.code == "device-unseen"] == [1]
        done = run("analyze", "x.sqlite", "-o", "r.json", cwd=tmp_path)
        assert "warning: x.sqlite, rank 1: signs of a device (" in done.err

    def test_inspect_names_them(self, tmp_path: Path) -> None:
        path = self.node(4001, 4002).step(3, 900, 2_000, 4001).write(tmp_path / "x.sqlite")
        facts = NsightParser().inspect(path)
        assert (facts.rank, facts.ranks, facts.processes) == (None, (), 2)
        assert (facts.steps, facts.device_events) == ((3,), 2)
        done = run("inspect", "x.sqlite", cwd=tmp_path)
        assert "2 processes, ranks ? · steps 3 · 2 device events" in done.out

    @pytest.mark.parametrize(
        ("names", "steps"),
        [
            (["Batch 3", "batch 4"], (3, 4)),
            (["ProfilerStep#7, op_id = 3", "step 1"], (7,)),
            (["train_step", "train_step"], None),
            (["stepping 3", "batch"], ()),
        ],
    )
    @pytest.mark.parametrize("registered", [False, True])
    def test_inspect_knows_the_steps_that_an_analysis_finds(
        self,
        names: list[str],
        steps: tuple[int, ...] | None,
        registered: bool,
        tmp_path: Path,
    ) -> None:
        export = Export().kernel("gemm", 1_000)
        for place, name in enumerate(names):
            export.range(name, 1_000 * place, 1_000 * place + 900, registered=registered)
        assert NsightParser().inspect(export.write(tmp_path / "x.sqlite")).steps == steps

    def test_and_their_ranks_if_marks_say_them(self, tmp_path: Path) -> None:
        export = self.node(4001, 4002).mark(4001, rank=5, world=8).mark(4002, rank=4, world=8)
        export.write(tmp_path / "x.sqlite")
        done = run("inspect", "x.sqlite", cwd=tmp_path)
        assert "2 processes, ranks 4-5 of 8 (mark)" in done.out
        assert "1 trace file, ranks 4-5 of 8; missing: 0-3, 6-7" in done.out

    def test_notices_name_the_rank_that_was_found(self, tmp_path: Path) -> None:
        export = Export(blobs=False)
        for pid in (4001, 4002):
            export.collective("ncclAllReduce", 5_000, pid=pid, comm=7, size=64)
        export.write(tmp_path / "x.sqlite")
        notices = tracelens.analyze(tmp_path).notices
        assert [n.rank for n in notices if n.code == "payloads-not-exported"] == [0, 1]


class TestCommunicators:
    """Two files of one rank each, that share communicators."""

    def pair(self, folder: Path, *, setup: bool = True, nccl: str = "2.27") -> Analysis:
        for rank in range(2):
            export = Export(nccl=nccl).mark(rank=rank, world=2)
            if setup:
                export.call("ncclCommInitRank", 10, comm=7, nranks=2, rank=1 - rank)
            for step in range(2):
                begin = 10_000 * (step + 1)
                export.step(step, begin, begin + 9_000)
                export.kernel("gemm", begin + 1_000 + 100 * rank)
                export.collective("ncclAllGather", begin + 5_000, comm=7, size=64)
                export.collective("ncclSend", begin + 7_000, comm=7, size=32, peer=rank,
                                  kernel="ncclDevKernel_SendRecv")  # fmt: skip
            export.write(folder / f"{rank}.sqlite")
        return tracelens.analyze(folder)

    def test_members_are_in_the_order_of_their_places(self, tmp_path: Path) -> None:
        (group,) = self.pair(tmp_path).groups
        assert (group.names, group.size, group.ranks) == (["0000000000000007"], 2, [1, 0])

    def test_or_of_their_ranks_if_it_was_made_before(self, tmp_path: Path) -> None:
        analysis = self.pair(tmp_path, setup=False)
        (group,) = analysis.groups
        assert (group.size, group.ranks) == (2, [0, 1])
        assert "group-size-seen" in codes(analysis)

    def test_sizes_follow_from_the_members(self, tmp_path: Path) -> None:
        found = {one.op: one for one in self.pair(tmp_path).collectives}
        gathered = found["all_gather"]
        assert gathered.bytes_per_step.message == 2 * 64
        assert gathered.bytes_per_step.wire == 64
        assert found["send"].bytes_per_step.message == 32

    def test_collectives_are_matched_by_the_communicator(self, tmp_path: Path) -> None:
        found = {one.op: one for one in self.pair(tmp_path).collectives}
        assert found["all_gather"].wait_ns is not None

    def test_the_only_communicator_of_each_is_one_before_2_25(self, tmp_path: Path) -> None:
        (group,) = self.pair(tmp_path, nccl="2.22").groups
        assert (group.size, group.ranks) == (2, [1, 0])

    def test_unless_it_has_more_members_than_places(self, tmp_path: Path) -> None:
        for rank in range(4):  # two pairs, each with one communicator of two
            export = Export(nccl="2.22").mark(rank=rank, world=4)
            export.call("ncclCommInitRank", 10, nranks=2, rank=rank % 2)
            export.collective("ncclAllReduce", 5_000, size=64)
            export.write(tmp_path / f"{rank}.sqlite")
        analysis = tracelens.analyze(tmp_path)
        assert {(group.size, group.ranks) for group in analysis.groups} == {(2, None)}
        assert all(one.wait_ns is None for one in analysis.collectives)

    def test_members_without_a_file_leave_the_list_unknown(self, tmp_path: Path) -> None:
        export = Export().mark(rank=0, world=2)
        export.call("ncclCommInitRank", 10, comm=7, nranks=2, rank=0)
        export.collective("ncclAllReduce", 5_000, comm=7, size=64)
        export.write(tmp_path / "0.sqlite")
        analysis = tracelens.analyze(tmp_path)
        (group,) = analysis.groups
        assert (group.size, group.ranks) == (2, None)
        assert analysis.collectives[0].message_bytes == 2 * 64

    def test_the_world_is_closed_if_no_communicator_reaches_beyond(self, tmp_path: Path) -> None:
        export = Export()
        for pid in (4001, 4002):
            export.call("ncclCommInitRank", 10, pid=pid, comm=7, nranks=2, rank=pid - 4001)
            export.collective("ncclAllReduce", 5_000, pid=pid, comm=7, size=64)
        export.write(tmp_path / "x.sqlite")
        assert tracelens.analyze(tmp_path).run.world_size == 2

    def test_and_open_if_one_does(self, tmp_path: Path) -> None:
        export = Export()
        for pid in (4001, 4002):
            export.call("ncclCommInitRank", 10, pid=pid, comm=7, nranks=4, rank=pid - 4001)
            export.collective("ncclAllReduce", 5_000, pid=pid, comm=7, size=64)
        export.write(tmp_path / "x.sqlite")
        assert tracelens.analyze(tmp_path).run.world_size is None


def test_global_ids_hold_process_and_thread() -> None:
    from tracelens_nsight import identifiers

    assert identifiers.pid_of(thread(4000, 77)) == 4000
    assert identifiers.process_of(thread(4000, 77)) == process(4000)
    assert identifiers.last_thread(process(4000)) == process(4001) - 1
