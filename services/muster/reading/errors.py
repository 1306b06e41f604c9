"""What is wrong with a file that somebody wrote: one sentence with its place."""

QUOTED_MAX = 120
KEY_MAX = 160


class FileError(Exception):
    """The file is wrong: `FILE:LINE: KEY ...`, one sentence that says what would be right. Line 0 is not known and not said."""

    def __init__(self, file: str, line: int, key: str, sentence: str) -> None:
        self.file = file
        self.line = line
        self.key = key if len(key) <= KEY_MAX else "..." + key[-KEY_MAX:]
        super().__init__(f"{file}:{line}: {self.key} {sentence}" if line else f"{file}: {self.key} {sentence}")
        self.sentence = sentence


def quoted(text: object) -> str:
    """A value as a sentence quotes it: never longer than a line, and without control characters."""
    shown = repr(text)
    return shown if len(shown) <= QUOTED_MAX else shown[: QUOTED_MAX - 3] + "..."
