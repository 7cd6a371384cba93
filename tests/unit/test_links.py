"""The library, Spark and the tools follow no symbolic link in a queue path either."""

from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig
from kestrelmq.disk.directories import DiskDirectory
from kestrelmq.format.records import item
from kestrelmq.library.blocking import PersistentQueue
from kestrelmq.spark.sinks.journal_parts import JournalPart, PartWriter, join_parts
from kestrelmq.spark.storage.opening import open_view
from kestrelmq.spark.storage.spool import list_files
from tests.integration.test_cli_journal import run

pytestmark = pytest.mark.compiled

ADDED = item(1_700_000_000_000, 0, b"x")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue path with a good queue; `elsewhere`, beside it, is what links lead to."""
    found = tmp_path / "queues"
    found.mkdir()
    (found / "good").write_bytes(ADDED)
    (tmp_path / "elsewhere").write_bytes(ADDED)
    return found


def link(path: Path) -> None:
    """Link to what lies elsewhere."""
    path.symlink_to(path.parent.parent / "elsewhere")


@pytest.mark.parametrize("name", ["~~lock", "jobs~~lock", "jobs", "jobs.5"])
def test_the_library(path: Path, name: str) -> None:
    """Neither a lock nor a journal is opened through a link."""
    link(path / name)
    queue = PersistentQueue("jobs", path, QueueConfig())
    with pytest.raises(OSError, match="symbolic link, which is not followed"):
        queue.setup()
    assert (path.parent / "elsewhere").read_bytes() == ADDED


@pytest.mark.parametrize("name", ["bad", "bad.5"])
def test_what_spark_reads(path: Path, name: str) -> None:
    """A link is an error of its queue, not a queue with fewer items."""
    link(path / name)
    bad, good = list_files(str(path))
    assert open_view(good).size == len(ADDED)
    with pytest.raises(OSError, match="symbolic link, which is not followed"):
        open_view(bad)


def test_what_spark_writes(path: Path) -> None:
    """Parts, and what is made of them."""
    work = path / "~~write-1"
    work.mkdir()
    link(work / "0-0-0")
    writer = PartWriter(work, "0-0")
    part = writer._part("jobs")
    with pytest.raises(OSError, match="symbolic link, which is not followed"):
        writer._handle(part.path)
    for name in ("a", "b"):
        (work / name).write_bytes(ADDED)
    link(work / "joined")
    with pytest.raises(OSError, match="symbolic link, which is not followed"):
        join_parts(
            [JournalPart("jobs", work / name, 1, len(ADDED)) for name in ("a", "b")],
            work / "joined",
        )
    assert (path.parent / "elsewhere").read_bytes() == ADDED


def test_the_tools(path: Path) -> None:
    """The other queues have their turn, and the exit status says that one had not."""
    link(path / "bad")
    (path / "loop.7").symlink_to(path / "loop.7")
    for tool in ("verify", "dump", "pack", "repair"):
        text = run(tool, path, status=1)
        assert "Traceback" not in text, text
        assert all(f"kestrelmq: {queue}: " in text for queue in ("bad", "loop")), text
        assert "symbolic link" in text
    assert (path.parent / "elsewhere").read_bytes() == ADDED
    assert (path / "bad").is_symlink()


def test_a_directory_writes_through_no_link(path: Path) -> None:
    """Whatever is opened, created, or cut."""
    link(path / "bad")
    directory = DiskDirectory(path)
    for step in (
        lambda: directory.append_to("bad"),
        lambda: directory.create("bad"),
        lambda: directory.truncate("bad", 0),
        lambda: directory.open("bad"),
    ):
        with pytest.raises(OSError, match="symbolic link, which is not followed"):
            step()
    assert (path.parent / "elsewhere").read_bytes() == ADDED


def test_a_directory_that_was_replaced_is_left_alone(path: Path) -> None:
    """What is opened and created is in the directory that was there at first."""
    directory = DiskDirectory(path)
    directory.append_to("good").close()
    path.rename(path.with_name("moved"))
    path.mkdir()
    file = directory.append_to("new")
    file.append(b"x")
    file.close()
    directory.rename("new", "newer")
    assert list(path.iterdir()) == []
    assert (path.parent / "moved" / "newer").read_bytes() == b"x"


def test_a_journal_whose_directory_refuses(path: Path) -> None:
    """An append fails, though its file is open, until the directory does not refuse any more."""
    directory = DiskDirectory(path)
    file = directory.append_to("jobs")
    file.append(b"a")
    directory.refuse("gone")
    for step in (lambda: file.append(b"b"), file.sync, lambda: directory.append_to("new")):
        with pytest.raises(OSError, match="gone"):
            step()
    directory.refuse(None)
    file.append(b"c")
    file.close()
    assert (path / "jobs").read_bytes() == b"ac"
