"""The largest cycle that the bounds allow fits into a record, with room to spare."""

from muster.events.base import Event
from muster.events.codec import decode_cycle, digest, encode_cycle, encode_entry
from muster.events.decisions import AttemptEnded, AttemptRef, InstanceBound, InstancePreempted, JobRejected, Nominated, Placement
from muster.events.jobs import GroupRequest, JobRequest, JobRun, JobSubmitted
from muster.events.operations import Policy
from muster.events.record import Cycle
from muster.log.port import RECORD_MAX_BYTES

POLICY = Policy()
INPUTS_MAX_BYTES = 4 * 1024 * 1024
INPUTS_MAX = 2000
WALL_US = 1_900_000_000_000_000
DEVICES = tuple(range(8))


def job(number: int) -> str:
    return f"0190a5b6-7c3d-7e4f-8a9b-{number:012x}"


def inputs() -> list[bytes]:
    """Exactly as many and as large as a cycle may have."""
    size = INPUTS_MAX_BYTES // INPUTS_MAX
    made = []
    for number in range(INPUTS_MAX):
        bare = JobSubmitted(
            job=job(number), name="n", user="u", request=JobRequest(groups=(GroupRequest(),)), run=JobRun(output="x")
        )
        padding = "x" * (size - len(encode_entry(bare)) + 1)
        made.append(
            encode_entry(JobSubmitted(job=bare.job, name="n", user="u", request=bare.request, run=JobRun(output=padding)))
        )
    assert sum(map(len, made)) >= INPUTS_MAX_BYTES - INPUTS_MAX
    return made


def placements(first: int, count: int) -> tuple[Placement, ...]:
    """The last ranks of a gang, on nodes whose rows have as many digits as the largest cell's."""
    return tuple([Placement(99_999 - rank, 9_999 - rank % 1000, DEVICES) for rank in range(first, first + count)])


def bound(number: int, count: int) -> Event:
    return InstanceBound(job=job(number), instance=99_999, attempt=999, placements=placements(0, count))


def ended(number: int) -> Event:
    return AttemptEnded(
        job=job(number),
        instance=99_999,
        attempt=999,
        then="cancelled",
        reason="ready-timeout",
        code=-15,
        not_before_us=WALL_US,
        avoid=job(number),
        charged=False,
    )


def preempted(number: int) -> Event:
    return InstancePreempted(job=job(number), instance=99_999, attempt=999, by_job=job(0), by_instance=99_999, kill_at_us=WALL_US)


def small_gangs() -> list[Event]:
    """Every decision binds an instance of five tasks."""
    return [bound(number, POLICY.placements_max // POLICY.decisions_max) for number in range(POLICY.decisions_max)]


def one_gang_and_ends() -> list[Event]:
    """One gang has all placements; every other decision is the longest there is."""
    return [bound(0, POLICY.placements_max), *(ended(number) for number in range(1, POLICY.decisions_max))]


def one_nomination() -> list[Event]:
    """One gang has all placements and every victim."""
    victims = tuple([AttemptRef(job(number), 99_999, 999) for number in range(1, POLICY.decisions_max)])
    nominated = Nominated(
        job=job(0), instance=99_999, placements=placements(0, POLICY.placements_max), victims=victims, until_us=WALL_US
    )
    return [nominated, *(preempted(number) for number in range(1, POLICY.decisions_max))]


def rejections_and_ends() -> list[Event]:
    """Every submission is rejected, with a long sentence."""
    rejected = [JobRejected(job=job(number), reason="x" * 300) for number in range(INPUTS_MAX)]
    return [
        *rejected,
        bound(0, POLICY.placements_max),
        *(ended(number) for number in range(POLICY.decisions_max - INPUTS_MAX - 1)),
    ]


def test_the_largest_legal_cycle_is_under_12_mib() -> None:
    entries = inputs()
    sizes = {}
    for make in (small_gangs, one_gang_and_ends, one_nomination, rejections_and_ends):
        decisions = make()
        assert len(decisions) == POLICY.decisions_max
        cycle = Cycle(
            cell="main",
            number=2**53,
            term=2**53,
            at_us=WALL_US,
            started=None,
            inputs=(),
            decisions=tuple(decisions),
            positions={f"muster.nodes/{partition}": 2**53 for partition in range(1000)},
            policy="default/1",
            previous=digest(b""),
        )
        data = encode_cycle(cycle, entries)
        sizes[make.__name__] = len(data)
        assert decode_cycle(data).decisions == cycle.decisions
    print({name: f"{size / 2**20:.2f} MiB" for name, size in sizes.items()})
    assert max(sizes.values()) < 12 * 2**20 < RECORD_MAX_BYTES
    assert max(sizes.values()) > 10 * 2**20
