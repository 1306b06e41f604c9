"""Histories made up from a seed, for tests of who reads them: more than a log says in a short time.

Attempts run for days, some still do, members were replaced, devices are shared, names are such that a database with an order of
its own puts them elsewhere than Python does. The rows hang together as those of a log do, and no engine made them.
"""

import random

from muster.cli.history_query import Head
from muster.history.fold import Changes, Store
from muster.history.rows import AttemptRow, CycleRow, InstanceRow, JobRow, Json, PlacementRow

DAY_US = 86_400_000_000
BEGAN_US = 1_767_225_600_000_000 - 3 * DAY_US // 4
USERS = ("ada", "a-da", "a.da", "ad0", "zoe")
QUEUES = ("default", "re-search", "re.search")
MODELS = ("H100", "h100", "A100-SXM4-80GB", "")
NODES = tuple(f"{name}{number}" for name in ("n-", "n.", "n") for number in range(4))
NAMES = ("train", "tra-in", "eval")
PHASES = {"prepare": "starting", "run": "running", "stop": "stopping"}
CELL = "main"


def made_up(seed: int, jobs: int = 40) -> tuple[Store, Head]:
    """All rows of a history, and how far it goes."""
    made = Maker(seed)
    for number in range(jobs):
        made.job(number)
    store = Store()
    store.take(made.rows)
    return store, made.head


