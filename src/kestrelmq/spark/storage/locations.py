"""Paths and URIs: what a path means, and the files of a store that `pyarrow.fs` opens.

A path of the file system, or a `file:` URL, stays text. A URI of a store, such as
`s3://bucket/spool`, becomes a `Location`: the URI without credentials, and the options of the file
system. So a location may be shown, logged and stored as text; options never are. Options come from
the URI's query and user, or are given beside it, and are the arguments of `pyarrow.fs`, as text:
nothing of them is evaluated.

A store has no inode numbers, and only HDFS has a rename. A file in it is replaced as a whole, and
appears when it is whole.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from kestrelmq.errors import ConfigError, StorageError
from kestrelmq.format.names import TEMPORARY_MARK

T = TypeVar("T")

STORAGE_OPTION: Final = "storage."
"""How the names of storage options of a data source begin."""
_PUBLIC: Final = frozenset(
    {"region", "scheme", "endpoint_override", "anonymous", "user", "port", "account_name"}
)
"""Options whose values errors may show."""
_SHOWN: Final = 500
"""Most characters of an error of a store."""
_URI_SAFE: Final = "/!$&'()*+,;=:@~"
_PIECE: Final = 8 << 20
_THREADS: Final = 16


def _a_text(value: str) -> str:
    if not value:
        raise ValueError("a text that is not empty")
    return value


def a_boolean(value: str) -> bool:
    """Parse `true` or `false`. Raises ValueError: what it must be instead."""
    if value.lower() not in {"true", "false"}:
        raise ValueError("true or false")
    return value.lower() == "true"


def _a_number(value: str) -> int:
    if not value.isdecimal():
        raise ValueError("a whole number")
    return int(value)


def _seconds(value: str) -> float:
    if not value.replace(".", "", 1).isdecimal():
        raise ValueError("a number of seconds")
    return float(value)


def _a_duration(value: str) -> timedelta:
    return timedelta(seconds=_seconds(value))


def _a_time(value: str) -> datetime:
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("a time such as 2026-01-31T10:00:00+00:00") from None


def _a_scheme(value: str) -> str:
    if value not in {"http", "https"}:
        raise ValueError("http or https")
    return value


Parsers = Mapping[str, Callable[[str], object]]

_NO_TEXT: Final[Parsers] = {
    "anonymous": a_boolean,
    "load_frequency": _a_number,
    "request_timeout": _seconds,
    "connect_timeout": _seconds,
    "scheme": _a_scheme,
    "force_virtual_addressing": a_boolean,
    "credential_token_expiration": _a_time,
    "retry_time_limit": _a_duration,
    "replication": _a_number,
    "buffer_size": _a_number,
    "default_block_size": _a_number,
    "blob_storage_scheme": _a_scheme,
    "dfs_storage_scheme": _a_scheme,
}
"""Options that are no text."""


def _parsers(names: str) -> Parsers:
    return {name: _NO_TEXT.get(name, _a_text) for name in names.split()}


_S3: Final = _parsers(
    "access_key secret_key session_token anonymous role_arn session_name external_id "
    "load_frequency region request_timeout connect_timeout scheme endpoint_override proxy_options "
    "force_virtual_addressing tls_ca_file_path"
)
_GCS: Final = _parsers(
    "anonymous access_token credential_token_expiration target_service_account scheme "
    "endpoint_override retry_time_limit project_id"
)
_HDFS: Final = _parsers("user replication buffer_size default_block_size kerb_ticket")
_AZURE: Final = _parsers(
    "account_name account_key blob_storage_authority blob_storage_scheme client_id client_secret "
    "dfs_storage_authority dfs_storage_scheme sas_token tenant_id"
)
_SCHEMES: Final[Mapping[str, Parsers]] = {
    "s3": _S3,
    "gs": _GCS,
    "gcs": _GCS,
    "hdfs": _HDFS,
    "viewfs": _HDFS,
    "abfs": _AZURE,
    "abfss": _AZURE,
}


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file or a directory, as it was listed.

    Attributes:
        name: its name in its directory.
        size: the size of a file in bytes.
        is_directory: whether it is a directory.
        changed: when it was last changed (ns since the epoch): in a store when it was written, if
            that tells, or else 0; in the file system when it was renamed, too.
        inode: its inode number; 0 in a store, which has none.
    """

    name: str
    size: int
    is_directory: bool
    changed: int
    inode: int = 0


