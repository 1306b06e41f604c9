"""The second judge: whether every recorded decision was legal. It shares only the event types with what it judges."""

from muster.verify.judge import Judge, Summary, Violation, verify

__all__ = ["Judge", "Summary", "Violation", "verify"]
