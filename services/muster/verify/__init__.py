"""The second judge: whether every recorded decision was legal. It shares only the event types with what it judges."""

from muster.verify.found import Summary, Violation
from muster.verify.judge import Judge, verify

__all__ = ["Judge", "Summary", "Violation", "verify"]
