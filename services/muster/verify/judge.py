"""The second judge: was every decision that stands in the log a legal one?

It folds inputs and decisions into its own plain `World` and asks of each decision whether it was allowed where it stands, not
whether it was the best, nor whether one is missing. What it finds it reports, and then folds it all the same. The rules:

    time        numbers are dense, terms rise with a `TermStarted` and only then, `at_us` never goes back
    bounds      no more inputs, decisions, placements and deferrals in a cycle than the policy says
    kind        inputs stand among the inputs, decisions among the decisions
    unknown     a decision names a job, instance, node or nomination that is there
    terminal    nothing is decided about what is over; what is cancelled is not bound
    attempt     attempts count 1, 2, 3 ...; an instance has one at a time; a decision names the current one
    too-early   not bound before `not_before_us`
    waits       not bound before what its job waits for has come, nor beside more elements than may run at once
    gang        ranks valid, once, the first of their group; each group between its min and its count
    node        the node is there, heard, not cordoned, drained, fenced, quarantined or avoided; taints and selector
    device      as many as asked for, distinct, present, healthy, of a model and memory that will do
    capacity    a placement never takes what is held or foreign
    nomination  nor what is kept for somebody whom the asker does not outrank; what is kept fits once its victims are gone;
                it ends for a reason that is so, before its instance is bound or over
    preemption  victim preemptible, past `min_runtime_us`, given its grace, and of strictly lower priority in the same queue
                or below one that says so, or of a queue that borrowed what a higher tier or a guarantee takes back, or one
                that makes way by what it is, which needs none of that but its grace; the beneficiary is nominated in the same
                cycle with it as victim
    yielding    nobody is preempted where it is enough that those go who make way by what they are: best-effort jobs, headroom
    budget      no budget of disruption is broken where a single task would fit without that, nor for a drain
    minimal     had any one victim been left where it is, something of the nominated places or of a limit would be missing
    turn        nobody is bound before who waits for the same, could have it, and by a history of what was used stands before
    quota       what is bound or nominated exceeds no limit of its queue, of those above it, or of its user there, is not lent
                to nobody, and comes from no queue that was removed
    started     every member that has not exited is ready
    held        an attempt ends when nothing is held for it any more
    outcome     finished: all that decide exited with 0; cancelled: somebody asked; failed: own doing, no retry left, or too long
    retries     the job's own failures are charged, nothing else is, and no more than `max_retries` are tried again
    stop        the reason of an order to stop is a fact; it comes once; the kill is not before the order
    grown       an elastic attempt gains members while it runs, none that it has, up to its count
    shrunk      it goes on without members for a reason that is so, and not below its minimum
    degraded    a member is held to be lost, or replaced, only where one is lost
    liveness    silent, lost and returned follow from when the node was heard
    quarantine  only after as many silences as the policy says, and not ended before its time
    plan        what is planned is possible, behind all promised ends and what is planned for those above, within the horizon, and
                for no more than the policy says; it ends for a reason that is so; it moves later only if it has to
    strict      where the policy is strict, nobody starts past one of its queue who waits above it
    delay       nobody who ranks below a plan takes what it needs at its start
    reserved    nobody is bound, replaced or planned where that reaches into what is reserved for others; an amount is as many
                devices as were reserved, there and well, and of no other reservation at that time
    constraint  within a domain, spread, affinity either way, exclusive nodes, ports, NUMA and licences, as the job asks for them
    service     no more replicas than the count and the surge; one is told to go only where too many are wanted, or in a roll that
                has not failed and leaves enough up; one that ended is kept; the metric asks for as many
    forgotten   a job is forgotten when it has been over for `forget_after_us`
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from muster.events import decisions as made
from muster.events.decisions import Placement
from muster.events.record import Cycle
from muster.events.registry import INPUTS
from muster.events.reservations import ReservationRemoved, ReservationSet
from muster.verify import services
from muster.verify.budgets import breaches, drain_fault, harmless
from muster.verify.constraints import Place, constraint_fault
from muster.verify.elastic import go, growth_fault, may_take, named, needless_part, parts_of, shrink_fault, to_stop, told_to_go
from muster.verify.ends import end_faults
from muster.verify.found import Summary, Violation
from muster.verify.liveness import node_decided
from muster.verify.places import Gone, device_fault, gang_fault, held, node_fault, outranks, shortage
from muster.verify.plans import Planned, Plans, above, passed_over
from muster.verify.queues import Books, charge_of, nominated, sum_of
from muster.verify.reservations import Reservations
from muster.verify.turns import Turns
from muster.verify.waiting import outcome_of, waiting_fault
from muster.verify.world import Attempt, AttemptKey, Instance, InstanceKey, Node, Nomination, Task, Use, World
from muster.verify.yielding import all_that_make_way, lone, makes_way, spots, unwilling


def verify(cycles: Iterable[Cycle]) -> list[Violation]:
    """Everything that was not legal in a whole log, in its order."""
    judge = Judge()
    for cycle in cycles:
        judge.judge(cycle)
    return judge.violations


class Judge:
    """Takes the admitted cycles of a log, from the first one on, one by one."""

    def __init__(self) -> None:
        self.world = World()
        self.plans = Plans(self.world)
        self.reserved = Reservations(self.world, self.plans)
        self.turns = Turns(self.world)
        self.summary = Summary()
        self.violations: list[Violation] = []
        self._index, self._about = -1, ""
        """Place of the decision in hand, and what it is about; and what its cycle decides in all:"""
        self._honoured: dict[InstanceKey, None] = {}  # bound where they were nominated, whoever's turn it is
        self._bound: dict[InstanceKey, None] = {}
        self._preempted: dict[AttemptKey, None] = {}
        self._victims: dict[InstanceKey, dict[AttemptKey, None]] = {}  # by the instance that is nominated
        self._members: dict[Task, None] = {}  # that nominations of this cycle name
        self._going: dict[Task, None] = {}  # that are told to go in it for somebody
        self._grounds: dict[AttemptKey, tuple[str, ...]] = {}  # why one may be told to stop for an instance of another queue

    def judge(self, cycle: Cycle) -> list[Violation]:
        """Judge and fold one cycle; what is wrong with it."""
        before, self._index, self._about = len(self.violations), -1, "the cycle"
        self._begin(cycle)
        for event in cycle.inputs:
            self._check(type(event).__name__ in INPUTS, "kind", f"a {type(event).__name__} stands among the inputs")
            self.world.evolve(event)
            if isinstance(event, ReservationSet):
                self.reserved.put(event)
            elif isinstance(event, ReservationRemoved):
                self.reserved.by_name.pop(event.reservation, None)
            services.evolve(self.world, event)
        self._look_ahead(cycle)
        self.plans.prune()
        for self._index, event in enumerate(cycle.decisions):
            self._decision(event)
        self.plans.prune()
        self._index, self._about = -1, "the cycle"
        most = self.plans.most
        done = cycle.started is None and all(type(event) is not made.PassStopped for event in cycle.decisions)
        self._check(len(self.plans.by_key) <= most or not done, "plan", f"{len(self.plans.by_key)} plans; there may be {most}")
        return self.violations[before:]

    def _check(self, so: bool, rule: str, text: str) -> None:
        if not so:
            about = f"{self._about}: {text}"
            self.violations.append(Violation(cycle=self.world.number, index=self._index, rule=rule, text=about))

    def _fault(self, rule: str, fault: str) -> None:
        self._check(not fault, rule, fault)

    def _begin(self, cycle: Cycle) -> None:
        world, started = self.world, cycle.started
        text = f"number {cycle.number}, term {cycle.term}, at {cycle.at_us} after {world.number}, {world.term}, {world.at_us}"
        most = 0 if started is not None else world.policy.inputs_max
        self._check(len(cycle.inputs) <= most, "bounds", f"{len(cycle.inputs)} inputs; at most {most} are allowed")
        right = cycle.number == world.number + 1 and cycle.at_us >= world.at_us
        right = right and (cycle.term > world.term if started is not None else cycle.term == world.term)
        if world.books is not None and world.books.history is not None:
            world.books.history.pass_time(max(world.at_us, cycle.at_us))
        world.number, world.term, world.at_us = cycle.number, cycle.term, max(world.at_us, cycle.at_us)
        world.gaps_us += started.gap_us if started is not None else 0
        self._check(right, "time", text)

    def _look_ahead(self, cycle: Cycle) -> None:
        """Some decisions are legal only with others of their cycle, and there are bounds to a whole one."""
        made_now, policy = cycle.decisions, self.world.policy
        self._honoured = {}
        self._bound = {(e.job, e.instance): None for e in made_now if type(e) is made.InstanceBound}
        self._preempted = {(e.job, e.instance, e.attempt): None for e in made_now if type(e) is made.InstancePreempted}
        self._victims = {}
        self._grounds = {}
        self._members, self._going = {}, told_to_go(self.world, made_now)
        for e in [e for e in made_now if type(e) is made.Nominated]:  # an instance can be nominated twice in a cycle
            named = {(one.job, one.instance, one.attempt): None for one in e.victims}
            self._victims.setdefault((e.job, e.instance), {}).update(named)
        placements = sum(
            len(e.placements) for e in made_now if isinstance(e, made.InstanceBound | made.MembersReplaced | made.InstanceGrown)
        )
        kinds = Counter(type(event).__name__ for event in made_now)
        for what, count, most in (
            ("decisions", len(cycle.decisions), 0 if cycle.started else policy.decisions_max),
            ("placements", placements, policy.placements_max),
            ("deferrals", kinds["ShapeDeferred"], policy.deferrals_max),
        ):
            self._check(count <= most, "bounds", f"{count} {what}; at most {most} are allowed")
        self.summary.cycles += 1
        self.summary.inputs += len(cycle.inputs)
        self.summary.placements += placements
        self.summary.decisions.update(kinds)

    def _decision(self, event: Any) -> None:
        """Find what the decision is about, which must be there, and judge it."""
        kind, world = type(event).__name__, self.world
        named = [str(getattr(event, field, "")) for field in ("job", "instance", "node")]
        self._about = f"{kind} {'/'.join([name for name in named if name])}".strip()
        if kind in ("EntryQuarantined", "ShapeDeferred", "PassStopped"):
            return None  # nothing follows from these
        if kind in ("NodeSilent", "NodeReturned", "NodeLost", "NodeQuarantined", "NodeReleased"):
            node = world.rows.get(event.row)
            if node is not None and node.name == event.node:
                return self._check(*node_decided(world, event, node))
            return self._fault("unknown", f"row {event.row} has no node or another")
        if kind in _OTHERS:
            return _OTHERS[kind](self, event)
        if kind not in _INSTANCES and kind not in _ATTEMPTS:
            return self._fault("kind", "it stands among the decisions")
        instance = world.instance(event.job, event.instance)
        if instance is None or instance.outcome:
            rule = "terminal" if instance else "unknown"
            return self._fault(rule, f"it is {instance.outcome} already" if instance else "there is no such instance")
        if kind in _INSTANCES:
            return _INSTANCES[kind](self, event, instance)
        attempt = instance.attempt
        if attempt is None or attempt.key[2] != event.attempt:
            return self._fault("attempt", f"{event.attempt} is named, of {instance.attempts}, and is not the current one")
        return _ATTEMPTS[kind](self, event, attempt)

    def _placed(self, instance: Instance, places: tuple[Placement, ...]) -> dict[Node, list[Use]]:
        """Judge the node and the devices of each task; what they use, by node."""
        uses: dict[Node, list[Use]] = {}
        for place in places:
            group, node = instance.job.group_of(place.rank), self.world.rows.get(place.row)
            self._check(node is not None, "node", f"row {place.row} has no node")
            if group is not None and node is not None:
                self._fault("node", node_fault(self.world, instance.job, node, group))
                self._fault("device", device_fault(node, group, place.devices))
                uses.setdefault(node, []).append((group, place.devices))
        return uses

    def _put(self, attempt: Attempt, places: tuple[Placement, ...]) -> None:
        """The attempt holds these places from now on; nothing of them is held, or kept for another."""
        for node, asked in self._placed(attempt.instance, places).items():
            fault = shortage(node, asked, held(node, {}))
            self._fault("capacity", fault)
            if self.world.nominations and not fault:
                self._fault("nomination", self._missing(attempt.instance, {node: asked}, {}))
        new = self._tasks_at(attempt.instance, places)
        self._fault("constraint", constraint_fault(self.world, attempt.instance, new, {}))
        for place in places:
            group, on = attempt.instance.job.group_of(place.rank), self.world.rows.get(place.row)
            if group is not None and on is not None:
                task = attempt.tasks[place.rank] = Task(attempt, group, place.devices, on, placed_us=self.world.at_us)
                if attempt.instance.job.request.kind == "headroom":
                    task.phase = "ready"  # nothing is there to be made so
                on.tasks[task] = None
        books = self.world.books
        if books is not None and attempt.instance.job.request.kind == "best-effort":
            self._fault("quota", books.gone(attempt.instance.job) if attempt.phase == "starting" else "")
        elif books is not None:
            placed = [attempt.tasks[place.rank] for place in places if place.rank in attempt.tasks]
            books.put(attempt, placed, 0 if attempt.books is not None else 1)
            more = charge_of(attempt) if attempt.phase == "starting" else sum_of([task.charge for task in placed])
            self._fault("quota", books.excess(attempt.instance.job, more, attempt.phase == "running"))

    def _tasks_at(self, instance: Instance, places: tuple[Placement, ...]) -> list[Place]:
        """What each place is given for, where all of it is there."""
        found = [(instance.job.group_of(place.rank), self.world.rows.get(place.row), place.devices) for place in places]
        return [(group, node, devices) for group, node, devices in found if group is not None and node is not None]

    def _missing(self, asker: Instance, uses: dict[Node, list[Use]], gone: Gone, wait: bool = True) -> str:
        """What the asker lacks once the attempts `gone` are (and, to `wait`, the victims of others), and all is given that
        is kept for those whom it does not outrank."""
        for node, asked in uses.items():
            taken: list[Use] = []
            spared: dict[AttemptKey | Task, None] = dict(gone)
            for kept in self.world.nominations.values():
                if node in kept.uses and kept.instance is not asker and not outranks(self.world, asker, kept.instance):
                    taken += kept.uses[node]
                    spared |= kept.victims if wait else {}
            fault = shortage(node, asked, held(node, spared) + taken, strict=not wait)
            if fault:
                return fault
        return ""

    def _rejected(self, event: made.JobRejected) -> None:
        job = self.world.jobs.get(event.job)
        self._check(job is not None, "unknown", "there is no such job")
        instances = job.instances if job is not None else []
        tried = any(instance.attempts or instance.outcome not in ("", "cancelled") for instance in instances)
        over = bool(instances) and all(instance.outcome for instance in instances)
        self._check(not tried and not over, "terminal", "it is rejected after it was bound or over")
        for index, instance in enumerate(instances):
            self._unkept((event.job, index))
            if not instance.outcome:
                self.world.end_instance(instance, "rejected")
        if job is not None and job.service is not None:
            job.closed = True
            self.world.end_job(job)

    def _served(self, event: Any) -> None:
        """What is decided about a service."""
        job = self.world.jobs.get(event.job)
        if job is None or job.service is None or job.closed:
            return self._fault("unknown", "there is no such service, or it has ended")
        return self._fault("service", services.decide(self.world, job.service, event))

    def _unkept(self, key: InstanceKey) -> None:
        """Nothing may be kept any more for what is bound or over."""
        self._check(self._pop(key) is None, "nomination", "its nomination was not ended before")
        self.plans.by_key.pop(key, None)

    def _pop(self, key: InstanceKey) -> Nomination | None:
        """Its nomination is no more."""
        kept, books = self.world.nominations.pop(key, None), self.world.books
        if kept is not None and books is not None:
            books.move(kept.instance.job, nominated(kept.uses), -1)
        return kept

    def _bind(self, event: made.InstanceBound, instance: Instance) -> None:
        world, key = self.world, (event.job, event.instance, event.attempt)
        follows = instance.attempt is None and event.attempt == instance.attempts + 1
        self._check(follows, "attempt", f"{event.attempt} is bound after {instance.attempts}, or beside it")
        self._check(not instance.cancelled, "terminal", "it is bound although it was cancelled")
        early = world.at_us < instance.not_before_us
        self._check(not early, "too-early", f"it is bound at {world.at_us}, not before {instance.not_before_us}")
        self._fault("waits", waiting_fault(world, instance))
        self._fault("strict", passed_over(world, instance))
        self._fault("gang", gang_fault(instance.job, event.placements))
        if instance.job.service is not None:
            self._fault("service", services.bound_fault(instance.job.service))
        self._unkept((event.job, event.instance))
        if not self.plans.most and not self.reserved.by_name and key[:2] not in self._honoured:
            new = self._tasks_at(instance, event.placements)
            self._fault("turn", self.turns.fault(instance, new, self._missing, self._over_quota))
        instance.attempts = event.attempt
        instance.attempt = Attempt(instance, key, world.led_us + world.policy.ready_timeout_us, world.at_us)
        self._put(instance.attempt, event.placements)
        self._fault("delay", self.plans.delayed(instance.attempt, event.placements, world.at_us))
        self._reaches(instance.attempt, event.placements, self.plans.gone_us(instance.job, world.at_us))

    def _reaches(self, attempt: Attempt, places: tuple[Placement, ...], end_us: int) -> None:
        """Nobody reaches into what is reserved for others."""
        job, name = attempt.instance.job, attempt.key[0]
        self._fault("reserved", self.reserved.taken(job, name, places, self.world.at_us, end_us))

    def _place_reservation(self, event: made.ReservationPlaced) -> None:
        self._fault("reserved", self.reserved.place(event.reservation, event.pieces))

    def _start(self, event: made.InstanceStarted, attempt: Attempt) -> None:
        due = [rank for rank, task in attempt.tasks.items() if not task.going]
        waiting = [rank for rank in due if attempt.tasks[rank].phase not in ("ready", "running", "exited")]
        right = attempt.phase == "starting" and not waiting and "start-failed" not in attempt.facts
        self._check(right, "started", f"it was {attempt.phase}, {attempt.holding()} tasks hold, not ready are {waiting[:8]}")
        attempt.phase, attempt.started_us = "running", self.world.at_us
        attempt.instance.ran = True

    def _preempt(self, event: made.InstancePreempted, attempt: Attempt) -> None:
        world, victim, request = self.world, attempt.instance, attempt.instance.job.request
        by, key = world.instance(event.by_job, event.by_instance), (event.by_job, event.by_instance)
        grounds, policy = self._grounds.get(attempt.key, ()), world.policy
        ranks = by is not None and (outranks(world, by, victim) or bool(grounds) or makes_way(victim.job, by.job))
        reclaims = "reclaim" in grounds and policy.reclaim
        way = by is not None and makes_way(victim.job, by.job)
        others = policy.preemption and (not grounds or grounds != ("reclaim",))
        allowed = reclaims or others or way
        spans = [policy.reclaim_min_runtime_us] * reclaims + [policy.min_runtime_us] * others
        idle = way or victim.job.request.kind == "headroom"  # nothing protects what runs nothing
        least_us = 0 if idle else min(spans, default=0)
        spared = not idle and world.books is not None and world.books.protected(attempt)
        ran_us = world.at_us - attempt.started_us if attempt.started_us >= 0 else least_us
        for so, text in (
            (attempt.phase != "stopping", "it is stopping already"),
            (allowed and request.preemptible and not spared, "the policy, its queue or the job forbids it"),
            (ranks, f"its priority {victim.job.priority} is not below that of {event.by_job}, nor is there another ground"),
            (ran_us >= least_us, f"it ran {ran_us} us, less than {least_us}"),
            (event.kill_at_us >= world.at_us + request.grace_us, f"it is killed at {event.kill_at_us}, within its grace"),
            (attempt.key in self._victims.get(key, {}), f"{event.by_job} is not nominated with it as victim"),
        ):
            self._check(so, "preemption", text)
        attempt.told()
        attempt.phase, attempt.stop_reason, attempt.kill_at_us = "stopping", "preempted", event.kill_at_us

    def _nominate(self, event: made.Nominated, instance: Instance) -> None:
        world, key = self.world, (event.job, event.instance)
        members = named(world, event)
        victims: dict[AttemptKey | Task, None] = {(one.job, one.instance, one.attempt): None for one in event.victims}
        victims.update(dict.fromkeys(members))
        self._members |= members
        free = instance.attempt is None and not instance.cancelled and key not in world.nominations
        self._check(free, "nomination", "it is bound, cancelled or nominated already")
        self._check(event.until_us >= world.at_us, "nomination", f"it is nominated until {event.until_us}, which is over")
        self._fault("gang", gang_fault(instance.job, event.placements))
        uses = self._placed(instance, event.placements)
        new = self._tasks_at(instance, event.placements)
        missing = self._missing(instance, uses, victims) or constraint_fault(world, instance, new, victims)
        self._fault("nomination", missing)
        told = [*to_stop(world, self._preempted, victims), *parts_of(task for task in members if task in self._going)]
        self._make_way(instance, told)
        if world.books is not None:
            self._ask(world.books, instance, uses, told)
        for victim in self._preempted if not missing else ():
            loser = world.instance(victim[0], victim[1])
            if victim in victims and loser is not None and loser.attempt is not None:
                others = {other: None for other in victims if other != victim}
                less = others | needless_part(uses, loser.attempt)
                if len(less) > len(others) and world.books is None:
                    enough = not self._missing(instance, uses, less, wait=False) and not constraint_fault(
                        world, instance, new, less
                    )
                    self._check(not enough, "minimal", f"all of {victim} is told to stop, and it would do if it shrank")
                here = {task.node: uses[task.node] for task in loser.attempt.tasks.values() if task.node in uses}
                needed = self._missing(instance, here, others, wait=False)
                needed = needed or constraint_fault(world, instance, new, others)
                if not needed and world.books is not None:
                    rest = [each for each in told if each is not loser.attempt]
                    needed = self._over_quota(world.books, instance, uses, rest)
                self._check(bool(needed), "minimal", f"what it is nominated for fits while {victim} stays")
        for task in members if not missing and world.books is None else ():
            if task in self._going:
                others = {other: None for other in victims if other is not task}
                here = {task.node: uses[task.node]} if task.node in uses else {}
                needed = self._missing(instance, here, others, wait=False) or constraint_fault(world, instance, new, others)
                self._check(bool(needed), "minimal", f"what it is nominated for fits while a member of {task.attempt.key} stays")
        self.plans.by_key.pop(key, None)
        world.nominations[key] = Nomination(instance, uses, victims, event.until_us - world.gaps_us)
        if world.books is not None:
            world.books.move(instance.job, nominated(uses), 1)

    def _make_way(self, instance: Instance, told: list[Attempt]) -> None:
        """Nobody is told to stop where it is enough that those go who make way by what they are: judged for single tasks."""
        world, job = self.world, instance.job
        if not unwilling(told, job) or not lone(job) or not world.plain or self.plans.by_key:
            return None
        found = self._would_fit(instance, all_that_make_way(world, job))
        if found:
            return self._fault("yielding", f"it fits on {found} once those have gone who make way for it")
        if breaches(told):
            found = self._would_fit(instance, harmless(world, instance))
            self._check(not found, "budget", f"{breaches(told)} tasks go beyond budgets, and it fits on {found} without that")
        return None

    def _would_fit(self, instance: Instance, gone: Gone) -> str:
        """A node on which its only task fits once those are gone, within the limits as they are; empty for none."""
        books = self.world.books
        for node, use in spots(self.world, instance, gone) if gone else ():
            if not self._missing(instance, {node: [use]}, gone):
                if books is None or not self._over_quota(books, instance, {node: [use]}, []):
                    return node.name
        return ""

    def _ask(self, books: Books, instance: Instance, uses: dict[Node, list[Use]], told: list[Attempt]) -> None:
        """What queues say of a nomination and its victims."""
        self._grounds |= books.grounds(instance, [each for each in told if each.instance.job.queue != instance.job.queue])
        self._fault("quota", self._over_quota(books, instance, uses, told))

    def _over_quota(self, books: Books, instance: Instance, uses: dict[Node, list[Use]], gone: list[Attempt]) -> str:
        """The limit that is exceeded once this is nominated and those are gone."""
        charge = nominated(uses)
        moves = [
            (instance.job, charge, 1),
            *[(each.instance.job, charge_of(each), -1) for each in gone if each.books is not None],
        ]
        for job, total, sign in moves:
            books.move(job, total, sign)
        found = books.excess(instance.job, charge)
        for job, total, sign in moves:
            books.move(job, total, -sign)
        return found

    def _plan(self, event: made.StartPlanned, instance: Instance) -> None:
        world, key, plans = self.world, (event.job, event.instance), self.plans
        free = instance.attempt is None and not instance.cancelled and key not in world.nominations
        self._check(free and plans.most > 0, "plan", "it is bound, cancelled or nominated, or the policy plans nothing")
        span_us = event.start_us - world.at_us
        backfill = world.policy.backfill
        far = backfill is not msgspec.UNSET and span_us > backfill.horizon_us
        self._check(span_us >= 0 and not far, "plan", f"it is planned {span_us} us from now")
        self._check(event.until_us >= world.at_us, "plan", f"it is planned until {event.until_us}, which is over")
        self._fault("gang", gang_fault(instance.job, event.placements))
        before = plans.by_key.pop(key, None)
        planned = Planned(key, instance, self._placed(instance, event.placements), event.start_us, event.until_us)
        self._fault("plan", plans.closed(planned) or plans.missing(planned, lenient=False))
        self._fault("reserved", self.reserved.planned(planned, event.placements, event.start_us))
        if before is not None and before.start_us < event.start_us:
            places = [Placement(0, node.row, devices) for node, uses in before.uses.items() for _, devices in uses]
            kept = self.reserved.planned(before, places, max(before.start_us, world.at_us))
            had = not kept and not plans.closed(before) and not plans.missing(before, lenient=False)
            self._check(not had, "plan", f"it is planned later than {before.start_us}, at which it could still be had")
        plans.by_key[key] = planned

    def _unplan(self, event: made.PlanDropped, instance: Instance) -> None:
        plans, planned = self.plans, self.plans.by_key.pop((event.job, event.instance), None)
        if planned is None:
            return self._fault("unknown", "nothing is planned for it")
        tree = self.world.books is not None  # the turn of somebody who ranks below may come first there
        ahead = sum(tree or above(self.world, other.instance, instance) for other in plans.by_key.values())
        so = {
            "outranked": ahead >= plans.most,
            "expired": self.world.at_us >= planned.until_us,
        }.get(event.reason, True)
        return self._check(so, "plan", f"it ends as {event.reason}, which is not so: {ahead} plans are above it")

    def _unnominate(self, event: made.NominationEnded) -> None:
        world, key = self.world, (event.job, event.instance)
        kept = self._pop(key)
        if kept is None:
            return self._fault("unknown", "it has no nomination that could end")
        if event.reason == "bound":
            self._honoured[key] = None
        taker = world.instance(event.by, 0)
        lost = [n for n in kept.uses if world.rows.get(n.row) is not n or n.liveness != "heard" or "fenced" in n.closed]
        so = {
            "bound": key in self._bound,
            "cancelled": kept.instance.cancelled or services.may_go(world, kept.instance),
            "node-lost": bool(lost),
            "taken": taker is not None and outranks(world, taker, kept.instance),
            "deadline": world.led_us >= kept.until_us,
        }.get(event.reason, True)
        return self._check(so, "nomination", f"it ends as {event.reason} {event.by}, which is not so")

    def _stop(self, event: made.StopOrdered, attempt: Attempt) -> None:
        now_us, limit_us = self.world.at_us, attempt.instance.job.limit_us
        started = attempt.started_us >= 0
        so = event.reason in attempt.facts or {
            "cancelled": attempt.instance.cancelled,
            "time-limit": started and limit_us is not None and now_us >= attempt.started_us + limit_us,
            "ready-timeout": not started and self.world.led_us >= attempt.ready_by_us,
            "node-lost": 0 < attempt.degraded_until_us <= now_us,
            "taint": any(task.out_of_patience(now_us) for task in attempt.tasks.values()),
            "finished": attempt.went_well(),
            "reserved": event.reason == "reserved" and self.reserved.may_leave(attempt),
        }.get(event.reason, event.reason in services.GOES)
        self._fault("service", services.told_fault(self.world, attempt.instance, event.reason))
        text = f"{attempt.phase}, it is told at {now_us} to stop by {event.kill_at_us} for {event.reason}, which is not so"
        self._check(so and attempt.phase != "stopping" and event.kill_at_us >= now_us, "stop", text)
        if event.reason == "drained":
            self._fault("budget", drain_fault(attempt))
        attempt.told()
        attempt.phase, attempt.stop_reason, attempt.kill_at_us = "stopping", event.reason, event.kill_at_us

    def _end_attempt(self, event: made.AttemptEnded, attempt: Attempt) -> None:
        instance, held = attempt.instance, attempt.holding()
        for rule, fault in end_faults(attempt, event):
            self._fault(rule, fault)
        for task in list(attempt.tasks.values()) if held else ():
            task.release("exited")
        if event.then != "pending":
            return self.world.end_instance(instance, event.then)
        instance.retries += event.charged
        instance.not_before_us, instance.attempt = event.not_before_us, None
        if event.avoid and event.avoid not in instance.job.avoid:
            instance.job.avoid = (*instance.job.avoid, event.avoid)[-64:]
        return None

    def _end_instance(self, event: made.InstanceEnded, instance: Instance) -> None:
        self._check(instance.attempt is None, "held", "it is over while it is bound")
        so = event.outcome == "failed" or (event.outcome == "cancelled" and instance.cancelled)
        self._fault("service", services.told_fault(self.world, instance, event.reason))
        so = so or event.reason in services.GOES
        self._check(so, "outcome", f"it is not bound, and {event.outcome}")
        self._unkept((event.job, event.instance))
        self.world.end_instance(instance, event.outcome)

    def _member_lost(self, event: made.MemberLost, attempt: Attempt) -> None:
        now_us, tasks = self.world.at_us, attempt.tasks.values()
        latest_us = now_us + attempt.instance.job.request.degraded_grace_us
        gone = any(not task.holds and (task.code or task.phase != "exited") for task in tasks)
        lost = attempt.phase == "running" and (gone or "device-failed" in attempt.facts)
        text = f"{attempt.phase}, it lost no member, or is given until {event.until_us}, past {latest_us}"
        self._check(lost and now_us <= event.until_us <= latest_us, "degraded", text)
        attempt.degraded_until_us = event.until_us

    def _replace(self, event: made.MembersReplaced, attempt: Attempt) -> None:
        ranks = dict.fromkeys([place.rank for place in event.placements])
        lost = all(rank in attempt.tasks and not attempt.tasks[rank].holds for rank in ranks)
        right = attempt.phase == "running" and lost and len(ranks) == len(event.placements)
        self._check(right, "degraded", f"{attempt.phase}, its ranks {list(ranks)[:8]} are not lost ones, each once")
        self._put(attempt, event.placements)
        start_us = attempt.started_us if attempt.started_us >= 0 else attempt.bound_us
        self._fault("delay", self.plans.delayed(attempt, event.placements, start_us, first=True))
        self._reaches(attempt, event.placements, self.plans.end_us(attempt))

    def _grow(self, event: made.InstanceGrown, attempt: Attempt) -> None:
        self._fault("grown", growth_fault(attempt, event))
        self._put(attempt, event.placements)
        books, job = self.world.books, attempt.instance.job
        self._check(books is None or job.queue not in books.closed, "quota", f"queue {job.queue} was removed")
        self._fault("delay", self.plans.delayed(attempt, event.placements, max(attempt.started_us, 0)))
        self._reaches(attempt, event.placements, self.plans.end_us(attempt))

    def _shrink(self, event: made.InstanceShrunk, attempt: Attempt) -> None:
        world = self.world
        self._fault("shrunk", shrink_fault(world, attempt, event, self._members))
        some = [attempt.tasks[rank] for rank in event.ranks if rank in attempt.tasks and not attempt.tasks[rank].going]
        by = world.instance(event.by_job, event.by_instance)
        if by is not None and event.reason == "preempted" and all(task in self._members for task in some):
            self._fault("preemption", may_take(world, by, attempt, self._grounds.get(attempt.key, ())))
        if attempt.books is not None:
            attempt.books.go(attempt, [task for task in some if task.holds])
        go(attempt, event)

    def _forget(self, event: made.JobsForgotten) -> None:
        for name in event.jobs:
            job = self.world.jobs.pop(name, None)
            over_us = job.over_us if job is not None else -1
            if job is not None:
                self.world.past[name] = outcome_of(job)
            due = 0 <= over_us <= self.world.at_us - self.world.policy.forget_after_us
            self._check(due, "forgotten", f"{name} is forgotten at {self.world.at_us}; it was over at {over_us}")


_Table = dict[str, Callable[..., None]]
_INSTANCES: _Table = {"InstanceBound": Judge._bind, "Nominated": Judge._nominate, "InstanceEnded": Judge._end_instance}
_INSTANCES |= {"StartPlanned": Judge._plan, "PlanDropped": Judge._unplan}
_ATTEMPTS: _Table = {"InstanceStarted": Judge._start, "InstancePreempted": Judge._preempt, "StopOrdered": Judge._stop}
_ATTEMPTS |= {"AttemptEnded": Judge._end_attempt, "MemberLost": Judge._member_lost, "MembersReplaced": Judge._replace}
_ATTEMPTS |= {"InstanceGrown": Judge._grow, "InstanceShrunk": Judge._shrink}
_OTHERS: _Table = {"JobRejected": Judge._rejected, "NominationEnded": Judge._unnominate, "JobsForgotten": Judge._forget}
_OTHERS["ReservationPlaced"] = Judge._place_reservation
_OTHERS |= dict.fromkeys(
    ("RevisionAccepted", "RevisionRejected", "ReplicaOpened", "ReplicasDecided", "RollStopped", "RollFinished"), Judge._served
)
