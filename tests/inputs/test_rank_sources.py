"""Whose rank a file is: what it says inside, then the facts beside it, then its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builders import Literally
from standard_run import codes, is_standard, rank, rank_of, said, write_ranks

import tracelens
from tracelens.file_names import rank_in_name
from tracelens.listing import list_files


def beside(path: Path, text: str | None = None, **facts: Any) -> Path:
    """Write the file of facts beside a trace."""
    named = path.with_name(f"{path.name}.tracelens.json")
    named.write_text(json.dumps(facts) if text is None else text)
    return path


# The rank inside, beside and in the name; what counts, who says so, who says otherwise.
SAID = [
    (3, None, None, 3, "distributedInfo", None),
    (None, 3, None, 3, "sidecar", None),
    (None, None, 3, 3, "file name", None),
    (3, 3, 3, 3, "distributedInfo", None),
    (3, 5, None, 3, "distributedInfo", "the sidecar says 5"),
    (3, None, 5, 3, "distributedInfo", "the file name says 5"),
    (3, 5, 6, 3, "distributedInfo", "the sidecar says 5 and the file name says 6"),
    (3, 3, 6, 3, "distributedInfo", "the file name says 6"),
    (None, 3, 6, 3, "sidecar", "the file name says 6"),
    (0, 5, None, 0, "distributedInfo", "the sidecar says 5"),
    (None, 0, 1, 0, "sidecar", "the file name says 1"),
    (None, None, None, 0, None, None),
]  # fmt: skip


@pytest.mark.parametrize(("inside", "next_to", "named", "counts", "source", "others"), SAID)
def test_who_decides(
    inside: int | None,
    next_to: int | None,
    named: int | None,
    counts: int,
    source: str | None,
    others: str | None,
    tmp_path: Path,
) -> None:
    path = rank(inside, 8).write(tmp_path / f"{'trace' if named is None else f'rank{named}'}.json")
    if next_to is not None:
        beside(path, rank=next_to)
    result = tracelens.analyze(tmp_path)
    assert [one.rank for one in result.ranks] == [counts]
    (facts,) = [file.facts for file in list_files([tmp_path]) if file.facts is not None]
    assert (facts.rank, facts.rank_source) == (None if source is None else counts, source)
    assert facts.note == others
    assert ("rank-unknown" in codes(result)) == (source is None)
    if others is None:
        assert "rank-conflict" not in codes(result)
    else:
        assert f"{others}, but the trace counts as rank {counts}" in said(result, "rank-conflict")


def test_a_run_known_by_its_sidecars_alone(tmp_path: Path) -> None:
    for number in (0, 1):
        path = rank(None, pid=4000 + number).write(tmp_path / f"{'ba'[number]}.json")
        beside(path, rank=number, world_size=2, host=f"gpu-a{number}", password="hunter2")
    result = tracelens.analyze(tmp_path)
    is_standard(result)
    assert [one.files for one in result.ranks] == [["b.json"], ["a.json"]]
    assert result.run.world_size == 2
    assert result.run.hosts == ["gpu-a0", "gpu-a1"]
    assert "hunter2" not in result.to_json()


BROKEN = [
    "", "{", "[]", "3", '{"rank": "3"}', '{"rank": -1}', '{"rank": 1e3}', '{"rank": 2097152}',
    '{"rank": true}', '{"rank": null}', "[" * 100_000, "\x00\xff", '{"rank": 99999999999999999999}',
]  # fmt: skip


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
def test_a_sidecar_that_says_nothing_usable(text: str, tmp_path: Path) -> None:
    write_ranks(tmp_path)
    beside(tmp_path / "rank1.json", text)
    is_standard(tracelens.analyze(tmp_path))
    beside(rank(None, 2, pid=4001).write(tmp_path / "rank1.json"), text)
    is_standard(tracelens.analyze(tmp_path))


def test_two_cycles_of_a_rank_known_by_sidecars(tmp_path: Path) -> None:
    for cycle in (0, 1):
        path = rank(None, at=10_000 * cycle).write(tmp_path / f"cycle{cycle}.json")
        beside(path, rank=5, world_size=6)
    result = tracelens.analyze(tmp_path)
    (one,) = result.ranks
    assert (one.rank, len(one.files), len(one.devices[0].steps)) == (5, 2, 4)
    assert result.run.ranks_duplicated == []


def test_a_folders_name_decides_last_and_contradicts_nobody(tmp_path: Path) -> None:
    for number in (0, 1):
        folder = tmp_path / f"rank{1 - number}"
        folder.mkdir()
        rank(number).write(folder / "trace.json")
    result = tracelens.analyze(tmp_path)
    is_standard(result)
    assert "rank-conflict" not in codes(result)


NAMES = {
    "local_rank0.json": None,
    "node1_local_rank3.json": None,
    "node3_rank5.json": 5,
    "local_rank1_rank9.json": 9,
    "tp_rank_1-pp_rank_2.json": None,
    "tp_rank_1-pp_rank_2-rank_6.json": 6,
    "global_rank7.json": 7,
    "ddp_rank2.json": 2,
    "rank20240115.json": None,
    "rank3_of_8.json": 3,
    "ranking4.json": None,
    "a.r12.json": 12,
    "exp-r2-rank4.json": 2,
}


@pytest.mark.parametrize(("name", "number"), NAMES.items())
def test_numbers_in_names(name: str, number: int | None) -> None:
    assert rank_in_name(Path("run", name)) == number


# claims that cannot be ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1 << 62, 10**12, (1 << 20) + 1, -1, 0, "many", 2.5])
def test_a_world_that_cannot_be(size: Any, tmp_path: Path) -> None:
    """No list of a trillion missing ranks is made."""
    for number in (0, 1):
        made = rank(number)
        info = made.header()["distributedInfo"] | {"world_size": size}
        made.keys = {"distributedInfo": info}
        made.write(tmp_path / f"rank{number}.json")
    result = tracelens.analyze(tmp_path)
    is_standard(result)
    assert result.run.world_size is None


@pytest.mark.parametrize("number", [1 << 62, -1, "one", 1.5, Literally("1e400"), None, [1]])
def test_a_rank_that_cannot_be(number: Any, tmp_path: Path) -> None:
    write_ranks(tmp_path)
    made = rank(1)
    info = made.header()["distributedInfo"]
    text = number if isinstance(number, Literally) else json.dumps(number)
    made.keys = {
        "distributedInfo": Literally(json.dumps(info).replace('"rank": 1', f'"rank": {text}'))
    }
    made.write(tmp_path / "rank1.json")
    result = tracelens.analyze(tmp_path)
    assert rank_of(result, 1).files == ["rank1.json"], "its name says it"
    is_standard(result)
