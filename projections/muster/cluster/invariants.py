"""What is true of every state, checked from the tasks up. Slow and plain: for tests and tools."""

from muster.cluster import snapshot
from muster.cluster.check import check
from muster.cluster.disruption import waits_to_drain
from muster.cluster.evolve_elastic import elastic
from muster.cluster.evolve_queues import plant
from muster.cluster.jobs import TERMINAL, Attempt, Job
from muster.cluster.nodes import LEVELS, Node, cpu_level
from muster.cluster.queuetree import QueueTree
from muster.cluster.state import Nomination, State
from muster.cluster.usage import Usage


def check_invariants(state: State) -> None:
    """Stop if anything is off.

    Raises:
        BrokenInvariant: what is.
    """
    state.ledger.look()
    for job in state.jobs.values():
        _check_job(state, job)
    for row, node in enumerate(state.ledger.nodes):
        if node is not None:
            check(node.row == row, f"node {node.name} stands in row {row} and says {node.row}")
            _check_node(state, node)
    waiting = sum([i.waits is not None for job in state.jobs.values() for i in job.instances])
    check(state.pending.count == waiting, f"{state.pending.count} counted as waiting, {waiting} wait")
    pending = sum([i.phase == "pending" for job in state.jobs.values() for i in job.instances])
    check(state.pending_total == pending, f"{state.pending_total} counted as pending, {pending} are")
    if state.tree is not None:
        _check_tree(state, state.tree)
    for name, reservation in state.reservations.by_name.items():
        check(reservation.window.until_us > state.at_us, f"reservation {name} is over and still there")
        due_us = state.timers.reservation.get(name)
        check(due_us == reservation.next_us(state.at_us), f"reservation {name} is looked at at {due_us}")
    for key, nomination in state.nominations.items():
        check(nomination.instance.phase == "pending", f"{key} is nominated and {nomination.instance.phase}")


def _check_tree(state: State, tree: QueueTree) -> None:
    """What is charged, what there is and what is promised are as counted anew."""
    tree.settle()
    other = State(state.cell)
    other.ledger, other.jobs, other.nominations = state.ledger, state.jobs, state.nominations
    kept = [(each, each.charge) for each in _charged(state)]
    anew = plant(other, tree.all_said())
    anew.settle()
    for each, charge in kept:
        about = each.instance.key
        check(_some(each.charge) == _some(charge), f"{about} is charged with {charge}, counted anew {each.charge}")
        each.charge = charge
    right_ones = anew.stopping
    check(
        len(tree.stopping) == len(right_ones) and all(one in right_ones for one in tree.stopping), "others stop than are listed"
    )
    check(tree.said == anew.said, "the open queues are others than those that were set")
    check(_some(tree.capacity) == _some(anew.capacity), f"capacity {tree.capacity}, counted anew {anew.capacity}")
    check(_some(tree.healthy) == _some(anew.healthy), f"healthy {tree.healthy}, counted anew {anew.healthy}")
    check(sorted(tree.queues) == sorted(anew.queues), f"queues {sorted(tree.queues)}, counted anew {sorted(anew.queues)}")
    check(_some(tree.root.charged) == _some(anew.root.charged), "what is charged in all differs from what is counted anew")
    if tree.usage is not None:
        _check_usage(tree, tree.usage)
    for name, queue in tree.queues.items():
        right = anew.queues[name]
        check(queue.open == right.open, f"queue {name}: {queue.open} jobs counted as open, {right.open} are")
        check(_some(queue.charged) == _some(right.charged), f"queue {name} is charged {queue.charged}, anew {right.charged}")
        check(min([0, *queue.charged.values()]) == 0, f"queue {name} is charged with less than nothing: {queue.charged}")
        mine, theirs = ({user: _some(each) for user, each in one.users.items()} for one in (queue, right))
        check(mine == theirs, f"users of queue {name} are charged {mine}, anew {theirs}")
        check(len(queue.attempts) == len(right.attempts), f"queue {name} lists {len(queue.attempts)} attempts")
        check(all(attempt in right.attempts for attempt in queue.attempts), f"queue {name} lists another's attempt")
        check(queue.guarantee == right.guarantee and queue.caps == right.caps, f"queue {name} is promised something else anew")


def _check_usage(tree: QueueTree, usage: Usage) -> None:
    """Of whatever is charged it is noted how much was used."""
    for name, queue in tree.queues.items():
        noted = (name, "") in usage.entries or not any(queue.charged.values())
        check(noted, f"queue {name} is charged {queue.charged}, and nothing is noted of what it used")
        for user in queue.users if queue.fair else ():
            check((name, user) in usage.entries, f"user {user} has something in {name}, and nothing is noted of what was used")
    check(min([0, *[used.amount for used in usage.entries.values()]]) == 0, "less than nothing was used")


