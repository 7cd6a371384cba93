"""Values of options that are wrong."""

import pytest

from kestrelmq.cli.main import main

WHERE = ["--output", "nowhere"]


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["put", "work", "x", "--expiry", "soon"], "--expiry"),
        (["put", "work", "x", "--delay=-1"], "--delay"),
        (["get", "work", "--timeout", "nan"], "--timeout"),
        (["monitor", "work", "soon"], "TIME"),
        (["declare", "work", "--expires", "soon"], "--expires"),
        (["declare", "work", "--max-age", "soon"], "--max-age"),
        (["reserve", "work", "--lease", "soon"], "--lease"),
        (["reserve", "work", "--lease", "1s", "--grace", "soon"], "--grace"),
        (["release", "work", "1-2", "--delay", "soon"], "--delay"),
        (["extend", "work", "soon", "1-2"], "LEASE"),
        (["top", "--interval", "soon"], "--interval"),
        (["queues", "--servers", "a:b"], "--servers"),
        (["queues", "--zookeeper", "z:x", "--path-prefix", "/p"], "--zookeeper"),
        (["bench", "flood", "--bytes", "x"], "--bytes"),
        (["bench", "flood", "--bytes", "1"], "--bytes"),
        (["bench", "flood", "--server", "a:b"], "--server"),
        (["bench", "flood", "--queue", "a b"], "--queue"),
        (["bench", "many-clients", "--pause", "x"], "--pause"),
        (["pipeline", "archive", "work", *WHERE, "--every", "bogus"], "--every"),
        (["pipeline", "archive", *WHERE, "--journals", "p", "--start", "bogus"], "--start"),
        (["pipeline", "archive", "work", *WHERE, "--servers", "a:b"], "--servers"),
        (["pipeline", "restore", "table", *WHERE, "--since", "bogus"], "--since"),
        (["pipeline", "restore", "table", *WHERE, "--until", "9" * 20], "--until"),
        (["pipeline", "restore", "table", *WHERE, "--since", "9", "--until", "9"], "--since"),
        (["pipeline", "restore", "table", "--live", "--servers", "a:b"], "--servers"),
    ],
)
def test_a_wrong_value_is_wrong_usage(
    capsys: pytest.CaptureFixture[str], arguments: list[str], option: str
) -> None:
    """The error names the option, and nothing has begun."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert f"Invalid value for '{option}'" in capsys.readouterr().err


def test_a_wrong_variable_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not the flag that is wrong."""
    monkeypatch.setenv("KESTRELMQ_SERVERS", "a:b")
    with pytest.raises(SystemExit) as ended:
        main(["queues"])
    assert ended.value.code == 2
    assert "Invalid value for 'KESTRELMQ_SERVERS'" in capsys.readouterr().err
