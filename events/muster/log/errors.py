"""What can go wrong with a log, typed: operating errors, which a loop handles and a person reads as one sentence.

A refused input is no error but an entry, and a broken invariant is none of these: it stops the process.
"""


class OperatingError(Exception):
    """Something outside this program is not as it must be. Its text is one sentence: what, where, what would be right."""


class LogError(OperatingError):
    """An operating error of a log."""


class AppendDoubt(LogError):
    """An append was not answered: the record may stand in the log, may land later, or never. Only reading tells."""


class LogFull(LogError):
    """There is no room for the record. It is not in the log and never will be."""


class RecordTooLarge(LogError):
    """The record is larger than any engine takes. It is not in the log and never will be."""


class LogClosed(LogError):
    """The log was closed, or opened for reading only. Nothing was appended."""


class LogLocked(LogError):
    """Another scheduler holds the folder."""


class LogMissing(LogError):
    """There is no log at this place."""


class LogUnreachable(LogError):
    """Nobody answers where the log is. What stands in it is not known now; to ask again later is right."""


class LogDamaged(LogError):
    """The file is no log of ours, or the engine finds it broken."""


class OffsetsLost(LogError):
    """Messages of an input topic are gone that no cycle has taken. Only an operator's recorded word goes on from here."""


class LogHalted(LogError):
    """The chain of records is broken at `position`: the log was cut or altered. Nobody may go on from here."""

    def __init__(self, position: int, number: int, reason: str) -> None:
        super().__init__(f"the log halts at position {position}, after cycle {number}: {reason}")
        self.position = position
        self.number = number
        self.reason = reason
