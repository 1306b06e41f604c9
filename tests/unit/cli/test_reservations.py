"""What recurs becomes instants by the clocks of a zone; how reservations are shown."""

import pytest

from muster.cli.reservations import COLUMNS, cells
from muster.events.reservations import ReservationSet, Window
from muster.gateway.reserved import reservation_list
from muster.reading.recurring import expanded, length_of
from tests.support.build import S, group, job, node
from tests.support.driver import Driver

HOUR_US = 3_600 * S
BEFORE = "2026-03-27T12:00"
BEFORE_US = 1_774_609_200 * S
"""That noon in Berlin, two days before the clocks are put forward."""


def test_the_clocks_of_the_zone_say_when() -> None:
    windows, zone = expanded(BEFORE, HOUR_US, "daily@02:30", "Europe/Berlin", 4, 0)
    hours = [(window.from_us - BEFORE_US) / HOUR_US for window in windows]
    assert (hours, zone) == ([14.5, 38.5, 61.5, 85.5], "Europe/Berlin")
    assert all(window.until_us - window.from_us == HOUR_US for window in windows)


def test_days_of_the_week_spans_and_once() -> None:
    windows, _ = expanded(BEFORE, HOUR_US, "mon,fri@11:00", "Europe/Berlin", 3, 0)
    assert [(window.from_us - BEFORE_US) // HOUR_US for window in windows] == [70, 166, 238]
    windows, zone = expanded("", HOUR_US, "12h", "", 3, 7)
    assert ([window.from_us for window in windows], zone) == ([7, 12 * HOUR_US + 7, 24 * HOUR_US + 7], "")
    assert expanded("1970-01-01T02:00+01:00", 1, "", "", 0, 0) == ((Window(from_us=HOUR_US, until_us=HOUR_US + 1),), "UTC")
    assert (length_of("1d12h"), length_of("90m"), length_of("soon"), length_of("")) == (36 * HOUR_US, 5400 * S, None, None)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"length_us": 0}, "for_us: how long"),
        ({"begin": "soon"}, "begin: 'soon' is no instant such as 2026-12-05T08:00"),
        ({"begin": "1960-01-01T00:00"}, "begin: '1960-01-01T00:00' lies before 1970"),
        ({"zone": "Europe/Atlantis"}, "zone: there is no time zone 'Europe/Atlantis' in tzdata"),
        ({"zone": "../etc/passwd"}, "zone: there is no time zone"),
        ({"every": "never"}, "every: 'never' is not like daily@02:00"),
        ({"every": "daily@25:00"}, "every: 'daily@25:00' is not like"),
        ({"every": "30m"}, "every: a window would not be over when the next begins"),
        ({"every": "daily@01:00", "length_us": 25 * HOUR_US}, "every: a window would not be over"),
        ({"every": "daily@01:00", "times": 401}, "every: 401 windows are asked for; 1 to 400 can be"),
        ({"times": 2}, "times: it is said once"),
    ],
)
def test_what_makes_no_sense_is_said(changes: dict[str, object], said: str) -> None:
    asked: dict[str, object] = {"begin": BEFORE, "length_us": HOUR_US, "every": "", "zone": "", "times": 0, "now_us": 0}
    with pytest.raises(ValueError, match="^" + said.replace(".", r"\.").replace("?", r"\?")):
        expanded(**(asked | changes))  # type: ignore[arg-type]


def test_they_are_shown_with_who_is_in_the_way() -> None:
    driver = Driver()
    driver.step(node("a", 2), node("b", 2), job("j", group(gpus=1), preemptible=False))
    driver.run("j")
    now_us = driver.state.at_us
    driver.step(
        ReservationSet(reservation="all", nodes=("a",), windows=(Window(from_us=now_us, until_us=now_us + HOUR_US),)),
        ReservationSet(
            reservation="some",
            count=1,
            gpus=2,
            user="ada",
            windows=(
                Window(from_us=now_us + HOUR_US, until_us=now_us + 2 * HOUR_US),
                Window(from_us=now_us + 5 * HOUR_US, until_us=now_us + 6 * HOUR_US),
            ),
            every="4h",
        ),
    )
    found = reservation_list(driver.state).reservations
    lines = {row.reservation: cells(row) for row in found}
    assert list(lines) == ["all", "some"]
    assert all(len(line) == len(COLUMNS) for line in lines.values())
    assert lines["all"][1:4] + lines["all"][7:] == ("planned", "nobody", "a", driver.state.jobs[next(iter(driver.state.jobs))].id)
    assert lines["some"][1:4] + lines["some"][6:] == ("planned", "user ada", "1 x 2 GPUs on b", "4h, 2 left", "")