@dataclass(frozen=True, slots=True)
class Location:
    """A file or directory in a store. It can be pickled, to travel to executors.

    What it has in common with `pathlib.Path` is called as there.

    Attributes:
        scheme: the scheme of its URI.
        authority: the bucket, container or host, without user and password.
        path: the path behind that, without a slash at either end; not quoted as in a URI.
        options: the options of the file system: names and values; never shown.
    """

    scheme: str
    authority: str
    path: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def uri(self) -> str:
        """The URI, without credentials and options."""
        return f"{self.scheme}://{self.authority}/{quote(self.path, _URI_SAFE)}".rstrip("/")

    def __str__(self) -> str:
        """Return the URI, without credentials and options."""
        return self.uri

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> "Location":
        """The directory that it is in; the root is in itself."""
        return replace(self, path=self.path.rpartition("/")[0])

    def __truediv__(self, name: str) -> "Location":
        """Return what is called `name` in this directory; `name` may have slashes."""
        return replace(self, path=f"{self.path}/{name}".strip("/"))

    def entries(self, *, missing_ok: bool = False) -> list[ListedFile]:
        """Return what is in this directory, sorted by name.

        Raises:
            FileNotFoundError: there is no such directory; with `missing_ok` it is as if empty.
            StorageError: the store cannot be reached, or refuses.
        """
        try:
            with _errors(self):
                found = _file_system(self).get_file_info(fs.FileSelector(_inner_path(self)))
        except FileNotFoundError:
            if not missing_ok:
                raise
            return []
        return sorted(map(_listed, found), key=lambda one: one.name)

    def iterdir(self) -> "Iterator[Location]":
        """Yield what is in this directory. Raises as `entries`."""
        return (self / one.name for one in self.entries())

    def find(self) -> ListedFile | None:
        """Return what is here, or None.

        Raises:
            StorageError: the store cannot be reached, or refuses.
        """
        with _errors(self):
            found = _file_system(self).get_file_info(_inner_path(self))
        return None if found.type == fs.FileType.NotFound else _listed(found)

    def exists(self) -> bool:
        """Whether there is a file or a directory here. Raises as `find`."""
        return self.find() is not None

    def read_bytes(self) -> bytes:
        """Return the bytes of this file.

        Raises:
            FileNotFoundError: there is no such file.
            StorageError: the store cannot be reached, or refuses.
        """
        with _errors(self), _file_system(self).open_input_file(_inner_path(self)) as file:
            return bytes(file.read())

    def read_into(self, target: memoryview, parts: "list[tuple[int, int]]") -> int:
        """Read parts of this file, each to the same place in `target`; return the file's size.

        If the file is smaller than `target`, nothing is read. Raises as `read_bytes`.
        """
        with _errors(self), _file_system(self).open_input_file(_inner_path(self)) as file:
            size: int = file.size()
            if size < len(target):
                return size
            for begin, end in parts:
                _fill(file, target[begin:end], begin)
            return size

    def write_bytes(self, content: bytes | pa.Buffer) -> None:
        """Write this file, or replace it: readers see the old content or all of the new.

        Raises:
            StorageError: the store cannot be reached, or refuses; the file is as it was.
        """
        with _errors(self):
            if not self.has_rename:
                self.write_pieces([content])  # an object appears when it is closed
                return
            temporary = replace(self, path=f"{self.path}{TEMPORARY_MARK}new")
            temporary.write_pieces([content])
            # Its rename replaces nothing.
            with contextlib.suppress(FileNotFoundError):
                _file_system(self).delete_file(_inner_path(self))
            _file_system(self).move(_inner_path(temporary), _inner_path(self))

    def pieces(self) -> Iterator[pa.Buffer]:
        """Yield the bytes of this file, a few MiB at a time. Raises as `read_bytes`."""
        with _errors(self), _file_system(self).open_input_file(_inner_path(self)) as file:
            while len(piece := file.read_buffer(_PIECE)):
                yield piece

    def write_pieces(self, pieces: "Iterable[bytes | pa.Buffer]") -> None:
        """Write this file, which nobody reads yet, piece by piece.

        Raises:
            StorageError: the store cannot be reached, or refuses. Part of the file may be there.
        """
        with _errors(self):
            system = _file_system(self)
            if self.has_rename:
                system.create_dir(_inner_path(self.parent))
            with system.open_output_stream(_inner_path(self)) as stream:
                for piece in pieces:
                    stream.write(piece)

    def files(self) -> list[tuple[str, int]]:
        """Return the files in this directory and those below: relative paths and sizes, sorted.

        There are none if there is no such directory. Raises StorageError.
        """
        top = _inner_path(self)
        return sorted((one.path.removeprefix(top).strip("/"), one.size) for one in self._below())

    def last_change(self) -> int:
        """Return when a file in this directory or below was last written (ns since the epoch).

        It is 0 if there is none, or if the store does not tell. Raises StorageError.
        """
        return max((one.mtime_ns or 0 for one in self._below()), default=0)

    def _below(self) -> list[fs.FileInfo]:
        with _errors(self):
            found = _file_system(self).get_file_info(
                fs.FileSelector(_inner_path(self), allow_not_found=True, recursive=True)
            )
        return [one for one in found if one.type == fs.FileType.File]

    @property
    def has_rename(self) -> bool:
        """Whether `move` renames, in one step; in other stores it copies and deletes."""
        return _SCHEMES[self.scheme] is _HDFS

    def move(self, target: "Location") -> None:
        """Move this file to another place in the same store, where nothing is.

        In a store without renames this is a copy, which the store makes by itself, and a delete.

        Raises:
            StorageError: the store cannot be reached, or refuses; or there is no such file.
            FileNotFoundError: there is no such file.
        """
        with _errors(self):
            system = _file_system(self)
            if self.has_rename:
                system.create_dir(_inner_path(target.parent))
            try:
                system.move(_inner_path(self), _inner_path(target))
            except pa.ArrowNotImplementedError:
                system.copy_file(_inner_path(self), _inner_path(target))
                system.delete_file(_inner_path(self))

    def delete_tree(self) -> None:
        """Delete this directory with all that is in it, if it is there. Raises StorageError."""
        with contextlib.suppress(FileNotFoundError), _errors(self):
            _file_system(self).delete_dir(_inner_path(self))

    def delete(self) -> None:
        """Delete this file.

        Raises:
            FileNotFoundError: there is no such file.
            StorageError: the store cannot be reached, or refuses.
        """
        with _errors(self):
            _file_system(self).delete_file(_inner_path(self))


