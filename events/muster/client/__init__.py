"""What a program imports to hand jobs in, to follow them, and to say what its nodes and devices do."""

from muster.client.errors import ClientError, NotInstalled, NotKnown, Refused, Unavailable
from muster.client.ids import new_id
from muster.client.life import Change, Outcome

__all__ = [
    "Change",
    "ClientError",
    "NotInstalled",
    "NotKnown",
    "Outcome",
    "Refused",
    "Unavailable",
    "new_id",
]
