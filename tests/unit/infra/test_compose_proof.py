"""What `infra/compose-test` does before there is an engine: which images it brings, which it builds, and what it leaves alone."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.compose import FILE, ROOT, variables

PROOF = ROOT / "infra" / "compose" / "proof"


@pytest.fixture
def images(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(PROOF))
    for name in [name for name in variables(FILE.read_text()) if name.endswith("_IMAGE")]:
        monkeypatch.delenv(name, raising=False)
    import images

    yield images
    for name in ("images", "engine"):
        sys.modules.pop(name, None)


class Engine:
    """Knows some images, and pulls some."""

    def __init__(self, images: Any, there: dict[str, str], pulled: set[str], *, own: bool) -> None:
        self.trouble = images.Trouble
        self.there = there
        self.pulled = pulled
        self.own = own
        self.asked: list[str] = []

    def docker(self, *words: Any, **_: Any) -> str:
        if words[:2] == ("image", "inspect"):
            if words[-1] not in self.there:
                raise self.trouble("No such image")
            return self.there[words[-1]]
        assert words[0] == "pull"
        self.asked.append(words[-1])
        if words[-1] not in self.pulled:
            raise self.trouble("no such host")
        return ""


def names(images: Any) -> dict[str, str]:
    return {variable: made.name for variable, made in images.named().items()}


def test_every_image_of_the_file_is_brought_but_the_one_that_is_built(images: Any) -> None:
    said = variables(FILE.read_text())
    assert names(images) == {name: image for name, image in said.items() if name.endswith("_IMAGE") and name != "MUSTER_IMAGE"}
    for made in images.named().values():
        assert not made.stands_in or (PROOF / "standin" / made.stands_in / "Dockerfile").is_file()


def test_images_that_a_registry_has_are_pulled(images: Any) -> None:
    engine = Engine(images, {}, set(names(images).values()), own=True)
    assert images.bring(engine, print) == set()
    assert engine.asked == list(names(images).values())


def test_a_registry_that_does_not_answer_is_asked_once_and_stand_ins_are_built(
    images: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    monkeypatch.setattr(images, "stand_in", lambda _, made, __: built.append(made.stands_in))
    engine = Engine(images, {}, set(), own=True)
    assert images.bring(engine, print) == {"MUSTER_GRAFANA_IMAGE"}
    assert len(engine.asked) == 1
    assert sorted(built) == ["kafka", "postgres", "prometheus", "python"]


def test_nothing_of_ours_takes_a_name_in_somebody_elses_engine(images: Any) -> None:
    with pytest.raises(images.Trouble, match="in an engine of our own only"):
        images.bring(Engine(images, {}, set(), own=False), print)


def test_a_stand_in_that_is_made_of_something_else_by_now_is_built_again(images: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_recipe", lambda stands_in: f"now-{stands_in}")
    there = dict.fromkeys(names(images).values(), "<no value>")
    there[names(images)["MUSTER_KAFKA_IMAGE"]] = "before-kafka"
    there[names(images)["MUSTER_POSTGRES_IMAGE"]] = "now-postgres"
    built: list[str] = []
    monkeypatch.setattr(images, "stand_in", lambda _, made, __: built.append(made.stands_in))
    images.bring(Engine(images, there, set(), own=True), print)
    assert built == ["kafka"]


def test_a_stand_in_is_made_of_its_files_and_of_what_it_stands_on(images: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    for base in ("one", "two"):
        monkeypatch.setattr(images, "_base_recipe", lambda base=base: base)
        seen |= {images._recipe(name) for name in ("python", "postgres", "kafka", "prometheus")}
    assert len(seen) == 8


def test_what_this_machine_says_of_pip_goes_into_a_stand_in_and_nothing_that_does_not_exist_there(
    images: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = "global.index-url='https://packages.example/simple'\n:env:.find-links='/opt/wheels'\nglobal.cert='/x.pem'\n"
    monkeypatch.setattr(images, "run", lambda _: told)
    assert images._pip_settings() == (
        f"[global]\ncert = {images.CERTIFICATES}\nindex-url = https://packages.example/simple\n"
    )  # fmt: skip


def test_a_command_that_fails_or_is_missing_or_hangs_is_one_sentence_with_what_it_said(images: Any) -> None:
    with pytest.raises(images.Trouble, match=r"ended with 3:\nwhat it said"):
        images.run(["sh", "-c", "echo what it said; exit 3"])
    with pytest.raises(images.Trouble, match="no-such-program is not installed"):
        images.run(["no-such-program"])
    with pytest.raises(images.Trouble, match=r"took longer than 0 s:\nwhat it said"):
        images.run(["sh", "-c", "echo what it said; exec sleep 60"], within_s=0.4)


def test_it_says_how_it_is_called() -> None:
    done = subprocess.run([ROOT / "infra" / "compose-test", "--help"], capture_output=True, text=True, check=True)
    assert "Prove infra/compose.yaml" in done.stdout
    assert not list(Path(PROOF).glob("__pycache__/play*"))