StrPath = str | os.PathLike[str]
GivenPath = StrPath | Location
"""A path or a URI, or what `located` made of it."""


def in_parallel(work: Callable[[T], object], things: Sequence[T]) -> None:
    """Do `work`, which waits for a store, with each of `things`, several at a time."""
    with ThreadPoolExecutor(_THREADS) as threads:
        for _ in threads.map(work, things):
            pass


def located(
    written: "GivenPath",
    options: Mapping[str, str] | None = None,
    option: str = "path",
    known: Mapping[str, str] | None = None,
) -> str | Location:
    """Return what a path means: a path of the file system, or a location in a store.

    Args:
        written: a path, a `file:` URL, or a URI of a store; a location stays as it is.
        options: storage options by name, in any case; a path of the file system needs none.
        option: the name of the option, for error messages.
        known: storage options that count where neither the URI nor `options` have them.

    Raises:
        ConfigError: it is a URI of something else, or an option is unknown or not allowed.
    """
    if isinstance(written, Location):
        return written
    written = os.fspath(written)
    given = {name.lower(): value for name, value in (options or {}).items()}
    scheme = scheme_of(written)
    if scheme == "s3a":  # what Hadoop calls it
        scheme, written = "s3", f"s3{written[3:]}"
    if scheme is None or scheme == "file":
        _check(given, {name: one for parsers in _SCHEMES.values() for name, one in parsers.items()})
        return local_path(written, option)
    if scheme not in _SCHEMES:
        raise ConfigError(
            f"option '{option}': {_without_credentials(written)!r} is not allowed: it must be a "
            f"path, or a URI that begins with file:, {'://, '.join(sorted(_SCHEMES))}://"
        )
    return _remote(written, scheme, given, option, known or {})


