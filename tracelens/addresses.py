"""Tell addresses of other machines from paths, and show them without what is secret in them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from tracelens.names import printable

if TYPE_CHECKING:
    from pathlib import Path

# Two letters at least: C:/ is a drive. One slash: pathlib makes s3:/bucket of s3://bucket.
# fsspec chains addresses: simplecache::s3://bucket.
_ADDRESS = re.compile(r"((?:[a-z0-9+.-]+::)*([a-z][a-z0-9+.-]+)):/(/?)", re.IGNORECASE)
_HERE = re.compile(r"(?:file|local):(?://(?:localhost(?=/))?)?(?=.)", re.IGNORECASE)
_LOCAL = ("file", "local")
_WEB = ("http", "https")

# A password may hold a slash that should have been escaped; after a host's colon stands a number.
_LOGIN = re.compile(r"(?<=://)(?:[^/\s]*@|[^/@:\s]*:(?!:|\d+(?:[/?#]|$))\S*@)")
_SECRETS = re.compile(
    r"\S+://\S+|\S*\?\S*=\S*|\S*(?:signature|token|key|secret|password|credential|sig)=\S+",
    re.IGNORECASE,
)


def is_remote(given: str | Path) -> bool:
    """Tell whether a path names something another machine holds."""
    match = _ADDRESS.match(str(given))
    if match is None or match[1].lower() in _LOCAL:
        return False
    if match[3]:
        return True
    from pathlib import Path

    return not Path(given).exists()


def scheme(address: str) -> str:
    """Return the kind of an address, such as s3; of a chain, the first that is a place."""
    match = _ADDRESS.match(address)
    return match[2].lower() if match else ""


def is_web(address: str) -> bool:
    """Tell whether an address is a web server's, which lists folders as pages only."""
    return scheme(address) in _WEB


def whole(given: str) -> str:
    """Return an address with both of its slashes."""
    return _ADDRESS.sub(lambda match: f"{match[1]}://", given, count=1)


def local(given: str) -> str:
    """Return the path that a file:// address means; a path stays as it is."""
    match = _HERE.match(given)
    if match is None:
        return given
    from pathlib import Path

    path = given[match.end() :]
    return path if Path(path).exists() else unquote(path)


def shown(given: str | Path) -> str:
    """Return a path as it may be shown: without user, password, query and fragment."""
    text = str(given)
    if not is_remote(text):
        return printable(text)
    return _LOGIN.sub("", without_query(whole(text)))


def without_query(address: str) -> str:
    """Cut what follows a question mark, unless it stands for any letter of a name."""
    if is_web(address):
        address = address.partition("#")[0]
    before, _, query = address.partition("?")
    return before if "=" in query or is_web(address) else address


def harmless(text: str) -> str:
    """Return one line of somebody's error without addresses and what could be a credential."""
    return _SECRETS.sub("…", " ".join(text.split()))[:200]
