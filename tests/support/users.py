"""The users of a server in tests: their passwords, and the configuration that has them."""

from typing import Final

PASSWORD: Final = "correct-horse"  # noqa: S105 # of servers that live for one test
"""The password of each of them."""

HASH: Final = "scrypt:4:1:1:AAAAAAAAAAAAAAAAAAAAAA==:FffZRdh2rm2SFEit/CbSyxi8I3XyD9FSnqguTzJ7m+s="
"""Its hash, a cheap one."""


def users_config(**rights: str) -> str:
    """Return the tables of users, each with lines of settings besides the password."""
    return "\n".join(
        f'[users.{name}]\npassword_hash = "{HASH}"\n{lines}\n' for name, lines in rights.items()
    )