def path_options(place: str | Location) -> dict[str, str]:
    """Return the options of a data source that give a path and its storage; they are secret."""
    storage = place.options if isinstance(place, Location) else ()
    return {"path": str(place), **{f"{STORAGE_OPTION}{name}": value for name, value in storage}}


def local_path(written: str, option: str = "path") -> str:
    """Return a path of the file system from a path or a `file:` URL, which Spark users also write.

    `option` is the name of the option, for the error message.

    Raises:
        ConfigError: it is a URL with another scheme.
    """
    scheme = scheme_of(written)
    if scheme is None:
        return written
    path = written.partition(":")[2].removeprefix("//")
    if scheme != "file" or not path.startswith("/"):
        raise ConfigError(
            f"option '{option}': {_without_credentials(written)!r} is not allowed: it must be a "
            "path of a file system that the driver and every executor have, or a file: URL"
        )
    return path


def scheme_of(written: str) -> str | None:
    """Return the scheme of a URI in lower case; None for a path."""
    scheme, colon, rest = written.partition(":")
    is_uri = colon and "/" not in scheme and rest.startswith("/")
    return scheme.lower() if is_uri else None


def storage_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return the storage options among the options of a data source, by their own names."""
    return {
        name.lower().removeprefix(STORAGE_OPTION): value
        for name, value in given.items()
        if name.lower().startswith(STORAGE_OPTION)
    }


def public_value(name: str, value: str) -> str | None:
    """Return the value of an option as errors may show it; None if it may be secret.

    A storage option is easily given without its prefix, and a URI in an option that takes none.
    """
    is_of_a_store = any(name in parsers for parsers in _SCHEMES.values())
    is_secret = "password" in name.lower() or (is_of_a_store and name not in _PUBLIC)
    if name.startswith(STORAGE_OPTION) or is_secret:
        return None
    return value if scheme_of(value) is None else _without_credentials(value)


def _remote(
    written: str, scheme: str, given: Mapping[str, str], option: str, known: Mapping[str, str]
) -> Location:
    try:
        parts = urlsplit(written)
        _ = parts.port  # a key with a slash looks like a port that is no number
        host = parts.hostname and parts.netloc.rpartition("@")[2]
        query = dict(
            parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        )
    except ValueError:
        host, parts, query = "", urlsplit("//"), {}
    if not host or parts.fragment or not written.lower().startswith(f"{scheme}://"):
        raise ConfigError(
            f"option '{option}': {_without_credentials(written)!r} is not allowed: it must be a "
            f"URI such as {scheme}://NAME/DIRECTORY?OPTION=VALUE; write # as %23 and ? as %3F"
        )
    chosen = {**known, **_of_authority(parts, scheme), **query, **given}
    _check(chosen, _SCHEMES[scheme])
    path = unquote(parts.path).strip("/")
    if _SCHEMES[scheme] is _AZURE:
        # Within `pyarrow.fs` a path begins with the container.
        host, path, chosen = _azure(parts, path, chosen, option)
    return Location(scheme, host, path, tuple(sorted(chosen.items())))


def _of_authority(parts: SplitResult, scheme: str) -> dict[str, str]:
    """Return the options that a URI's user and password give."""
    user, password = (unquote(one or "") for one in (parts.username, parts.password))
    match scheme:
        case "s3":
            found = {"access_key": user, "secret_key": password}
        case "gs" | "gcs":
            found = {"anonymous": "true" if user == "anonymous" else ""}
        case "hdfs" | "viewfs":
            found = {"user": user}
        case _:
            found = {"account_key": password}
    return {name: value for name, value in found.items() if value}


def _azure(
    parts: SplitResult, path: str, chosen: dict[str, str], option: str
) -> tuple[str, str, dict[str, str]]:
    """Return the authority, the path within it, and the options of a URI of Azure's.

    It is `abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH`, or `abfs://CONTAINER/PATH` with the
    option `account_name`.
    """
    user, host = unquote(parts.username or ""), parts.hostname or ""
    if "." in host and user:
        return f"{user}@{host}", path, {"account_name": host.partition(".")[0], **chosen}
    if "." in host or not (user or "account_name" in chosen):
        raise ConfigError(
            f"option '{option}': it must be abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH, or "
            "abfs://CONTAINER/PATH with the storage option account_name"
        )
    return host, path, {"account_name": user, **chosen} if user else chosen


