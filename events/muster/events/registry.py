"""Which kinds of entry there are, in which version, and on which side they stand.

A kind is the name of its class. A new optional field is an addition and keeps the version; anything else is a new
version and an upcaster in `muster.events.upcast`.
"""

from muster.events import catalogue, decisions, jobs, nodes, operations, queues, reservations, services
from muster.events.base import Event

INPUTS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (
        jobs.JobSubmitted,
        jobs.JobCancelRequested,
        jobs.JobReprioritised,
        jobs.JobRevised,
        services.JobScaleRequested,
        services.JobMetricReported,
        jobs.JobResizeRequested,
        jobs.JobCheckpointed,
        nodes.NodeRegistered,
        nodes.NodeRemoved,
        nodes.NodesHeard,
        nodes.DeviceHealthChanged,
        nodes.ForeignUseChanged,
        nodes.TaskReady,
        nodes.TaskStarted,
        nodes.TaskExited,
        nodes.TaskMissing,
        operations.NodeCordoned,
        operations.NodeUncordoned,
        operations.NodeDrained,
        operations.NodeFenced,
        operations.LeaseExtended,
        operations.PolicySet,
        queues.QueueSet,
        queues.QueueRemoved,
        reservations.ReservationSet,
        reservations.ReservationRemoved,
        operations.LicencesSet,
        catalogue.CatalogueSet,
        operations.LossAccepted,
        operations.InputRefused,
        operations.EntryQuarantined,
    )
}

DECISIONS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (
        decisions.JobRejected,
        decisions.InstanceBound,
        decisions.InstanceStarted,
        decisions.InstancePreempted,
        decisions.StopOrdered,
        decisions.AttemptEnded,
        decisions.InstanceEnded,
        decisions.MemberLost,
        decisions.MembersReplaced,
        decisions.InstanceGrown,
        decisions.InstanceShrunk,
        decisions.Nominated,
        decisions.NominationEnded,
        decisions.StartPlanned,
        decisions.PlanDropped,
        decisions.ReservationPlaced,
        decisions.NodeSilent,
        decisions.NodeReturned,
        decisions.NodeLost,
        decisions.NodeQuarantined,
        decisions.NodeReleased,
        decisions.ShapeDeferred,
        decisions.PassStopped,
        decisions.JobsForgotten,
        services.RevisionAccepted,
        services.RevisionRejected,
        services.ReplicaOpened,
        services.RollStopped,
        services.RollFinished,
        services.ReplicasDecided,
    )
}

KINDS: dict[str, type[Event]] = {**INPUTS, **DECISIONS}

VERSIONS: dict[str, int] = dict.fromkeys(KINDS, 1)
"""The newest version of each kind: what is written. Older ones are read through `muster.events.upcast`."""
