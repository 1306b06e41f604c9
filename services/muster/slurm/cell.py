"""The cell as Slurm's programs see it: its gateway, and jobs by whatever a script calls them."""

from collections.abc import Iterator
from contextlib import contextmanager

from muster.cli.gateway_client import Gateway
from muster.cli.output import Failure
from muster.slurm.say import Refused


@contextmanager
def open_gateway() -> Iterator[Gateway]:
    """The gateway of the environment; what it does not do becomes one sentence of the program."""
    try:
        with Gateway() as gateway:
            yield gateway
    except Failure as failure:
        raise Refused(str(failure)) from None


def find_job(gateway: Gateway, text: str) -> str:
    """The id of the job that is meant: an id, the beginning of one, or a name, with or without `_ELEMENT`.

    Raises:
        Refused: there is none.
    """
    if not text:
        raise Refused("no job was named")
    try:
        return gateway.find(split_element(text)[0])
    except Failure as failure:
        raise Refused(str(failure)) from None


def split_element(text: str) -> tuple[str, int | None]:
    """`ID_7` is element 7 of an array; `ID` is all of the job."""
    job, mark, element = text.rpartition("_")
    return (job, int(element)) if mark and element.isdigit() else (text, None)
