"""What a path or a URI means, and the files of a real S3 server."""

import pickle
from pathlib import Path

import pytest
from pyarrow import fs

from kestrelmq.errors import ConfigError, StorageError
from kestrelmq.spark.storage import locations as storage
from kestrelmq.spark.storage.locations import (
    ListedFile,
    Location,
    located,
    path_options,
    storage_options,
)
from tests.support.object_store import BUCKET, SECRET_KEY, ObjectStore


def at(store: ObjectStore, path: str) -> Location:
    """Return a location in the bucket."""
    found = located(f"s3://{BUCKET}/{path}", store.options)
    assert isinstance(found, Location)
    return found


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("/spool", "/spool"),
        ("spool/q*", "spool/q*"),
        ("file:/spool", "/spool"),
        ("file:///spool", "/spool"),
        ("a:b", "a:b"),
        (Path("spool"), "spool"),
    ],
)
def test_a_path_and_a_file_url_are_paths_of_the_file_system(written: str | Path, path: str) -> None:
    """They stay text, whatever options there are for other paths of the same call."""
    assert located(written) == path
    assert located(written, {"region": "eu-west-1"}) == path


@pytest.mark.parametrize(
    ("uri", "options", "shown", "file_system", "path"),
    [
        (
            "s3://key:se%2Fcret@bucket/a%20b/c?region=x&scheme=http&endpoint_override=h:1",
            {},
            "s3://bucket/a%20b/c",
            fs.S3FileSystem(
                access_key="key",
                secret_key="se/cret",  # noqa: S106 # of nothing
                region="x",
                scheme="http",
                endpoint_override="h:1",
            ),
            "bucket/a b/c",
        ),
        (
            "s3://bucket",
            {"Region": "x", "anonymous": "TRUE", "connect_timeout": "2.5"},
            "s3://bucket",
            fs.S3FileSystem(region="x", anonymous=True, connect_timeout=2.5),
            "bucket",
        ),
        (
            "gs://anonymous@bucket/a/",
            {"endpoint_override": "h:1", "scheme": "http"},
            "gs://bucket/a",
            fs.GcsFileSystem(anonymous=True, endpoint_override="h:1", scheme="http"),
            "bucket/a",
        ),
        (
            "abfs://box@account.dfs.core.windows.net/a",
            {"account_key": "a2V5"},
            "abfs://box@account.dfs.core.windows.net/a",
            fs.AzureFileSystem("account", account_key="a2V5"),
            "box/a",
        ),
        (
            "abfss://account:a2V5@box/a",
            {},
            "abfss://box/a",
            fs.AzureFileSystem("account", account_key="a2V5"),
            "box/a",
        ),
    ],
)
def test_a_uri_means_what_it_means_to_pyarrow(
    uri: str, options: dict[str, str], shown: str, file_system: fs.FileSystem, path: str
) -> None:
    """Its query and its user are options, too, and are not shown."""
    found = located(uri, options)
    assert isinstance(found, Location)

    assert (found.uri, str(found)) == (shown, shown)
    assert storage._file_system(found) == file_system
    assert storage._inner_path(found) == path
    assert pickle.loads(pickle.dumps(found)) == found  # noqa: S301 # made here
    if not options:
        system, inner_path = fs.FileSystem.from_uri(uri)
        assert inner_path == path
        # Pyarrow does not tell that it has a password from a URI of Azure's.
        assert system == file_system or "a2V5" in uri


@pytest.mark.parametrize(
    ("uri", "options", "message"),
    [
        ("ftp://host/a", {}, "option 'path': 'ftp://host/a' is not allowed: it must be a path, or"),
        ("s3://bucket/a?regio=x", {}, "storage option 'regio' is unknown: allowed are access_key"),
        ("s3://bucket/a", {"scheme": "ftp"}, "'scheme': 'ftp' is not allowed: it must be http or"),
        ("s3://bucket/a", {"anonymous": "yes"}, "'yes' is not allowed: it must be true or false"),
        ("s3://bucket/a", {"load_frequency": "1s"}, "its value is not allowed: it must be a whole"),
        ("s3://bucket/a", {"secret_key": ""}, "its value is not allowed: it must be a text that"),
        ("/spool", {"regio": "x"}, "storage option 'regio' is unknown"),
        ("s3://bucket/a#b", {}, "'s3://bucket/a#b' is not allowed: it must be a URI such as s3://"),
        ("s3:/bucket", {}, "it must be a URI such as s3://NAME"),
        ("s3://k:secret@/a", {}, "'s3:///a' is not allowed"),
        ("s3://k:secret@bucket/?a", {}, "'s3://bucket/' is not allowed"),
        ("s3:/k:secret@bucket/a", {}, "'s3:/bucket/a' is not allowed"),
        ("s3://k:my/secret@bucket/a", {}, "'s3://bucket/a' is not allowed"),
        ("http://k:my/secret@bucket/a", {}, "'http://bucket/a' is not allowed"),
        ("abfs://box/a", {}, "abfs://CONTAINER/PATH with the storage option account_name"),
    ],
)
def test_what_is_not_allowed_is_named_without_secrets(
    uri: str, options: dict[str, str], message: str
) -> None:
    """The error says what is allowed."""
    with pytest.raises(ConfigError) as refused:
        located(uri, options)

    assert message in str(refused.value)
    assert "secret@" not in str(refused.value)


