"""Which door a file goes through, told by its content and not by its name."""

from muster.doors.errors import DoorError, Notice
from muster.doors.kubernetes import read_manifests
from muster.doors.muster_file import read_job_file
from muster.doors.origin import Notices, Opened, Origin
from muster.doors.slurm import is_script, read_script
from muster.reading.values import BYTES_MAX, Value, decoded, read_documents


def open_file(data: bytes, file: str, origin: Origin) -> Opened:
    """The jobs of a file: a Slurm script, Kubernetes manifests, or Muster's own.

    Raises:
        DoorError: it is none of these, or one that makes no sense; with the place.
    """
    if data.startswith(b"#!"):
        return _script(data, file, origin)
    text = decoded(data, file)
    if is_script(text):
        return read_script(text, file, origin)
    documents = read_documents(text, file)
    if not documents:
        raise Value(None, "", file, 1, "file").error("is empty: it must hold a job, a Kubernetes manifest or a Slurm script")
    notices = Notices(file)
    if any(_is_manifest(document) for document in documents):
        jobs = read_manifests(documents, origin, notices)
    else:
        jobs = read_job_file(documents, origin)
    return Opened(jobs=tuple(jobs), notices=notices.all())


def _script(data: bytes, file: str, origin: Origin) -> Opened:
    """A shell takes any bytes, so a script in another encoding is no error, as long as its text can be written down."""
    try:
        text = decoded(data, file)
    except DoorError as error:
        if len(data) > BYTES_MAX:
            raise
        opened = read_script(data.decode("latin-1"), file, origin)
        notice = Notice(file=file, line=error.line, key="script", sentence="is not UTF-8: it is read as Latin-1")
        return Opened(jobs=opened.jobs, notices=(notice, *opened.notices))
    return read_script(text, file, origin)


def _is_manifest(document: Value) -> bool:
    return isinstance(document.data, dict) and ("apiVersion" in document.data or "kind" in document.data)