def _check(given: Mapping[str, str], allowed: Parsers) -> None:
    for name, value in given.items():
        if name not in allowed:
            raise ConfigError(
                f"storage option '{name}' is unknown: allowed are {', '.join(sorted(allowed))}"
            )
        try:
            allowed[name](value)
        except ValueError as error:
            shown = f"{value!r} is not allowed" if name in _PUBLIC else "its value is not allowed"
            raise ConfigError(f"storage option '{name}': {shown}: it must be {error}") from None


def _without_credentials(written: str) -> str:
    """Return a URI as errors may show it."""
    scheme, colon, rest = written.partition(":")
    inner = rest.partition("?")[0]
    bare = inner.lstrip("/")
    authority, slash, path = bare.partition("/")
    if ":" in authority and "@" in path and "@" not in authority:
        # A key with a slash that is not written as %2F.
        authority, slash, path = path.rpartition("@")[2].partition("/")
    slashes = inner[: len(inner) - len(bare)]
    return f"{scheme}{colon}{slashes}{authority.rpartition('@')[2]}{slash}{path}"


def _inner_path(location: Location) -> str:
    """Return the path that `pyarrow.fs` has for a location."""
    parsers = _SCHEMES[location.scheme]
    if parsers is _HDFS:
        return f"/{location.path}"
    container = location.authority.partition("@")[0]
    return f"{container}/{location.path}".rstrip("/")


def _file_system(location: Location) -> fs.FileSystem:
    return _made(location.scheme, location.authority, location.options)


@lru_cache(maxsize=16)
def _made(scheme: str, authority: str, options: tuple[tuple[str, str], ...]) -> fs.FileSystem:
    parsers = _SCHEMES[scheme]
    arguments: dict[str, Any] = {name: parsers[name](value) for name, value in options}
    try:
        if parsers is _S3:
            if "region" not in arguments and "endpoint_override" not in arguments:
                arguments["region"] = fs.resolve_s3_region(authority)
            return fs.S3FileSystem(**arguments)
        if parsers is _GCS:
            return fs.GcsFileSystem(**arguments)
        if parsers is _AZURE:
            return fs.AzureFileSystem(**arguments)
        host, _, port = authority.partition(":")
        if scheme == "viewfs":
            host = f"viewfs://{host}"
        return fs.HadoopFileSystem(host, int(port or 0), **arguments)
    except (TypeError, ValueError, ImportError, AttributeError) as error:
        # The installed version lacks it, or options contradict each other.
        names = ", ".join(name for name, _ in options)
        raise ConfigError(
            f"{scheme}://{authority}: pyarrow {pa.__version__} does not take the storage options "
            f"{names or '(none)'}: {_scrubbed(str(error), options)}"
        ) from None


def _fill(file: pa.NativeFile, target: memoryview, begin: int) -> None:
    file.seek(begin)
    done = 0
    while done < len(target):
        count = file.readinto(target[done:])
        if not count:
            raise OSError(f"there are no bytes at {begin + done}")
        done += count


def _listed(found: fs.FileInfo) -> ListedFile:
    is_directory = found.type == fs.FileType.Directory
    size = 0 if is_directory else found.size
    return ListedFile(found.base_name, size or 0, is_directory, found.mtime_ns or 0)


@contextlib.contextmanager
def _errors(location: Location) -> Iterator[None]:
    """Raise errors of `pyarrow.fs` as ours, without secrets. It has tried again already."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", location.uri) from None
    except (OSError, pa.ArrowException) as error:
        raise StorageError(f"{location.uri}: {_scrubbed(str(error), location.options)}") from None


def _scrubbed(text: str, options: tuple[tuple[str, str], ...]) -> str:
    """Return the first line of an error, without the values of options that are secret."""
    line = text.partition("\n")[0]
    for name, value in options:
        if name not in _PUBLIC:
            line = line.replace(value, "***")
    return line[:_SHOWN]
