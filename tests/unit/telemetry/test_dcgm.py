"""What DCGM's exporter prints for Prometheus becomes samples; what is none is refused by its line."""

from pathlib import Path

import pytest

from muster.events.telemetry import XidCount
from muster.telemetry.dcgm import FIELDS, NotText, samples

PAGE = (Path(__file__).parent / "dcgm-exporter.prom").read_text()
AT_US = 1_760_000_000_000_000


def page(*lines: str) -> str:
    labels = 'gpu="0",UUID="GPU-1",Hostname="n1"'
    return "\n".join(line.replace("{}", "{" + labels + "}") for line in lines)


def test_a_page_of_the_exporter_becomes_a_sample_of_each_gpu() -> None:
    first, second = samples(PAGE, AT_US)
    assert (first.host, second.host) == ("gpu-node-07", "gpu-node-07")
    one = first.sample
    assert one.device == "GPU-34319582-d595-d1c7-d1d2-179bcfa61660"
    assert one.at_us == AT_US
    assert (one.temperature_millicelsius, one.memory_temperature_millicelsius) == (61_000, 69_000)
    assert one.power_mw == 409_692
    assert one.xids == ()
    assert (one.pcie_replays, one.remapped_uncorrectable, one.remapped_correctable, one.remap_failed) == (0, 0, 2, False)
    assert one.throttle == ("sw_power_cap",)
    assert (one.ecc_volatile_single, one.ecc_volatile_double) == (4, 0)
    assert (one.nvlink_replays, one.nvlink_recoveries) == (12, 0)
    assert one.ecc_aggregate_single is None, "the page does not tell it"
    two = second.sample
    assert two.device == "GPU-a8394b51-c086-568a-9f1a-c1e1c934c44c"
    assert two.memory_temperature_millicelsius is None, "DCGM does not know it"
    assert two.xids == (XidCount(code=79),)
    assert two.remap_failed is True


def test_what_dcgm_does_not_know_is_null() -> None:
    blanks = ("9223372036854775794", "9223372036854775792", "140737488355328.000000", "NaN", "+Inf")
    for blank in blanks:
        (found,) = samples(page(f"DCGM_FI_DEV_GPU_TEMP{{}} {blank}", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER{} 1"), AT_US)
        assert found.sample.temperature_millicelsius is None
        assert found.sample.pcie_replays == 1


def test_numbers_are_read_exactly() -> None:
    (found,) = samples(page("DCGM_FI_DEV_POWER_USAGE{} 0.001", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER{} 9007199254740991"), AT_US)
    assert (found.sample.power_mw, found.sample.pcie_replays) == (1, 2**53 - 1)
    (found,) = samples(page("DCGM_FI_DEV_PCIE_REPLAY_COUNTER{} 1e300", "DCGM_FI_DEV_GPU_TEMP{} 6.1e1"), AT_US)
    assert found.sample.pcie_replays is None
    assert found.sample.temperature_millicelsius == 61_000


def test_every_metric_that_is_read_reaches_its_field() -> None:
    for metric, (field, units) in FIELDS.items():
        (found,) = samples(page(f"{metric}{{}} 7"), AT_US)
        assert getattr(found.sample, field) == 7 * units


def test_xids_are_the_last_one_or_those_that_the_exporter_counted() -> None:
    (found,) = samples(page("DCGM_FI_DEV_XID_ERRORS{} 48"), AT_US)
    assert found.sample.xids == (XidCount(code=48),)
    counted = 'DCGM_EXP_XID_ERRORS_COUNT{gpu="0",UUID="GPU-1",window_size_in_ms="300000",xid="94"} 3'
    (found,) = samples(page("DCGM_FI_DEV_XID_ERRORS{} 48", counted), AT_US)
    assert found.sample.xids == (XidCount(code=48), XidCount(code=94, count=3))
    (found,) = samples(page("DCGM_FI_DEV_GPU_TEMP{} 1"), AT_US)
    assert found.sample.xids is None


def test_slices_and_what_is_no_gpu_are_left_out() -> None:
    sliced = 'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1",GPU_I_PROFILE="1g.5gb",GPU_I_ID="7",Hostname="n1"} 61'
    switch = 'DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT{nvswitch="0",Hostname="n1"} 40'
    assert samples("\n".join((sliced, switch, "go_goroutines 12", "# HELP x y", "")), AT_US) == []


def test_labels_may_hold_anything_that_prometheus_lets_them() -> None:
    line = 'DCGM_FI_DEV_GPU_TEMP{modelName="a \\"b\\", c}d",UUID="GPU-1", Hostname = "n\\\\1\\n" , } 61 1395066363000'
    (found,) = samples(line, AT_US)
    assert found.host == "n\\1\n"
    assert found.sample.temperature_millicelsius == 61_000


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("<html>", "line 2 is no metric"),
        ("DCGM_FI_DEV_GPU_TEMP{UUID=GPU-1} 61", "line 2 has labels that are none: 'UUID=GPU-1'"),
        ('DCGM_FI_DEV_GPU_TEMP{UUID="GPU-1"} warm', "line 2 has the value 'warm', which is no number"),
        ('DCGM_FI_DEV_GPU_TEMP{UUID="GPU-1"}', "line 2 is no metric"),
    ],
)
def test_what_is_no_page_is_refused_by_its_line(line: str, said: str) -> None:
    with pytest.raises(NotText) as caught:
        samples("# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).\n" + line, AT_US)
    assert said in str(caught.value)
