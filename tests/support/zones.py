"""Time zones."""

from datetime import datetime, tzinfo


class NoZone(tzinfo):
    """A time zone that does not know its offset."""

    def utcoffset(self, _: datetime | None) -> None:
        """Return None."""

    def dst(self, _: datetime | None) -> None:
        """Return None."""

    def tzname(self, _: datetime | None) -> None:
        """Return None."""
