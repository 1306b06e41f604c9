"""Who runs this command, as jobs call their users."""

import getpass
import os

from muster.agent import credentials
from muster.doors.origin import slug


def user_here() -> str:
    """Inside of a job the job's user, else the user of this machine; empty for none that can be called so."""
    if credentials.read() is not None:
        return os.environ.get("MUSTER_USER", "")
    try:
        return slug(getpass.getuser())
    except (KeyError, OSError):
        return ""
