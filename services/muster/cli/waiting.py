"""Waiting for jobs: with progress on standard error, or with the output of rank 0. Survives a gateway that is away."""

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from muster.cli.gateway_client import Gateway, Submission, Unavailable, exit_status
from muster.cli.output import Failure, errors
from muster.cluster.jobs import TERMINAL
from muster.gateway.shown import JobRow, JobShown

LOOK_S = 0.05
LOOK_MAX_S = 1.0
Answer = TypeVar("Answer")

AWAY_S = 120.0
"""So long a gateway may be away in the middle of waiting."""


def recorded(gateway: Gateway, taken: list[Submission]) -> None:
    """Wait until every submission is recorded: on a bus it may wait there while no scheduler leads.

    Raises:
        Failure: one is refused.
    """
    for submission in taken:
        said = False
        while not submission.cycle:
            time.sleep(LOOK_S * 4)
            with contextlib.suppress(Unavailable):
                submission = gateway.submission(submission.job)
            if submission.state == "refused":
                raise Failure(f"{submission.job} is refused: {submission.reason}")
            if not submission.cycle and not said:
                said = True
                errors.print(f"muster: {submission.job} waits for a scheduler", markup=False, highlight=False)


def wait(gateway: Gateway, jobs: list[str]) -> int:
    """Until all are over; the worst exit status."""
    left = dict.fromkeys(jobs)
    states: dict[str, JobRow] = {}
    pause_s = LOOK_S
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        shown = progress.add_task(f"{len(jobs)} jobs", total=None)
        while left:
            for job, row in _some(gateway, list(left)).items():
                states[job] = row
                if row.state in TERMINAL:
                    del left[job]
            counts = Counter(row.state for row in states.values())
            progress.update(shown, description=", ".join(f"{count} {state}" for state, count in sorted(counts.items())))
            if left:
                time.sleep(pause_s)
                pause_s = min(LOOK_MAX_S, pause_s * 1.5)
    for row in states.values():
        say_end(row)
    return max(exit_status(row) for row in states.values())


def follow(gateway: Gateway, job: str) -> int:
    """Print rank 0's output, attempt after attempt, until the job is over; its exit status."""
    followed = 0
    pause_s = LOOK_S
    while True:
        shown = look(gateway, job)
        first = shown.elements[0] if shown.elements else None
        over = shown.job.state in TERMINAL
        attempts = first.attempts if first is not None else 0
        begun = first is not None and first.attempt is not None and first.attempt.started_us > 0
        if attempts > followed and (begun or over):
            if followed:
                errors.print(f"muster: attempt {attempts} begins", markup=False, highlight=False)
            followed = attempts
            pause_s = LOOK_S
            _copy(gateway, job, attempts, over)
            continue
        if over:
            say_end(shown.job)
            return exit_status(shown.job)
        time.sleep(pause_s)
        pause_s = min(LOOK_MAX_S, pause_s * 1.5)


def look(gateway: Gateway, job: str) -> JobShown:
    """The job, even if the gateway is away for a while."""
    return _patiently(lambda: gateway.job(job))


def _some(gateway: Gateway, jobs: list[str]) -> dict[str, JobRow]:
    """Rows of these jobs, asked for in one request.

    Raises:
        Failure: one is not known any more.
    """
    rows = _patiently(lambda: gateway.some(jobs))
    for job in jobs:
        if job not in rows:
            rows[job] = look(gateway, job).job  # says why not
    return rows


def _patiently(ask: Callable[[], Answer]) -> Answer:
    until = time.monotonic() + AWAY_S
    while True:
        try:
            return ask()
        except Unavailable:
            if time.monotonic() > until:
                raise


def say_end(row: JobRow) -> None:
    """One sentence about a job that did not end well."""
    if row.state != "finished":
        why = (f": {row.reason}" if row.reason else "") + (f", exit {row.code}" if row.code else "")
        errors.print(
            f"muster: {row.name} ({row.job}) {row.state}{why}", style="red", markup=False, highlight=False, soft_wrap=True
        )


def _copy(gateway: Gateway, job: str, attempt: int, over: bool) -> None:
    """Copy the output of an attempt until it ends; after a gateway that went away, from where it broke off."""
    seen = 0
    until = 0.0
    while True:
        try:
            for data in gateway.output(job, attempt=attempt, rank=0, offset=seen, follow=not over):
                seen += len(data)
                until = 0.0
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
            return
        except Unavailable:
            if not until:
                until = time.monotonic() + AWAY_S
                errors.print("muster: the gateway is away; trying again", markup=False, highlight=False)
            elif time.monotonic() > until:
                raise
            time.sleep(LOOK_S * 4)
        except Failure:
            if over:
                return  # it may never have begun, or its output is gone
            raise