def _charged(state: State) -> list[Attempt | Nomination]:
    attempts = [i.attempt for job in state.jobs.values() for i in job.instances if i.attempt is not None]
    return [*attempts, *state.nominations.values()]


def _some(charge: dict[str, int] | None) -> dict[str, int]:
    return {what: amount for what, amount in (charge or {}).items() if amount}


def check_rebuild(state: State) -> None:
    """The state rebuilt from its own snapshot is the same, its indexes too.

    Raises:
        BrokenInvariant: what differs.
    """
    data = snapshot.encode(state)
    other = snapshot.decode(data)
    check(snapshot.encode(other) == data, "the state rebuilt from its snapshot has other bytes")
    to_do = [sorted([instance.key for instance in each.todo]) for each in (state, other)]
    check(state.dependents == other.dependents, f"waited for: {state.dependents}, rebuilt {other.dependents}")
    in_play = [[(job.id, job.next) for job in each.jobs.values() if job.request.at_once] for each in (state, other)]
    check(sorted(in_play[0]) == sorted(in_play[1]), f"in play: {in_play[0]}, rebuilt {in_play[1]}")
    check(to_do[0] == to_do[1], f"to do: {to_do[0]}, rebuilt {to_do[1]}")
    check(other.timers.items() == state.timers.items(), f"timers: {state.timers.items()}, rebuilt {other.timers.items()}")
    running, anew = _running(state), _running(other)
    check(running == anew, f"running: {running}, rebuilt {anew}")
    times = [each.tree.usage.now_us if each.tree is not None and each.tree.usage is not None else 0 for each in (state, other)]
    check(times[0] == times[1], f"the history stands at {times[0]}, rebuilt at {times[1]}")
    draining = [sorted([a.instance.key for a in each.draining if waits_to_drain(a)]) for each in (state, other)]
    check(draining[0] == draining[1], f"draining: {draining[0]}, rebuilt {draining[1]}")
    yielding = [sorted([attempt.instance.key for attempt in each.yielding]) for each in (state, other)]
    check(yielding[0] == yielding[1], f"yielding: {yielding[0]}, rebuilt {yielding[1]}")
    check(other.stopping == state.stopping, f"stopping: {state.stopping}, rebuilt {other.stopping}")
    check(sorted(other.running_elastic) == sorted(state.running_elastic), "the elastic that run differ from the rebuilt ones")
    check(sorted(other.degraded) == sorted(state.degraded), "the degraded differ from the rebuilt ones")
    mine = sorted([(key, item.count) for key, item in state.pending.classes.items() if item.count], key=str)
    theirs = sorted([(key, item.count) for key, item in other.pending.classes.items() if item.count], key=str)
    check(mine == theirs, f"pending classes: {mine}, rebuilt {theirs}")
    ledger, rebuilt = state.ledger, other.ledger
    ledger.look()
    rebuilt.look()
    check(ledger.partial == rebuilt.partial, "the index of shared devices differs from the rebuilt one")
    width = max(len(ledger.whole), len(rebuilt.whole))
    whole = [index.whole + [0] * (width - len(index.whole)) for index in (ledger, rebuilt)]
    check(whole[0] == whole[1], "the index of whole devices differs from the rebuilt one")
    _check_tags(state, other)
    check(sorted(ledger.free_rows) == sorted(rebuilt.free_rows), "the free rows differ from the rebuilt ones")


def _check_tags(state: State, other: State) -> None:
    """What is counted of tagged jobs is what holding everything anew comes to."""
    mine, anew = state.ledger.tags, other.ledger.tags
    check(mine.held == anew.held, f"{mine.held} tasks of tagged jobs counted, {anew.held} anew")
    used = [sorted([(name, count) for name, count in each.used.items() if count]) for each in (mine, anew)]
    check(used[0] == used[1], f"licences in use: {used[0]}, counted anew {used[1]}")
    check(mine.owners == anew.owners, f"rows of exclusive jobs: {mine.owners}, counted anew {anew.owners}")
    for name, terms in (("carried", mine.carried), ("watched", mine.watched)):
        for term, counted in terms.items():
            found = anew.carried.get(term) if name == "carried" else anew.watch(term, other.ledger.nodes)
            domains = found.by_domain if found is not None else {}
            check(counted.by_domain == domains, f"{name} {term}: {counted.by_domain}, counted anew {domains}")
    check(len(mine.carried) == len(anew.carried), f"{len(mine.carried)} terms are carried, counted anew {len(anew.carried)}")


