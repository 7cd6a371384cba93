"""A file that is appended to, while others change, replace, sync or close it."""

import errno
import os
from pathlib import Path

import pytest

from kestrelmq.clock import no_pause
from kestrelmq.disk.directories import DiskDirectory, UnnamedFiles, write_file
from kestrelmq.disk.opening import forget, mapped
from tests.support.crashing_directory import CrashingDirectory
from tests.support.descriptors import open_below
from tests.support.limits import largest_file

pytestmark = pytest.mark.compiled


def test_a_closed_file_takes_no_more(tmp_path: Path) -> None:
    """Nor is it opened again for that."""
    file = DiskDirectory(tmp_path).append_to("jobs")
    file.append(b"first")
    file.close()
    with pytest.raises(OSError, match="the file is closed"):
        file.append(b"late")
    assert (tmp_path / "jobs").read_bytes() == b"first"
    assert open_below(tmp_path) == []


def test_what_is_written_stays_though_closing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file knows what it has, and its descriptor is gone, as a network file system does it."""
    close = os.close

    def fail(descriptor: int) -> None:
        close(descriptor)
        raise OSError(errno.EIO, "lost the server")

    file = DiskDirectory(tmp_path).append_to("jobs")
    with monkeypatch.context() as patch:
        patch.setattr("os.close", fail)
        assert file.release()
        file.append_all([b"some", b"more"], no_pause)
    assert file.size == 8
    file.append(b"end")
    assert (tmp_path / "jobs").read_bytes() == b"somemoreend"


def test_nothing_is_appended_behind_what_another_program_wrote(tmp_path: Path) -> None:
    """It is seen when the file has to be opened again; not even its own descriptor stays."""
    file = DiskDirectory(tmp_path).append_to("jobs")
    file.append(b"ours")
    assert file.release()
    with (tmp_path / "jobs").open("ab") as other:
        other.write(b"theirs")
    with pytest.raises(OSError, match="changed by another program"):
        file.append(b"more")
    assert (tmp_path / "jobs").read_bytes() == b"ourstheirs"
    assert open_below(tmp_path) == []


@pytest.mark.parametrize("step", ["append", "sync", "settle"])
def test_a_file_that_took_the_place_of_ours_is_left_alone(tmp_path: Path, step: str) -> None:
    """Nothing is done to it, and no descriptor of it stays."""
    file = DiskDirectory(tmp_path).append_to("jobs")
    file.append(b"ours")
    assert file.release()
    (tmp_path / "new").write_bytes(b"ours")
    (tmp_path / "new").rename(tmp_path / "jobs")
    steps = {
        "append": lambda: file.append(b"more"),
        "sync": file.sync,
        "settle": file.cut_failed_write,
    }
    with pytest.raises(OSError, match="replaced by another program"):
        steps[step]()
    assert (tmp_path / "jobs").read_bytes() == b"ours"
    assert open_below(tmp_path) == []


def test_a_file_that_was_made_shorter_takes_no_more_until_it_is_whole(tmp_path: Path) -> None:
    """An append that failed on it left nothing; once the file is as it was, appends go on."""
    file = DiskDirectory(tmp_path).append_to("jobs")
    file.append(b"ours")
    (tmp_path / "jobs").write_bytes(b"ou")
    with largest_file(1), pytest.raises(OSError, match="File too large"):
        file.append(b"lost")
    with pytest.raises(OSError, match="changed by another program"):
        file.append(b"more")
    (tmp_path / "jobs").write_bytes(b"ours")
    file.append(b"more")
    file.close()
    assert (tmp_path / "jobs").read_bytes() == b"oursmore"


def test_a_file_that_is_closed_during_a_sync_is_released_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sync is not waited for, and it must not sync another file under the same number."""
    file = DiskDirectory(tmp_path).append_to("jobs")
    during: list[list[str]] = []

    def close(_descriptor: int) -> None:
        file.close()
        during.append(open_below(tmp_path))

    monkeypatch.setattr("os.fsync", close)
    file.sync()
    assert during == [["jobs"]]
    assert open_below(tmp_path) == []


def test_a_file_that_is_gone_is_found_when_its_directory_is_looked_at(tmp_path: Path) -> None:
    """Only files of the names that changed are looked at; with no name, none is."""
    directory = DiskDirectory(tmp_path)
    gone, kept = directory.append_to("gone"), directory.append_to("kept")
    (tmp_path / "gone").unlink()
    directory.recheck([])
    directory.recheck(["kept"])
    gone.append(b"nobody will read this")
    directory.recheck(["gone"])
    with pytest.raises(FileNotFoundError):
        gone.append(b"more")
    directory.recheck(None)
    kept.append(b"more")
    assert os.listdir(tmp_path) == ["kept"]  # noqa: PTH208 # names are enough


def test_a_whole_file_is_written_or_is_not_there(tmp_path: Path) -> None:
    """What was written of it until the disk failed is removed."""
    directory = CrashingDirectory.within(tmp_path)
    for step in ("append", "sync"):
        directory.fail = lambda point, step=step: point.startswith(step)  # type: ignore[misc]
        with pytest.raises(OSError, match="No space left"):
            write_file(directory, "jobs", [b"one", b"two"])
        assert directory.names() == []
    directory.mend()
    assert write_file(directory, "jobs", [b"one", b"two"]) == 6
    assert (directory.path / "jobs").read_bytes() == b"onetwo"


def test_what_is_forgotten_is_read_again(tmp_path: Path) -> None:
    """Memory is given back by pages, and in maps only; what is in the file does not change."""
    content = bytes(range(256)) * 64
    (tmp_path / "jobs").write_bytes(content)
    with mapped(tmp_path / "jobs") as buffer:
        assert buffer[:] == content
        assert forget(buffer, 0, 9000) == 8192
        assert forget(buffer, 8192, 9000) == 8192
        assert buffer[:] == content
    assert forget(content, 0, 9000) == 8192


def test_a_file_that_is_held_outlives_its_name(tmp_path: Path) -> None:
    """It is freed when it is let go; one that cannot be opened is none to be freed."""
    (tmp_path / "jobs").write_bytes(b"long")
    directory = DiskDirectory(tmp_path)
    held = UnnamedFiles()
    held.keep_open("jobs", directory.open)
    held.keep_open("missing", directory.open)
    directory.remove("jobs")
    assert len(held) == 1
    assert open_below(tmp_path) == ["jobs (deleted)"]
    held.free(no_pause)
    assert open_below(tmp_path) == []
