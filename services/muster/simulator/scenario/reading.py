"""A scenario file as values that know where they stand: `muster.reading`, one document a file."""

from pathlib import Path

from muster.reading.errors import FileError
from muster.reading.values import Value, decoded, read_documents

__all__ = ["ScenarioError", "Value", "read_file", "read_text", "show"]

ScenarioError = FileError


def read_file(path: Path) -> Value:
    """The file's only document.

    Raises:
        ScenarioError: it cannot be read, or is not YAML.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ScenarioError(str(path), 1, "file", f"cannot be read: {error}") from None
    return read_text(decoded(data, str(path)), str(path))


def read_text(text: str, file: str) -> Value:
    """The text's only document.

    Raises:
        ScenarioError: it is not YAML.
    """
    documents = read_documents(text, file)
    if not documents:
        raise ScenarioError(file, 1, "file", "is empty")
    if len(documents) > 1:
        raise documents[1].error("is a second document: a scene is one")
    return documents[0]


def show(plain: object) -> str:
    """A plain value in the flow style in which scenes are written."""
    if isinstance(plain, dict):
        return "{" + ", ".join(f"{key}: {show(value)}" for key, value in plain.items()) + "}"
    if isinstance(plain, list | tuple):
        return "[" + ", ".join(show(value) for value in plain) + "]"
    if isinstance(plain, bool):
        return "true" if plain else "false"
    return "null" if plain is None else str(plain)
