"""Every block of every page runs as it stands, from the top of the page to its end."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import runner, spark_runner
from tests.pages.runner import PAGES, blocks

ROOT = Path(__file__).parents[2]
SPARK = [page for page in PAGES if page.name.startswith("spark")]
"""Pages whose programs share a session; `tests/spark` has the commands."""
ISOLATED = ["unshare", "--map-root-user", "--net", "--pid", "--mount-proc", "--kill-child"]
"""A network and a file system of its own: the default ports are free, and all it starts ends."""

isolated = subprocess.run([*ISOLATED, "true"], check=False, capture_output=True).returncode == 0


@pytest.mark.skipif(not isolated, reason="this system lets nobody have a network of his own")
@pytest.mark.parametrize(
    "page",
    [one for one in PAGES if one not in SPARK and any(blocks(one))],
    ids=lambda page: page.stem,
)
def test_a_page_runs(page: Path, tmp_path: Path) -> None:
    """Its commands succeed and print what the page says; its programs run; its files load."""
    command = [*ISOLATED, sys.executable, "-m", runner.__name__, str(page), str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.skipif(not isolated, reason="this system lets nobody have a network of his own")
def test_the_programs_of_the_pages_about_spark_run(tmp_path: Path) -> None:
    """Each prints what its page says."""
    command = [*ISOLATED, sys.executable, "-m", spark_runner.__name__, str(tmp_path)]
    command += map(str, SPARK)
    run = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_few_blocks_are_not_run() -> None:
    """Each says why."""
    reasons = [one.reason for page in PAGES for one in blocks(page) if one.reason is not None]
    assert all(re.fullmatch(r"\S.{10,}", reason) for reason in reasons)
    assert len(reasons) <= 12


def test_no_page_takes_more_than_ten_minutes() -> None:
    """At 220 words a minute; tables that are generated are looked things up in, not read."""
    generated = {"promises.md", "settings.md", "statistics.md"}
    words = {page.name: len(page.read_text().split()) for page in PAGES}
    long = {name for name, count in words.items() if count > 2200}
    assert long - generated == set()


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_a_page_outside_of_the_site_has_no_dead_link(name: str) -> None:
    """`make site` checks the links of all others."""
    links = re.findall(r"\]\(([^)#]+)", (ROOT / name).read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
