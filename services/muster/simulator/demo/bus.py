"""The input topics of the demo: they keep what they took, in order, and a scheduler reads on from the positions in its log.

They outlive the scheduler, as a broker would. What a producer was told is taken is the producer's to remember (`accepted`).
"""

from muster.events.base import Event
from muster.events.codec import encode_entry
from muster.events.jobs import JobSubmitted
from muster.scheduler.messages import JOBS, NODES, OPERATIONS, Message


class Bus:
    """One partition a topic."""

    def __init__(self, lose: str = "") -> None:
        self.accepted: dict[str, str] = {}
        """What producers remember: name by id of each job whose submission was acknowledged."""
        self._topics: dict[str, list[Message]] = {f"{topic}/0": [] for topic in (JOBS, NODES, OPERATIONS)}
        self._lose = lose
        """A plant: the submission of this job is acknowledged and dropped."""

    def submit(self, event: JobSubmitted, at_us: int) -> None:
        """Take a submission and acknowledge it."""
        self.accepted[event.job] = event.name
        if event.name != self._lose:
            self.put(JOBS, encode_entry(event), at_us, event.job)

    def say(self, event: Event, at_us: int, key: str = "") -> None:
        """Take what a person says about a job or the cluster."""
        self.put(JOBS if key else OPERATIONS, encode_entry(event), at_us, key)

    def put(self, topic: str, data: bytes, at_us: int, key: str) -> None:
        """Keep a message at the next offset."""
        messages = self._topics[f"{topic}/0"]
        messages.append(Message(f"{topic}/0", len(messages), data, at_us, key))

    def after(self, positions: dict[str, int]) -> list[Message]:
        """What stands at and after these positions, in the order in which it was taken from each topic."""
        return [message for source, messages in self._topics.items() for message in messages[positions.get(source, 0) :]]
