"""The doors that people already use: Muster's own job files, Kubernetes manifests, Slurm scripts.

A door turns the bytes of a file into submissions. It reads nothing but these bytes: who submits, where and with which ids
is told by an `Origin`. What a door cannot honour it names, with its place; what makes no sense is a `DoorError`.
"""

from muster.doors.detect import open_file
from muster.doors.errors import DoorError, Notice
from muster.doors.origin import Opened, Origin

__all__ = ["DoorError", "Notice", "Opened", "Origin", "open_file"]
