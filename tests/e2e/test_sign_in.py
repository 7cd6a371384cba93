"""The sign-in page of the console, in a real browser."""

from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.conftest import Console, open_console
from tests.support.server import running_server
from tests.support.users import PASSWORD, users_config

CONFIG: Final = users_config(alice='read = ["work"]\nwrite = ["work"]', root="admin = true")
pytestmark = pytest.mark.compiled_only


def sign_in(console: Console, user: str, password: str) -> None:
    """Fill in the page."""
    console.page.get_by_label("User", exact=True).fill(user)
    console.page.get_by_label("Password", exact=True).fill(password)
    console.confirm("Sign in")


def test_signing_in_and_out(browser: Browser, tmp_path: Path) -> None:
    """A wrong password is told; the console then has what the user may see, until it signs out."""
    with running_server(tmp_path, config=CONFIG) as server:
        for console in open_console(browser, server, width=1360, height=900):
            page = console.page
            page.goto(console.url)
            expect(page.get_by_role("dialog")).to_contain_text("Sign in")
            page.keyboard.press("Escape")
            expect(page.get_by_role("dialog")).to_be_visible()
            assert console.accessibility_problems() == []
            sign_in(console, "alice", "wrong")
            expect(page.get_by_role("alert").first).to_have_text(
                "There is no user with this password."
            )
            sign_in(console, "root", PASSWORD)
            expect(page.locator("#live")).to_have_text("Live")
            for name in ("work", "secret"):
                console.press("New queue")
                page.get_by_label("Name", exact=True).fill(name)
                console.confirm("Create")
                console.expect_toast(f"{name} was created.")
                page.goto(console.url)
                expect(page.locator("#live")).to_have_text("Live")
            expect(page.get_by_role("link", name="secret")).to_be_visible()
            console.press("Sign out")
            sign_in(console, "alice", PASSWORD)
            expect(page.locator("#live")).to_have_text("Live")
            expect(page.get_by_role("link", name="work")).to_be_visible()
            assert page.get_by_role("link", name="secret").count() == 0
            page.reload()
            expect(page.locator("#live")).to_have_text("Live")
            assert console.accessibility_problems() == []
