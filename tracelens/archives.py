"""Unpack archives of ranks: zip and tar, the latter packed with gzip, bzip2, xz, zstd or not.

Nothing in an archive decides where a file lands: members go to new places in the workspace. What
they inflate to is bounded (tracelens/limits.py), links and devices are passed over.
"""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol

from tracelens import limits
from tracelens.compression import NO_ZSTD, is_zstd, zstd_module
from tracelens.workspace import place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tracelens.workspace import Workspace

_PIECE = 1 << 20
_SMALL_PIECE = 1 << 15  # the last one is lost where a tar archive is cut
_MOST_MEMBERS = 100_000
_TOO_MANY = f"it has more than {_MOST_MEMBERS:,} members: the rest is not looked at"
_DAMAGE = "it is cut or does not match its checksum in the archive"
_ENCRYPTED = 1  # a bit of a member's flags (PKWARE's APPNOTE 4.4.4)
_USTAR = slice(257, 262)
Kind = Literal["zip", "tar"]


@dataclass(frozen=True, slots=True)
class Member:
    """A file of an archive: where it was unpacked to, or why it was not.

    `damage` says of one that was unpacked what is wrong with it; `cut` that the archive ends
    inside it, which is said of the archive.
    """

    name: str
    path: Path | None
    reason: str | None = None
    damage: str | None = None
    cut: bool = False


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _TooLarge(Exception):  # noqa: N818 - carries a sentence for the user
    """The archive inflates to more than the limits allow."""


class _NoTar(Exception):  # noqa: N818 - the same
    """What bzip2 or xz packed is something else."""


