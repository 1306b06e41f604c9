"""What a client's call can end with instead of an answer: each says in one sentence what is wrong and what would be right."""


class ClientError(Exception):
    """The call did not do what it says."""


class Refused(ClientError):
    """It was looked at and is not taken: as it stands it never will be."""


class NotKnown(ClientError):
    """The cell knows no such job: it never came, or was forgotten an hour after its end."""


class Unavailable(ClientError):
    """No answer within the client's patience. What was sent may be taken yet: send it again as it is, with the same id."""


class NotInstalled(ClientError):
    """A package is missing that this address needs."""