def test_options_that_contradict_each_other_are_named() -> None:
    """Pyarrow's own check comes when the file system is made."""
    found = located("s3://bucket/a", {"secret_key": "hidden", "region": "x"})
    assert isinstance(found, Location)

    with pytest.raises(ConfigError, match="does not take the storage options region, secret_key"):
        found.exists()


def test_a_location_does_not_show_its_options() -> None:
    """Neither as text, nor by its representation; only `path_options` has them."""
    found = located("s3://key:hidden@bucket/a", {"region": "x"})
    assert isinstance(found, Location)

    assert "hidden" not in f"{found} {found!r} {found.uri}"
    assert path_options(found) == {
        "path": "s3://bucket/a",
        "storage.access_key": "key",
        "storage.region": "x",
        "storage.secret_key": "hidden",
    }
    assert storage_options({"Storage.Region": "x", "path": "p"}) == {"region": "x"}


def test_names_are_quoted_in_uris_only() -> None:
    """So a URI can be given back, whatever a file is called."""
    spool = located("s3://bucket/a%20b")
    assert isinstance(spool, Location)
    file = spool / "q%é?#1.5~~pack"

    assert file.uri == "s3://bucket/a%20b/q%25%C3%A9%3F%231.5~~pack"
    assert located(file.uri) == file
    assert (file.name, file.parent) == ("q%é?#1.5~~pack", spool)


def test_files_are_written_listed_read_and_deleted(store: ObjectStore) -> None:
    """As with a file system; a directory is there as long as it has files."""
    directory = at(store, "all steps")
    file = directory / "q%é?#1"

    assert not file.exists()
    file.write_bytes(b"0123456789")
    file.write_bytes(b"abcdefghij")
    (directory / "sub/x").write_bytes(b"")

    found = directory.entries()
    assert [(one.name, one.size, one.is_directory) for one in found] == [
        ("q%é?#1", 10, False),
        ("sub", 0, True),
    ]
    assert found[0] == file.find()
    assert found[0].changed > 0
    assert (directory / "sub").find() == ListedFile("sub", 0, True, 0)
    assert file.read_bytes() == b"abcdefghij"
    target = bytearray(9)
    assert file.read_into(memoryview(target), [(0, 1), (6, 9)]) == 10
    assert bytes(target) == b"a\0\0\0\0\0ghi"
    assert file.read_into(memoryview(bytearray(11)), [(0, 11)]) == 10
    file.delete()
    assert not file.exists()


def test_what_is_missing_is_named_as_a_missing_file_is(store: ObjectStore) -> None:
    """With the error that the file system has for it."""
    missing = at(store, "missing")

    for step in (missing.entries, missing.read_bytes, missing.delete):
        with pytest.raises(FileNotFoundError, match=f"s3://{BUCKET}/missing"):
            step()
    assert missing.find() is None


def test_a_store_that_refuses_is_a_clear_error(store: ObjectStore) -> None:
    """It has the URI and the store's reason."""
    file = at(store, "refused/q")
    file.write_bytes(b"x")

    with store.checking_rights():
        for step in (file.entries, file.read_bytes, file.find, lambda: file.write_bytes(b"y")):
            with pytest.raises(
                StorageError, match=f"s3://{BUCKET}/refused/q: .*AWS Error"
            ) as refused:
                step()
            assert SECRET_KEY not in str(refused.value)
    assert file.read_bytes() == b"x"


def test_a_missing_bucket_is_a_clear_error(store: ObjectStore) -> None:
    """It is not taken for an empty one."""
    found = located("s3://no-such-bucket/spool", store.options)
    assert isinstance(found, Location)

    with pytest.raises(StorageError, match=r"s3://no-such-bucket/spool: .*does not exist"):
        found.entries()


def test_a_store_that_does_not_answer_is_an_error_after_a_few_attempts(store: ObjectStore) -> None:
    """Pyarrow tries again some times."""
    options = {**store.options, "endpoint_override": "127.0.0.1:1"}
    found = located(f"s3://{BUCKET}/spool", options)
    assert isinstance(found, Location)

    with pytest.raises(StorageError, match=f"s3://{BUCKET}/spool: .*Failed to connect"):
        found.entries()


def test_a_tree_is_listed_moved_and_deleted(store: ObjectStore) -> None:
    """A file is moved with its content; a tree that is not there is empty, and deleted already."""
    tree = at(store, "tree")
    assert tree.files() == []
    (tree / "a" / "one").write_bytes(b"1")
    (tree / "a" / "b" / "two").write_bytes(b"22")
    assert tree.files() == [("a/b/two", 2), ("a/one", 1)]
    (tree / "a" / "one").move(tree / "c=%2F" / "three")
    assert b"".join((tree / "c=%2F" / "three").pieces()) == b"1"
    with pytest.raises(StorageError, match="s3://bucket/tree/a/one"):
        (tree / "a" / "one").move(tree / "four")
    (tree / "a").delete_tree()
    (tree / "a").delete_tree()
    assert [one for one in tree.files() if one[1]] == [("c=%2F/three", 1)]
