"""Find the files that an address stands for: one, those in a folder, those a glob matches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tracelens import sidecar
from tracelens.addresses import is_web, shown, without_query

if TYPE_CHECKING:
    from collections.abc import Callable

# Read beside a trace and not for themselves: facts, and a database's changes not yet written.
_COMPANIONS = (sidecar.SUFFIX, "-wal", "-journal")
_MAGIC = frozenset("*?[")
_DEEPEST, _MOST = 16, 1000  # a web server may list folders without end


@dataclass(frozen=True, slots=True)
class Listing:
    """What an address stands for.

    Attributes:
        folder: What the names are shown relative to.
        origin: The address of that folder, as it may be shown.
        sizes: Files to fetch, with their bytes where the other side says them.
        known: Everything there, if it was listed.
        failed: Folders that could not be listed.
    """

    folder: str
    origin: str
    sizes: dict[str, int | None] = field(default_factory=dict)
    known: set[str] | None = None
    failed: dict[str, Exception] = field(default_factory=dict)

    def inside(self, name: str) -> str:
        """Return a name as it is shown: under the folder, without a query."""
        return without_query(name).removeprefix(self.folder).lstrip("/")

    def address(self, name: str) -> str:
        """Return a name's address as it may be shown."""
        return f"{self.origin}/{self.inside(name)}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Tells what may be a trace.

    Attributes:
        file: By a name under a folder.
        folder: By a folder's name and those of its files, if it is one trace with a file a table.
    """

    file: Callable[[str], bool]
    folder: Callable[[str, list[str]], bool]


def of(system: Any, path: str, given: str, wanted: Wanted) -> Listing:
    """List what an address stands for.

    Args:
        system: fsspec's file system.
        path: The address as that system names it.
        given: The address as the user wrote it.
        wanted: Tells what of a folder may be a trace; a file named whole is one.
    """
    web = is_web(given)
    if _has_magic(path, web=web) and not _is_literal(system, path, web=web):
        return _matching(system, path, given, wanted)
    # A web server does not say whether something is a folder.
    about = _as_page(path) if web else system.info(path)
    if about["type"] == "directory":
        listing = Listing(about["name"].rstrip("/"), shown(given).rstrip("/"), known=set())
        _add_folder(system, about["name"], listing, wanted, web=web)
        return listing
    return Listing(_parent(without_query(path)), _parent(shown(given)), {path: about.get("size")})


def companions(system: Any, listing: Listing) -> dict[str, list[str]]:
    """Return what lies beside each file that is not to be fetched already, as suffixes."""

    def there(name: str) -> bool:
        if listing.known is not None:
            return name in listing.known
        if "?" in name:
            return False  # a signature holds for one name
        try:
            return bool(system.exists(name))
        except Exception:  # whoever may read a file need not be allowed to ask for others
            return False

    return {
        name: [
            suffix
            for suffix in (_COMPANIONS if name.endswith(".sqlite") else _COMPANIONS[:1])
            if name + suffix not in listing.sizes and there(name + suffix)
        ]
        for name in listing.sizes
    }


def _matching(system: Any, path: str, given: str, wanted: Wanted) -> Listing:
    web = is_web(given)
    listing = Listing(_fixed_part(path), _fixed_part(shown(given)))
    if listing.folder:
        system.ls(f"{listing.folder}/" if web else listing.folder)  # a glob hides that it cannot
    depth = {"maxdepth": _DEEPEST} if web else {}
    for name, about in system.glob(path, detail=True, **depth).items():
        if about.get("type") == "directory":
            _add_folder(system, str(name), listing, wanted, web=web)
        else:
            listing.sizes[str(name)] = about.get("size")
    return listing


def _add_folder(system: Any, folder: str, listing: Listing, wanted: Wanted, *, web: bool) -> None:
    if web:
        found = _pages(system, folder, listing.failed)
    else:
        about = system.find(folder, detail=True)
        found = {str(name): one.get("size") for name, one in about.items()}
    if listing.known is not None:
        listing.known.update(found)
    beside: dict[str, list[str]] = {}
    for name, size in found.items():
        if wanted.file(listing.inside(name)):
            listing.sizes[name] = size
        else:
            beside.setdefault(_parent(name), []).append(name)
    for parent, names in beside.items():
        if wanted.folder(listing.inside(parent), [name.rpartition("/")[2] for name in names]):
            listing.sizes.update((name, found[name]) for name in names)


def _as_page(path: str) -> dict[str, Any]:
    bare = without_query(path)
    return {"name": bare, "type": "directory"} if bare.endswith("/") else {"type": "file"}


def _pages(system: Any, folder: str, failed: dict[str, Exception]) -> dict[str, int | None]:
    """Walk through the pages on which a web server lists its folders."""
    found: dict[str, int | None] = {}
    waiting, seen = [(folder, 0)], {folder}
    while waiting:
        page, depth = waiting.pop()
        try:
            entries = system.ls(page, detail=True)
        except Exception as error:
            if page == folder:
                raise
            failed[page] = error
            continue
        for entry in entries:
            name = str(entry["name"])
            if entry["type"] != "directory":
                found[name] = entry.get("size")
            elif name not in seen and depth < _DEEPEST and len(seen) < _MOST:
                seen.add(name)
                waiting.append((name, depth + 1))
            elif name not in seen:
                failed[name] = ValueError("too many folders, or too deep")
    return found


def _has_magic(path: str, *, web: bool) -> bool:
    # In the address of a web server a question mark begins the query, and [::1] is a machine.
    after = path.partition("://")[2].partition("/")[2].partition("?")[0] if web else path
    return bool(_MAGIC & set(after))


def _is_literal(system: Any, path: str, *, web: bool) -> bool:
    """Tell whether brackets and stars stand in the name itself, as they may in a local folder."""
    return not web and bool(_fixed_part(path)) and bool(system.exists(path))


def _fixed_part(pattern: str) -> str:
    return _parent(pattern[: min(pattern.find(sign) for sign in _MAGIC if sign in pattern)])


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
