"""Engines' addresses as they may be logged."""

from urllib.parse import urlsplit


def without_password(url: str) -> str:
    """The URL without the name and password that may stand in it."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
