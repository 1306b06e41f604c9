"""How Slurm's programs speak: results on standard output, one sentence on standard error."""

import sys


class Refused(Exception):
    """The program cannot do this: one sentence, and its exit status."""

    def __init__(self, sentence: str, status: int = 1) -> None:
        super().__init__(sentence)
        self.status = status


def say(program: str, sentence: str) -> None:
    """An error, as Slurm's programs begin theirs."""
    print(f"{program}: error: {sentence}", file=sys.stderr)


def note(program: str, sentence: str) -> None:
    """Something that a person should know."""
    print(f"{program}: {sentence}", file=sys.stderr)
