"""Traces in a bucket: a real S3 server on this machine, and what can go wrong on the way."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("moto")
pytest.importorskip("s3fs")

import fsspec
import object_store
import s3fs
from command import run as run_command
from object_store import BUCKET, Door
from samples import SAMPLES
from standard_run import is_standard, rank

import tracelens
from tracelens import downloads, engine, remote
from tracelens.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    """Run the server, and let the environment name it and nothing else."""
    with (
        object_store.server() as server,
        object_store.door(server) as door,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name in object_store.UNSET:
            patch.delenv(name, raising=False)
            patch.delenv(name.lower(), raising=False)
        for name, value in object_store.environment(door.url).items():
            patch.setenv(name, value)
        yield door


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a run of two ranks, and what lies beside it."""
    folder = tmp_path_factory.mktemp("local") / "run"
    folder.mkdir()
    for number in (0, 1):
        rank(number).write(folder / f"rank{number}.json.gz")
    (folder / "notes.txt").write_text("no trace")
    (folder / "tracelens-report").mkdir()
    (folder / "tracelens-report" / "analysis.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def uploaded(door: Door, run: Path) -> Any:
    """Fill the bucket once."""
    system = s3fs.S3FileSystem(
        key="any",
        secret="any",
        endpoint_url=door.url,
        skip_instance_cache=True,
    )
    system.mkdir(BUCKET)
    object_store.upload(system, run, "run")
    return system


@pytest.fixture
def store(door: Door, uploaded: Any) -> Iterator[Door]:
    """Offer the bucket, with nothing wrong yet."""
    door.mend()
    yield door
    door.mend()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for temporary files, which must be empty in the end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def document(result: Any) -> dict[str, Any]:
    """Return a result without the place its traces came from."""
    found: dict[str, Any] = json.loads(result.to_json())
    del found["source"]["path"]
    return found


# the same as from a folder -----------------------------------------------------------------------


@pytest.mark.parametrize("address", ["run", "run/", "run/rank[01].json*", "r*"])
def test_folders_and_globs(store: Door, run: Path, address: str) -> None:
    result = tracelens.analyze(f"s3://{BUCKET}/{address}")
    is_standard(result)
    assert result.source.path == f"s3://{BUCKET}/{address}"
    if address == "run/":
        assert document(result) == document(tracelens.analyze(run))


def test_the_other_commands_take_addresses_too(store: Door, tmp_path: Path) -> None:
    done = run_command("inspect", f"s3://{BUCKET}/run", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert "2 trace files, ranks 0-1 of 2" in done.out
    assert list(tmp_path.iterdir()) == []
    examined, _ = engine.examine(f"s3://{BUCKET}/run")
    assert [one.rank for one in examined.ranks] == [0, 1]


def test_one_object(store: Door) -> None:
    result = tracelens.analyze(f"s3://{BUCKET}/run/rank1.json.gz")
    assert [one.rank for one in result.ranks] == [1]


def test_several_addresses_are_named_whole(store: Door) -> None:
    addresses = [f"s3://{BUCKET}/run/rank{number}.json.gz" for number in (0, 1)]
    result = tracelens.analyze([*addresses, addresses[0]])
    is_standard(result)
    assert sorted(file.path for file in result.source.files) == addresses
    assert store.reads.total() == 2, "the object named twice is read once"


def test_a_path_and_an_address(store: Door, run: Path) -> None:
    is_standard(tracelens.analyze([run / "rank0.json.gz", f"s3://{BUCKET}/run/rank1.json.gz"]))


def test_an_archive(store: Door, uploaded: Any, run: Path, tmp_path: Path) -> None:
    packed = shutil.make_archive(str(tmp_path / "run"), "zip", run)
    uploaded.pipe_file(f"{BUCKET}/packed/run.zip", Path(packed).read_bytes())
    result = tracelens.analyze(f"s3://{BUCKET}/packed/run.zip")
    is_standard(result)
    read = sorted(file.path for file in result.source.files if file.status == "complete")
    assert read == ["run.zip/rank0.json.gz", "run.zip/rank1.json.gz"]


def test_an_nsight_export_reads_as_the_local_one(store: Door, uploaded: Any) -> None:
    export = next((SAMPLES / "simulated-nsight-zero3-dp4").glob("*.sqlite"))
    uploaded.pipe_file(f"{BUCKET}/nsight/{export.name}", export.read_bytes())
    there = document(tracelens.analyze(f"s3://{BUCKET}/nsight/{export.name}"))
    assert there == document(tracelens.analyze(export))


def test_a_write_ahead_log_beside_an_export_is_seen(store: Door, uploaded: Any) -> None:
    export = next((SAMPLES / "simulated-nsight-zero3-dp4").glob("*.sqlite"))
    uploaded.pipe_file(f"{BUCKET}/open/x.sqlite", export.read_bytes())
    uploaded.pipe_file(f"{BUCKET}/open/x.sqlite-wal", b"changes")
    for address in ("open", "open/x.sqlite"):
        with pytest.raises(InputError, match=r"its write-ahead log x\.sqlite-wal holds changes"):
            tracelens.analyze(f"s3://{BUCKET}/{address}")


@pytest.mark.parametrize("address", ["told/a.json", "told/*.json"])
def test_the_facts_beside_a_trace_come_along(store: Door, uploaded: Any, address: str) -> None:
    trace = rank(None)
    uploaded.pipe_file(f"{BUCKET}/told/a.json", trace.bytes())
    uploaded.pipe_file(f"{BUCKET}/told/a.json.tracelens.json", b'{"rank": 5, "world_size": 8}')
    result = tracelens.analyze(f"s3://{BUCKET}/{address}")
    assert [one.rank for one in result.ranks] == [5]
    assert result.run.world_size == 8


def test_facts_that_cannot_be_had_are_not_guessed(store: Door, uploaded: Any, run: Path) -> None:
    uploaded.pipe_file(f"{BUCKET}/half/rank0.json.gz", (run / "rank0.json.gz").read_bytes())
    uploaded.pipe_file(f"{BUCKET}/half/rank1.json.gz", (run / "rank1.json.gz").read_bytes())
    uploaded.pipe_file(f"{BUCKET}/half/rank1.json.gz.tracelens.json", b"{}")
    store.faults[f"{BUCKET}/half/rank1.json.gz.tracelens.json"] = 403
    result = tracelens.analyze(f"s3://{BUCKET}/half/*.gz")
    assert [one.rank for one in result.ranks] == [0]
    (lost,) = [one for one in result.notices if one.code == "unreadable-file"]
    assert lost.file == "rank1.json.gz"
    assert "its .tracelens.json cannot be fetched: permission denied" in lost.message


def test_names_with_brackets_are_taken_as_they_are(store: Door, uploaded: Any) -> None:
    uploaded.pipe_file(f"{BUCKET}/odd[1] names/rank 0?.json", rank(0, world=1).bytes())
    for address in ("odd[1] names", "odd[1] names/rank 0?.json"):
        result = tracelens.analyze(f"s3://{BUCKET}/{address}")
        assert [file.path for file in result.source.files] == ["rank 0?.json"]


def test_the_endpoint_of_fsspecs_configuration(
    store: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": store.url})
    is_standard(tracelens.analyze(f"s3://{BUCKET}/run"))


def test_what_came_since_is_seen(store: Door, uploaded: Any, run: Path) -> None:
    uploaded.pipe_file(f"{BUCKET}/grows/rank0.json.gz", (run / "rank0.json.gz").read_bytes())
    assert len(tracelens.analyze(f"s3://{BUCKET}/grows").ranks) == 1
    uploaded.pipe_file(f"{BUCKET}/grows/rank1.json.gz", (run / "rank1.json.gz").read_bytes())
    is_standard(tracelens.analyze(f"s3://{BUCKET}/grows"))


# what it costs -----------------------------------------------------------------------------------


def test_each_object_is_read_once_and_nothing_stays(
    store: Door, run: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects longer than a block too, of which s3fs would ask for parts."""
    monkeypatch.setitem(fsspec.config.conf, "s3", {"default_block_size": 100})
    tracelens.analyze(f"s3://{BUCKET}/run")
    names = [f"{BUCKET}/run/rank{number}.json.gz" for number in (0, 1)]
    assert store.reads == dict.fromkeys(names, 1)
    assert store.served == {name: (run / name.rpartition("/")[2]).stat().st_size for name in names}
    assert list(temporary.iterdir()) == []


def test_objects_come_several_at_once(store: Door, uploaded: Any, tmp_path: Path) -> None:
    for number in range(16):
        uploaded.pipe_file(f"{BUCKET}/many/rank{number}.json", b"x")
    system, path = remote._system(f"s3://{BUCKET}/many")
    files = [(name, tmp_path / name.rpartition("/")[2]) for name in system.find(path)]
    store.delay_s = 0.2
    began = time.monotonic()
    assert downloads.copy(system, files) == [None] * 16
    assert time.monotonic() - began < 16 * store.delay_s / 2
    assert {target.read_bytes() for _, target in files} == {b"x"}


def test_an_object_longer_than_may_be_is_given_up(
    store: Door, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "LARGEST", 100)
    with pytest.raises(InputError, match="cannot be fetched: it is longer than"):
        tracelens.analyze(f"s3://{BUCKET}/run")
    assert list(temporary.iterdir()) == []


def test_more_than_the_disk_holds_is_not_begun(
    store: Door, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    with pytest.raises(InputError, match=rf"s3://{BUCKET}/run: .* to fetch, and .* free") as caught:
        tracelens.analyze(f"s3://{BUCKET}/run")
    assert caught.value.slug == "no-room"
    assert store.reads.total() == 0
    assert list(temporary.iterdir()) == []


# what goes wrong ---------------------------------------------------------------------------------


@pytest.fixture
def impatient(store: Door, monkeypatch: pytest.MonkeyPatch) -> Door:
    """Try everything once, and wait a second."""
    once = {"connect_timeout": 1, "read_timeout": 1, "retries": {"max_attempts": 0}}
    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": once})
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    return store


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("s3://nothing/run", "it is not there"),
        ("s3://nothing/run/*.gz", "it is not there"),
        (f"s3://{BUCKET}/other", "it is not there"),
        (f"s3://{BUCKET}/run/rank7.json.gz", "it is not there"),
    ],
)
def test_what_is_not_there(store: Door, address: str, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        tracelens.analyze(address)
    assert caught.value.message == f"{address}: cannot be reached: {reason}"


@pytest.mark.parametrize("address", ["empty/*.json.gz", "notes"])
def test_nothing_of_use(store: Door, uploaded: Any, address: str) -> None:
    uploaded.pipe_file(f"{BUCKET}/empty/notes.txt", b"no trace")
    uploaded.pipe_file(f"{BUCKET}/notes/notes.txt", b"no trace")
    with pytest.raises(InputError, match="no trace file there"):
        tracelens.analyze(f"s3://{BUCKET}/{address}")


@pytest.mark.parametrize("address", ["", "/run", "/run/*.gz"])
def test_a_bucket_that_may_not_be_listed(store: Door, address: str) -> None:
    store.faults[BUCKET] = 403
    with pytest.raises(InputError) as caught:
        tracelens.analyze(f"s3://{BUCKET}{address}")
    assert caught.value.message == f"s3://{BUCKET}{address}: cannot be reached: permission denied"


def test_an_object_of_a_bucket_that_may_not_be_listed(store: Door) -> None:
    store.faults[BUCKET] = 403
    assert len(tracelens.analyze(f"s3://{BUCKET}/run/rank0.json.gz").ranks) == 1


def test_without_credentials_until_there_are_some(
    store: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3fs.S3FileSystem.clear_instance_cache()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(InputError, match=f"s3://{BUCKET}/run: .*Unable to locate credentials"):
        tracelens.analyze(f"s3://{BUCKET}/run")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    assert len(tracelens.analyze(f"s3://{BUCKET}/run/rank0.json.gz").ranks) == 1


def test_nobody_answers(impatient: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(InputError, match=f"s3://{BUCKET}/run: .*Could not connect"):
        tracelens.analyze(f"s3://{BUCKET}/run")


FAULTS: dict[int | str, str] = {
    403: "permission denied",
    404: "it is not there",
    500: "We failed.",
    "cut": "the connection broke off within the file",
    "stall": "it does not answer in time",
}


def test_objects_that_cannot_be_had_cost_their_ranks(
    impatient: Door, uploaded: Any, temporary: Path
) -> None:
    for number in range(6):
        uploaded.pipe_file(f"{BUCKET}/faulty/rank{number}.json", rank(number, world=6).bytes())
    for number, fault in enumerate(FAULTS):
        impatient.faults[f"{BUCKET}/faulty/rank{number}.json"] = fault
    result = tracelens.analyze(f"s3://{BUCKET}/faulty")
    assert [one.rank for one in result.ranks] == [5]
    assert result.run.ranks_missing == [0, 1, 2, 3, 4]
    lost = [(one.file, one.message) for one in result.notices if one.code == "unreadable-file"]
    assert lost == [
        (
            f"rank{number}.json",
            f"could not be read: cannot be fetched: {reason}; its rank is missing",
        )
        for number, reason in enumerate(FAULTS.values())
    ]
    assert list(temporary.iterdir()) == []


def test_the_only_object_cannot_be_had(store: Door, temporary: Path) -> None:
    store.faults[f"{BUCKET}/run/rank1.json.gz"] = 404
    with pytest.raises(InputError) as caught:
        tracelens.analyze(f"s3://{BUCKET}/run/rank1.json.gz")
    assert caught.value.message == (
        f"s3://{BUCKET}/run/rank1.json.gz: nothing can be analysed: "
        "rank1.json.gz: cannot be fetched: it is not there"
    )
    assert list(temporary.iterdir()) == []


def test_a_connection_that_breaks_off_once_is_taken_up_again(store: Door, run: Path) -> None:
    name = f"{BUCKET}/run/rank1.json.gz"
    store.faults[name] = "cut once"
    is_standard(tracelens.analyze(f"s3://{BUCKET}/run"))
    assert store.reads[name] == 2
    assert store.served[name] < 2 * (run / "rank1.json.gz").stat().st_size, "only the rest again"


# what leaks, and what stays ----------------------------------------------------------------------


def test_no_credential_is_in_any_output(store: Door, tmp_path: Path) -> None:
    outputs = ["report.html", "report.md", "analysis.json"]
    asked = [word for name in outputs for word in ("-o", name)]
    store.faults[f"{BUCKET}/run/rank1.json.gz"] = 403
    done = run_command("analyze", "-v", f"s3://{BUCKET}/run", *asked, cwd=tmp_path)
    assert done.code == 0
    everything = done.out + done.err + "".join((tmp_path / name).read_text() for name in outputs)
    assert "permission denied" in everything
    for secret in (object_store.ACCESS_KEY, object_store.SECRET_KEY, "Signature", "Credential"):
        assert secret not in everything


def test_a_presigned_address_is_read_and_its_signature_is_not_shown(
    store: Door, uploaded: Any
) -> None:
    addresses = [uploaded.url(f"{BUCKET}/run/rank{number}.json.gz") for number in (0, 1)]
    assert all("Signature=" in address for address in addresses)
    result = tracelens.analyze(addresses)
    is_standard(result)
    bare = [f"{store.url}/{BUCKET}/run/rank{number}.json.gz" for number in (0, 1)]
    assert result.source.path == " ".join(bare)
    assert "Signature" not in result.to_json()


def test_ctrl_c_leaves_nothing_behind(store: Door, temporary: Path) -> None:
    store.faults[f"{BUCKET}/run/rank1.json.gz"] = "stall"
    running = subprocess.Popen(
        [sys.executable, "-m", "tracelens", "analyze", f"s3://{BUCKET}/run"],
        cwd=temporary.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert store.stalled.wait(60)
        assert list(temporary.iterdir()) != []
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=20)
    finally:
        running.kill()
    assert running.returncode == 1
    assert (out, err.strip()) == ("", "Aborted!")
    assert list(temporary.iterdir()) == []
    assert list(temporary.parent.iterdir()) == [temporary]
