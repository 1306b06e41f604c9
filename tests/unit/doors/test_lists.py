"""Lists of hosts, indices of arrays, and what stands for an image."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.doors.arrays import BadArray, read_array, write_array
from muster.doors.errors import DoorError
from muster.doors.hostlist import BadHostlist, compress, expand
from muster.doors.images import NoCommand, read_images
from muster.events.jobs import JobRun


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("gpu1", ["gpu1"]),
        ("gpu[170-173,190]", ["gpu170", "gpu171", "gpu172", "gpu173", "gpu190"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("a[1-2]b[3-4]", ["a1b3", "a1b4", "a2b3", "a2b4"]),
        ("login,gpu[1,3]-ib,c", ["login", "gpu1-ib", "gpu3-ib", "c"]),
        ("HOST-10-140-60-[1-2]", ["HOST-10-140-60-1", "HOST-10-140-60-2"]),
        (" a , b,, ", ["a", "b"]),
        ("", []),
    ],
)
def test_a_list_of_hosts_is_expanded(text: str, hosts: list[str]) -> None:
    assert expand(text) == hosts


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        (["gpu1"], "gpu1"),
        (["gpu1", "gpu2"], "gpu[1-2]"),
        (["gpu190", "gpu171", "gpu170", "gpu172"], "gpu[170-172,190]"),
        (["n08", "n09", "n10", "n11"], "n[08-11]"),
        (["n8", "n9", "n10"], "n[8-10]"),
        (["a1", "b", "a3", "b"], "a[1,3],b"),
        ([], ""),
    ],
)
def test_a_list_of_hosts_is_compressed(hosts: list[str], text: str) -> None:
    assert compress(hosts) == text


@given(st.lists(st.from_regex(r"[a-z]{1,3}-?[0-9]{0,3}", fullmatch=True), max_size=40, unique=True))
def test_compressing_loses_no_host_and_invents_none(hosts: list[str]) -> None:
    assert sorted(expand(compress(hosts))) == sorted(hosts)


@pytest.mark.parametrize(
    "text", ["a[", "a]", "a[[1]]", "a[x]", "a[3-1]", "a[1-9999999]", "a[1-9999][1-9999]", "a b", "a" * 70_000]
)
def test_what_is_no_list_of_hosts_is_refused(text: str) -> None:
    with pytest.raises(BadHostlist):
        expand(text)


@pytest.mark.parametrize(
    ("spec", "indices", "at_once", "written"),
    [
        ("0-3", [0, 1, 2, 3], 0, "0-3"),
        ("[0-50]%5", list(range(51)), 5, "0-50"),
        ("1,3,7", [1, 3, 7], 0, "1,3,7"),
        ("0-15:4", [0, 4, 8, 12], 0, "0-12:4"),
        ("7,1-2,2", [1, 2, 7], 0, "1-2,7"),
        ("5", [5], 0, "5"),
    ],
)
def test_an_array_is_read_and_written(spec: str, indices: list[int], at_once: int, written: str) -> None:
    assert read_array(spec) == (indices, at_once)
    assert write_array(indices) == written


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=50, unique=True).map(sorted))
def test_a_written_array_is_read_as_the_same(indices: list[int]) -> None:
    assert read_array(write_array(indices)) == (indices, 0)


@pytest.mark.parametrize("spec", ["", "x", "3-1", "0-4000001", "0-200000", "1-2:0", "0-99999,0-99999", "1%0", "1%x", "1,,2"])
def test_what_is_no_array_is_refused(spec: str) -> None:
    with pytest.raises(BadArray):
        read_array(spec)


IMAGES = b'[images]\n"pytorch/*" = ["python", "train.py"]\n"busybox" = "echo hello"\n'


@pytest.mark.parametrize("image", ["pytorch/pytorch:2.1.0-cuda12.1", "docker.io/pytorch/pytorch", "pytorch/x@sha256:00"])
def test_an_image_is_found_by_its_pattern(image: str) -> None:
    images = read_images(IMAGES, "images.toml")
    assert images.command(JobRun(image=image)) == ("python", "train.py")
    assert images.command(JobRun(image=image, command=("ls",))) == ("ls",)
    arguments = JobRun(image=image, command=("--fast",), environment={"MUSTER_ENTRYPOINT": "image"})
    assert images.command(arguments) == ("python", "train.py", "--fast")


def test_an_image_without_a_pattern_cannot_be_run_and_a_command_without_image_can() -> None:
    images = read_images(IMAGES, "images.toml")
    assert images.command(JobRun(image="docker.io/library/busybox:1.36")) == ("bash", "-c", "echo hello")
    assert images.command(JobRun(command=("ls",))) == ("ls",)
    with pytest.raises(NoCommand, match=r"the image 'nginx' is not in images\.toml"):
        images.command(JobRun(image="nginx", command=("ls",)))
    with pytest.raises(NoCommand, match="neither"):
        images.command(JobRun())


@pytest.mark.parametrize(
    ("data", "line", "words"),
    [
        (b"[images\n", 1, "is not TOML"),
        (b"\n[image]\n", 2, "knows the table"),
        (b"images = 3\n", 1, "must be a table"),
        (b'[images]\n"a" = 3\n', 2, "program and its arguments"),
        (b'[images]\n"a" = []\n', 2, "program and its arguments"),
        (b"\xff", 1, "UTF-8"),
    ],
)
def test_a_file_of_images_that_makes_no_sense_is_refused_with_its_place(data: bytes, line: int, words: str) -> None:
    with pytest.raises(DoorError, match=words) as caught:
        read_images(data, "images.toml")
    assert caught.value.line == line