class Maker:
    """Makes rows."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.head = Head(CELL, 100_000, BEGAN_US + 6 * DAY_US + self.chance.randrange(DAY_US))
        self.rows = Changes()
        self.rows.add(
            "cycles",
            CycleRow(
                cell=CELL,
                number=self.head.cycle,
                term=1,
                at_us=self.head.at_us,
                policy="default 1",
                inputs=0,
                decisions=0,
                digest="00" * 32,
                position=self.head.cycle,
                size_bytes=10,
                host=None,
                build=None,
                gap_us=None,
            ),
        )

    def job(self, number: int) -> None:
        """A job, with all that hangs below it."""
        chance = self.chance
        job = f"{number % 7:08x}-{chance.randrange(16**4):04x}-7000-8000-{number:012x}"
        entered_us = BEGAN_US + chance.choice((0, DAY_US // 4, chance.randrange(6 * DAY_US)))
        is_array = chance.random() < 0.3
        rejected = chance.random() < 0.1
        milli = chance.choice((0, 250, 1000, 8000))
        instances = [self._instance(job, index, entered_us, milli, rejected) for index in range(3 if is_array else 1)]
        states = [instance.state for instance in instances]
        held = sum(state in PHASES.values() for state in states)
        ended = [instance.ended_us for instance in instances]
        over = None not in ended
        state = next(name for name in ("failed", "cancelled", "rejected", "finished", *states) if name in states)
        self.rows.add(
            "jobs",
            JobRow(
                cell=CELL,
                job=job,
                name=chance.choice(NAMES),
                user_name=chance.choice(USERS),
                queue=chance.choice(QUEUES),
                priority=chance.randrange(-5, 100),
                state=state if over else "running" if held else "pending",
                reason="too large" if rejected else "",
                instances=len(states),
                pending=states.count("pending"),
                running=held,
                finished=states.count("finished"),
                failed=states.count("failed"),
                cancelled=states.count("cancelled"),
                is_array=is_array,
                tasks=2,
                cpu_milli=4000,
                memory_mib=1024,
                gpu_milli=milli,
                gpu_memory_mib=0,
                gpu_models=Json('["H100","a\\"b"]' if milli else "[]"),
                shape="shape",
                preemptible=chance.random() < 0.5,
                max_retries=3,
                time_limit_us=chance.choice((None, 3_600_000_000)),
                labels=Json(chance.choice(("{}", '{"a":"1","b":"2"}', '{"longer":"ü","z":""}'))),
                command=Json('["sh","-c","true"]'),
                image="",
                directory="/work",
                submitted_us=chance.choice((None, entered_us - 5)),
                entered_us=entered_us,
                entered_cycle=_cycle(entered_us),
                ended_us=max(at_us or 0 for at_us in ended) if over else None,
            ),
        )

    def _instance(self, job: str, index: int, entered_us: int, milli: int, rejected: bool) -> InstanceRow:
        chance = self.chance
        at_us, state, reason, code, attempts, runs = entered_us, "pending", "", 0, 0, False
        wanted = 0 if rejected else chance.choice((0, 1, 1, 2, 3))
        while attempts < wanted and not runs and state == "pending":
            bound_us = at_us + chance.choice((0, 1, chance.randrange(DAY_US)))
            if bound_us > self.head.at_us:
                break
            attempts += 1
            ended_us = bound_us + chance.choice((0, 1, DAY_US, chance.randrange(3 * DAY_US)))
            runs = ended_us > self.head.at_us or (attempts == wanted and chance.random() < 0.3)
            outcome = "" if runs else "pending" if attempts < wanted else chance.choice(("finished", "failed", "cancelled"))
            reason = "" if runs else chance.choice(("", "member-failed", "preempted"))
            code = chance.choice((0, 1, -9)) if outcome == "failed" else 0
            phase = chance.choice(tuple(PHASES)) if runs else "ended"
            self.rows.add(
                "attempts",
                AttemptRow(
                    cell=CELL,
                    job=job,
                    instance=index,
                    attempt=attempts,
                    phase=phase,
                    bound_us=bound_us,
                    bound_cycle=_cycle(bound_us),
                    started_us=None if phase == "prepare" or chance.random() < 0.2 else bound_us,
                    ended_us=None if runs else ended_us,
                    tasks=2,
                    cpu_milli=8000,
                    memory_mib=2048,
                    gpu_milli=2 * milli,
                    stop_reason=reason,
                    stop_node="",
                    stop_code=0,
                    kill_at_us=None,
                    by_job="",
                    by_instance=None,
                    outcome=outcome,
                    reason=reason,
                    code=code,
                    charged=outcome == "failed",
                ),
            )
            self._placements((job, index, attempts), bound_us, None if runs else ended_us, milli)
            at_us, state = ended_us, PHASES[phase] if runs else outcome
        over = rejected or state in ("finished", "failed", "cancelled")
        row = InstanceRow(
            cell=CELL,
            job=job,
            instance=index,
            state="rejected" if rejected else state,
            attempts=attempts,
            retries=0,
            not_before_us=None,
            cancelling=False,
            reason=reason,
            code=code,
            ended_us=at_us if over else None,
        )
        self.rows.add("instances", row)
        return row

    def _placements(self, key: tuple[str, int, int], bound_us: int, ended_us: int | None, milli: int) -> None:
        chance = self.chance
        for rank in range(2):
            replaced_us = bound_us + DAY_US // 2
            replaced = chance.random() < 0.2 and replaced_us <= (self.head.at_us if ended_us is None else ended_us)
            for placed_us, released_us in (
                [(bound_us, replaced_us), (replaced_us, ended_us)] if replaced else [(bound_us, ended_us)]
            ):
                self.rows.add(
                    "placements",
                    PlacementRow(
                        cell=CELL,
                        job=key[0],
                        instance=key[1],
                        attempt=key[2],
                        rank=rank,
                        placed_cycle=_cycle(placed_us),
                        group_name="task",
                        node=chance.choice(NODES),
                        uid="uid",
                        phase="running" if released_us is None else "exited",
                        code=0,
                        cpu_milli=4000,
                        memory_mib=1024,
                        gpu_milli=milli,
                        gpu_model=chance.choice(MODELS) if milli else "",
                        devices=Json("[]"),
                        placed_us=placed_us,
                        released_us=released_us,
                    ),
                )


def _cycle(at_us: int) -> int:
    """The cycle of an instant: one a minute."""
    return 1 + (at_us - BEGAN_US) // 60_000_000
