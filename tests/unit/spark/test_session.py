"""The settings of a session, which is not started here."""

import pytest

from kestrelmq.spark.session import session_settings

OF_THIS_MACHINE = {"spark.driver.host", "spark.driver.bindAddress", "spark.local.dir"}


@pytest.mark.parametrize(
    ("master", "is_local"),
    [
        ("local[*]", True),
        ("local[2]", True),
        ("local[2,4]", True),
        ("spark://host:7077", False),
        ("yarn", False),
        ("k8s://https://host:6443", False),
    ],
)
def test_only_a_local_master_is_tied_to_this_machine(master: str, *, is_local: bool) -> None:
    """Executors of a cluster could not reach loopback, and do not have our folders."""
    settings = session_settings(master, "/scratch", {})
    assert settings["spark.master"] == master
    assert settings["spark.sql.session.timeZone"] == "UTC"
    assert OF_THIS_MACHINE & set(settings) == (OF_THIS_MACHINE if is_local else set())


def test_what_the_user_sets_wins() -> None:
    """Over each of our settings, and over the master."""
    given = {"spark.driver.host": "example.org", "spark.ui.enabled": "true", "a": "b"}
    assert given.items() <= session_settings("local[2]", "/scratch", given).items()
    settings = session_settings("local[2]", "/scratch", {"spark.master": "yarn"})
    assert settings["spark.master"] == "yarn"
    assert not OF_THIS_MACHINE & set(settings)
