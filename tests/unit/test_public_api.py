"""What `import kestrelmq` gives, and what it costs."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import kestrelmq

ROOT = Path(__file__).parents[2]


def test_public_names_are_lazy() -> None:
    """Importing the package imports neither the library nor the client."""
    program = (
        "import sys, kestrelmq; assert kestrelmq.__version__\n"
        "ours = [name for name in sys.modules if name.startswith('kestrelmq.')]\n"
        "print(len(ours), 'pydantic' in sys.modules)"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert output.split() == ["1", "False"]


def test_every_public_name_exists() -> None:
    """All that `__all__` lists can be imported; what it does not list cannot."""
    for name in kestrelmq.__all__:
        assert getattr(kestrelmq, name) is not None
    assert set(kestrelmq.__all__) == set(dir(kestrelmq))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = kestrelmq.nothing


def test_version_classifier_and_changelog_agree() -> None:
    """The newest release in the changelog is this version, and its status is that of a release."""
    releases = re.findall(
        r"^## (\d\S*) - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert releases[0] == kestrelmq.__version__
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    assert "Development Status :: 5 - Production/Stable" in classifiers
