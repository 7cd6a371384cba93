"""Run the programs of the pages about Spark: `python -m tests.pages.spark_runner FOLDER PAGE...`.

As `runner`, with two differences. All programs share one session of Spark, because starting one
takes longer than they do. And of each page only its server runs, and the programs that have a
`text` block behind them.
"""

import contextlib
import io
import os
import runpy
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from kestrelmq.spark.session import local_session
from tests.pages.runner import Reader, blocks


def run(page: Path, folder: Path) -> None:
    """Run the programs of a page in an empty folder; name the block that is wrong."""
    reader = Reader(folder)
    is_run = False
    for block, behind in pairwise(blocks(page)):
        if block.serves:
            reader.do(block)
        elif (block.language, behind.language) == ("python", "text"):
            program, printed = folder / "program.py", io.StringIO()
            program.write_text(block.text)
            with contextlib.redirect_stdout(printed):
                runpy.run_path(str(program), run_name="__main__")
            reader.printed, is_run = printed.getvalue(), True
            try:
                reader.do(behind)
            except ValueError as error:
                sys.exit(f"{page.name}, line {block.line}: {error}")
    reader.stop()
    assert is_run, f"{page.name} has no program"


def main() -> None:
    """Run the pages one after the other."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    folder = Path(sys.argv[1])
    os.chdir(folder)  # before Java is started, which takes relative paths from there
    with local_session("local[2]", quick=True):
        for page in sys.argv[2:]:
            run(Path(page), folder)
            for left in folder.iterdir():
                shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()


if __name__ == "__main__":
    main()
