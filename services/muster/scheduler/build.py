"""Which build this is, as a term's start and the gateway's document say it."""

from importlib.metadata import PackageNotFoundError, version


def build() -> str:
    """The version of this build."""
    try:
        return version("muster-scheduler")
    except PackageNotFoundError:
        return "unknown"