def kind_of(raw: bytes, head: bytes) -> Kind | None:
    """Tell an archive by its first bytes, as they are and inflated."""
    if raw.startswith((b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")):
        return "zip"
    # bzip2 and xz are only known around tar archives; what else they hold, unpacking will say.
    packed = raw.startswith((b"BZh", b"\xfd7zXZ\0"))
    return "tar" if packed or head[_USTAR] == b"ustar" else None


def unpack(
    path: Path, shown: str, kind: Kind, wanted: Callable[[str], bool], workspace: Workspace
) -> Iterator[Member]:
    """Unpack the members that may be traces; yield what cannot be read with the reason.

    Args:
        path: The archive.
        shown: Its name, which may say the rank of a single trace in it.
        kind: What it is.
        wanted: Tells by a file's name whether it may be a trace.
        workspace: Where to unpack.
    """
    left = _Budget(limits.current().bytes_for(path.stat().st_size))
    unpacker = _zip if kind == "zip" else _tar
    try:
        yield from unpacker(path, workspace.folder(shown), wanted, left)
    except (_TooLarge, _NoTar) as error:
        yield Member("", None, str(error))
    except zipfile.BadZipFile as error:
        yield Member("", None, f"a damaged zip archive ({error})")
    except (tarfile.TarError, EOFError, OSError, zlib.error, ValueError) as error:
        yield Member("", None, f"a damaged archive ({error}): what follows in it is missing")


class _Budget:
    """Counts down what may still be inflated."""

    def __init__(self, allowed: int) -> None:
        self.allowed, self.used = allowed, 0

    @property
    def exceeded(self) -> str:
        return limits.exceeded(self.allowed)

    def allows(self, size: int) -> bool:
        return self.used + size <= self.allowed

    def spend(self, size: int) -> None:
        self.used += size
        if self.used > self.allowed:
            raise _TooLarge(self.exceeded)


class _Counted:
    """A readable file whose reads are counted."""

    def __init__(self, file: IO[bytes], budget: _Budget) -> None:
        self._file, self._budget = file, budget

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(min(size, _PIECE) if size >= 0 else _PIECE)
        self._budget.spend(len(data))
        return data


class _Checked:
    """A member of a zip archive that is read whatever its checksum is.

    Where `zipfile` compares it, the last bytes are lost if it does not match.
    """

    def __init__(self, file: IO[bytes]) -> None:
        file._expected_crc = None  # type: ignore[attr-defined]
        self._file, self.checksum = file, 0

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self.checksum = zlib.crc32(data, self.checksum)
        return data


def _zip(
    path: Path, folder: Path, wanted: Callable[[str], bool], budget: _Budget
) -> Iterator[Member]:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if len(members) > _MOST_MEMBERS:
            yield Member("", None, _TOO_MANY)
        for info in members[:_MOST_MEMBERS]:
            if info.is_dir() or not wanted(info.filename):
                continue
            if not budget.allows(info.file_size):  # what says so itself need not be tried
                yield Member(info.filename, None, budget.exceeded)
                continue
            if info.flag_bits & _ENCRYPTED:
                yield Member(info.filename, None, "encrypted: unpack it with its password first")
                continue
            target = place(folder, info.filename)
            try:
                with archive.open(info) as source:
                    checked = _Checked(source)
                    _copy(checked, target, budget)
            except (RuntimeError, NotImplementedError) as error:
                yield Member(info.filename, None, f"cannot be unpacked: {error}")
            except (zipfile.BadZipFile, zlib.error, EOFError, ValueError):
                yield Member(info.filename, target, damage=_DAMAGE)  # what was inflated is kept
            else:
                whole = checked.checksum == info.CRC
                yield Member(info.filename, target, damage=None if whole else _DAMAGE)


def _tar(
    path: Path, folder: Path, wanted: Callable[[str], bool], budget: _Budget
) -> Iterator[Member]:
    with path.open("rb") as file, _plain(file) as plain:
        counted: Any = _Counted(plain, budget)
        with _opened(counted) as archive:
            for number, info in enumerate(archive):
                if number >= _MOST_MEMBERS:
                    yield Member("", None, _TOO_MANY)
                    return
                if not budget.allows(info.size):  # what follows it cannot be reached either
                    yield Member(info.name, None, budget.exceeded)
                    return
                if not info.isreg() or not wanted(info.name):
                    continue
                source = archive.extractfile(info)
                if source is None:
                    continue
                target = place(folder, info.name)
                try:
                    # A sparse member is larger than what was read for it.
                    counted_here = budget if info.issparse() else None
                    whole = _copy(source, target, counted_here) == info.size
                except (tarfile.TarError, EOFError, OSError, zlib.error):
                    whole = False
                yield Member(info.name, target, cut=not whole)
                if not whole:
                    missing = f"cut or damaged inside {info.name}: the rest is missing"
                    yield Member("", None, missing)
                    return


def _opened(plain: Any) -> tarfile.TarFile:
    try:
        return tarfile.open(fileobj=plain, mode="r|")
    except tarfile.ReadError as error:
        reason = "compressed with bzip2 or xz, and no tar archive: unpack it first"
        raise _NoTar(reason) from error


def _plain(file: IO[bytes]) -> Any:
    """Return the inflated archive; what it is packed with is told by its first bytes."""
    head = file.read(6)
    file.seek(0)
    if is_zstd(head):
        module = zstd_module()
        if module is None:
            raise ValueError(NO_ZSTD)
        if module.__name__ == "zstandard":
            return module.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        return module.ZstdFile(file)
    import bz2
    import gzip
    import lzma

    openers: dict[bytes, Callable[[IO[bytes]], Any]] = {
        b"\x1f\x8b": lambda f: gzip.GzipFile(fileobj=f),
        b"BZh": bz2.BZ2File,
        b"\xfd7zXZ": lzma.LZMAFile,
    }
    opener = next((o for magic, o in openers.items() if head.startswith(magic)), None)
    return opener(file) if opener is not None else _Open(file)


class _Open:
    """A file that is not closed with the archive: it is closed by who opened it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def __enter__(self) -> IO[bytes]:
        return self._file

    def __exit__(self, *_: object) -> None:
        """Leave it open."""


def _copy(source: _Readable, target: Path, budget: _Budget | None = None) -> int:
    size = 0
    with target.open("wb") as file:
        while piece := source.read(_SMALL_PIECE):
            if budget is not None:
                budget.spend(len(piece))
            size += file.write(piece)
    return size
