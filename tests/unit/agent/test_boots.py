"""Which boot a node is: the machine's, or a later beginning in it after a lease ended."""

from pathlib import Path

from muster.agent.home import Home
from muster.agent.slots import now_us, write_slot

HOUR_US = 3_600_000_000


def test_a_lease_that_never_was_has_not_ended(tmp_path: Path) -> None:
    home = Home(tmp_path, "boot-1")
    assert not home.has_lease()
    assert not home.lease_ended()
    home.close()


def test_a_lease_that_ended_is_over_also_for_the_next_agent(tmp_path: Path) -> None:
    home = Home(tmp_path, "boot-1")
    home.extend_lease(now_us() + HOUR_US)
    assert not home.lease_ended()
    home.close()
    home = Home(tmp_path, "boot-1")
    assert home.has_lease()
    home.lease_until_us = now_us()
    assert home.lease_ended()
    home.close()


def test_a_node_that_begins_anew_is_another_boot_for_every_later_agent(tmp_path: Path) -> None:
    home = Home(tmp_path, "boot-1")
    home.obeyed(17)
    home.extend_lease(now_us() - 1)
    assert home.lease_ended()
    sequence = home.next_sequence()
    home.begin_boot()
    second = home.boot
    assert second != "boot-1"
    assert (home.boots, home.has_lease(), home.lease_ended()) == (2, False, False)
    assert home.next_sequence() > sequence
    home.close()
    home = Home(tmp_path, "boot-1")
    assert (home.boot, home.boots, home.applied) == (second, 2, 17)
    home.extend_lease(now_us() - 1)
    home.begin_boot()
    assert home.boot not in ("boot-1", second)
    home.close()


def test_a_reboot_of_the_machine_is_a_boot_of_its_own(tmp_path: Path) -> None:
    home = Home(tmp_path, "boot-1")
    home.extend_lease(now_us() - 1)
    home.begin_boot()
    home.close()
    home = Home(tmp_path, "boot-2")
    assert (home.boot, home.boots, home.applied, home.lease_ended()) == ("boot-2", 3, 0, False)
    home.close()


def test_the_state_of_an_agent_from_before_is_read(tmp_path: Path) -> None:
    home = Home(tmp_path, "boot-1")
    home.close()
    write_slot(str(tmp_path / "state"), {"boot": "boot-1", "boots": 4, "sequence": 9, "applied": 5})
    home = Home(tmp_path, "boot-1")
    assert (home.boot, home.boots, home.sequence, home.applied) == ("boot-1", 4, 9, 5)
    home.close()