def _running(state: State) -> dict[tuple[str, int], int]:
    return {key: each.count for key, each in state.pending.running.items() if each.count}


def _check_job(state: State, job: Job) -> None:
    still = sum([instance.phase not in TERMINAL for instance in job.instances])
    if job.service is not None and not job.service.ended:
        still += 1  # it is open without any
    check(job.open == still, f"{job.id}: {job.open} instances counted as open, {still} are")
    for condition in job.held:
        check(job.id in state.dependents[condition.job], f"{job.id} waits for {condition.job}, which does not know of it")
    most = job.request.at_once
    live = sum([instance.attempt is not None or instance.waits is not None for instance in job.instances])
    check(not most or live <= most, f"{job.id}: {live} of its elements are in play, {most} may be")
    check(not job.held or not live, f"{job.id} waits for another, and {live} of its instances are in play")
    for instance in job.instances:
        name = f"{job.id}/{instance.index}"
        attempt = instance.attempt
        if instance.phase in TERMINAL or instance.phase == "pending":
            check(attempt is None, f"{name} is {instance.phase} and has an attempt")
        if attempt is None:
            continue
        held = [task for task in attempt.tasks.values() if task.holding]
        check(attempt.held == len(held), f"{name}: {attempt.held} tasks counted as holding, {len(held)} do")
        for task in held:
            check(task in task.node.tasks, f"{name} rank {task.rank} holds a place that node {task.node.name} does not know of")
        going = sum([task.going for task in attempt.tasks.values()])
        check(attempt.going == going, f"{name}: {attempt.going} tasks counted as going, {going} are")
        check(bool(going) == (attempt in state.shrinking), f"{name}: {going} tasks are going, and that is listed wrongly")
        listed = instance.key in state.running_elastic
        check(listed == (attempt.phase == "run" and elastic(job)), f"{name} is {attempt.phase} and listed as elastic: {listed}")
        phases = {"prepare": "starting", "run": "running", "stop": "stopping"}
        check(instance.phase == phases[attempt.phase], f"{name} is {instance.phase}, its attempt in {attempt.phase}")
        bound = len(attempt.tasks) - going
        least = sum(instance.job.gang.minima)
        check(bound >= least, f"{name}: {bound} tasks bound, at least {least} are needed")


def _check_node(state: State, node: Node) -> None:
    for task in node.tasks:
        check(task.holding and task.node is node, f"node {node.name}: rank {task.rank} is listed and holds nothing here")
        attempt = task.attempt
        check(attempt.instance.attempt is attempt, f"node {node.name} holds something for an attempt that is over")
    use: dict[int, int] = {}
    for task in node.tasks:
        for index in task.devices:
            device = node.devices[index]
            use[index] = use.get(index, 0) + (device.units if task.shape.gpus else task.shape.units(device.memory_mib))
    for index, units in use.items():
        device = node.devices[index]
        check(units <= device.units, f"node {node.name} device {index}: {units} of {device.units} units held")
    free = _free(node)
    node.recount()
    anew = _free(node)
    check(free == anew, f"node {node.name}: free {free}, counted anew {anew}")
    ledger = state.ledger
    for count, bits in enumerate(ledger.whole):
        check(bool(bits >> node.row & 1) == (count == node.whole_free), f"node {node.name} stands wrongly in whole[{count}]")
    pairs = zip(node.device_free, node.device_units, strict=True)
    anew_levels = [units * LEVELS // whole if 0 < units < whole else -1 for units, whole in pairs]
    check(node.level_of == anew_levels, f"node {node.name}: levels {node.level_of}, counted anew {anew_levels}")
    levels = sorted([level for level, bits in ledger.partial.items() if bits >> node.row & 1])
    right = sorted(dict.fromkeys([level for level in node.level_of if level >= 0]))
    check(levels == right, f"node {node.name} stands in partial {levels}, not in {right}")
    check(ledger.levels == sorted(ledger.partial), f"the levels of shared devices are {ledger.levels}")
    for level, bits in enumerate(ledger.cpu_at[1:], 1):
        check(
            bool(bits >> node.row & 1) == (cpu_level(node.cpu_free) >= level),
            f"node {node.name} stands wrongly in cpu_at[{level}]",
        )


def _free(node: Node) -> tuple[object, ...]:
    amounts = (node.cpu_free, node.memory_free, node.disk_free, node.tasks_free)
    return (*amounts, tuple(node.device_free), node.whole_free)
