"""What a program imports to hand jobs in, to follow them, and to say what its nodes and devices do.

`Muster` is for asyncio, `muster.client.sync.Muster` for programs without a loop. What is said is typed by `muster.events`.
`pip install 'muster-scheduler[client]'` brings what is needed, and nothing that schedules.
"""

from muster.client import sync
from muster.client.channel import Reported
from muster.client.client import Muster
from muster.client.errors import ClientError, NotInstalled, NotKnown, Refused, Unavailable
from muster.client.ids import new_id
from muster.client.life import Change, Outcome
from muster.client.making import new_job

__all__ = [
    "Change",
    "ClientError",
    "Muster",
    "NotInstalled",
    "NotKnown",
    "Outcome",
    "Refused",
    "Reported",
    "Unavailable",
    "new_id",
    "new_job",
    "sync",
]
