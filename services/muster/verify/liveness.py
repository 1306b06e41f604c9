"""Whether nodes are held to be silent, lost, returned, quarantined or released rightly, as the second judge sees it."""

from typing import Any

from muster.events import decisions as made
from muster.verify.world import Node, World


def node_decided(world: World, event: Any, node: Node) -> tuple[bool, str, str]:
    """Fold what was decided about a node; whether it is right, the rule, and what is so."""
    policy, was, until_us = world.policy, node.liveness, node.quarantined_until_us
    heard_us, rule = world.heard_us(node), "liveness"
    quiet_us = world.led_us - heard_us
    match event:
        case made.NodeSilent():
            right = was == "heard" and quiet_us >= policy.silent_after_us
            node.liveness, node.quiet_us = "silent", heard_us
            node.silences.append(world.at_us)
        case made.NodeReturned():
            right = was != "heard" and heard_us > node.quiet_us
            node.liveness = "heard"
        case made.NodeLost():
            right = was != "lost" and quiet_us >= policy.lease_us + policy.margin_us and world.at_us >= world.lease_until_us
            node.liveness, node.quiet_us = "lost", heard_us
            node.clear("node-lost")
        case made.NodeQuarantined():
            recent = sum(at_us >= world.at_us - policy.flap_window_us for at_us in node.silences)
            rule, right = "quarantine", 0 < policy.flap_limit <= recent and event.until_us >= world.at_us
            node.quarantined_until_us = event.until_us
        case _:
            rule, right = "quarantine", 0 < until_us <= world.at_us
            node.quarantined_until_us = 0
    text = f"it was {was}, not heard for {quiet_us} us, {len(node.silences)} silences, quarantined until {until_us}"
    return right, rule, f"{text}, at {world.at_us}"
