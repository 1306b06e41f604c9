"""The names that people and other schedulers have for GPUs, and catalogues as files."""

import pytest

from muster.reading.catalogue import (
    find_model,
    package_catalogue,
    read_bandwidth,
    read_capability,
    read_catalogue,
    write_capability,
)
from muster.reading.errors import FileError
from muster.reading.values import Value


@pytest.mark.parametrize(
    ("text", "model", "size_gb"),
    [
        ("a100", "A100", 0),
        ("A100-80GB", "A100", 80),
        ("a100_40gb", "A100", 40),
        ("NVIDIA-A100-SXM4-80GB", "A100", 80),
        ("NVIDIA-A100-PCIE-40GB", "A100", 40),
        ("nvidia_a100-sxm4-40gb", "A100", 40),
        ("NVIDIA-H100-80GB-HBM3", "H100", 80),
        ("NVIDIA-H100-PCIe", "H100PCIe", 0),
        ("tesla_v100", "V100", 0),
        ("Tesla-V100-SXM2-32GB", "V100", 32),
        ("Tesla-T4", "T4", 0),
        ("geforce_rtx_3090", "RTX3090", 0),
        ("NVIDIA-GeForce-RTX-3090", "RTX3090", 0),
        ("quadro_rtx_8000", "RTX8000", 0),
        ("1080ti", "GTX1080Ti", 0),
        ("2080Ti", "RTX2080Ti", 0),
        ("a6000", "RTXA6000", 0),
        ("NVIDIA-RTX-A6000", "RTXA6000", 0),
        ("l40s", "L40S", 0),
        ("volta", "V100", 0),
        ("NVIDIA-GH200-480GB", "GH200", 480),
    ],
)
def test_a_model_is_found_by_what_people_call_it(text: str, model: str, size_gb: int) -> None:
    assert find_model(text) == (model, size_gb * 953)


@pytest.mark.parametrize("text", ["", "gpu", "ib", "rivendell", "haswell", "40gb", "a1000x", "node-17", "6000", "x" * 1000])
def test_what_is_no_model_is_none(text: str) -> None:
    assert find_model(text) is None


def test_the_packages_own_catalogue_has_each_model_with_its_source() -> None:
    models = package_catalogue()
    by_name = {(each.model, each.memory_mib): each for each in models}
    assert by_name["H100", 81920].capability == 90
    assert by_name["A100", 40960].bandwidth_gbs == 1555
    assert len(by_name) == len(models)
    assert "3g.40gb" in by_name["A100", 81920].mig


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must have 1 to 256 tables"),
        ("[[model]]\nmodel = 'X'\ncapability = 90\n", "needs a bandwidth_gbs"),
        ("[[model]]\nmodel = 'X'\ncapability = 9.0\nbandwidth_gbs = 1\n", "makes no sense"),
        ("[[model]]\nmodel = 'X'\ncapability = 90\nbandwidth_gbs = 1\nspeed = 3\n", "is unknown"),
        ("[[model]]\nmodel = 'X'\ncapability = 90\nbandwidth_gbs = 1\n" * 2, "stands twice"),
        ("model = 3", "must be a list of models"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_with_its_key(text: str, words: str) -> None:
    with pytest.raises(FileError) as caught:
        read_catalogue(text, "gpus.toml")
    assert words in str(caught.value)


def value(text: str) -> Value:
    return Value(text, text, "f", 1, "gpu")


def test_capabilities_and_bandwidths_are_read_as_people_write_them() -> None:
    assert [read_capability(value(text)) for text in ("9", "9.0", "8.6", "10.3")] == [90, 90, 86, 103]
    assert [write_capability(tenths) for tenths in (90, 86, 103)] == ["9.0", "8.6", "10.3"]
    assert [read_bandwidth(value(text)) for text in ("2000", "900GB/s", "3.35TB/s", "2 TB")] == [2000, 900, 3350, 2000]
    for text in ("", "x", "9.05", "0.5", "100.0"):
        with pytest.raises(FileError):
            read_capability(value(text))
    for text in ("", "0", "fast", "1.5", "9999TB/s"):
        with pytest.raises(FileError):
            read_bandwidth(value(text))
