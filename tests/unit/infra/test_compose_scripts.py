"""What runs in the containers beside Muster's own programs: the health check, and what an image is made of."""

import http.server
import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.compose import ROOT

FOLDER = ROOT / "infra" / "compose" / "inside"


def script(name: str) -> ModuleType:
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HEALTH = script("health")
REQUIREMENTS = script("requirements")


@pytest.fixture
def server() -> Iterator[http.server.ThreadingHTTPServer]:
    """Answers /N with the status N."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(int(self.path[1:]))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def test_who_answers_is_well_also_where_a_token_is_wanted(server: http.server.ThreadingHTTPServer) -> None:
    port = str(server.server_port)
    assert HEALTH.main(["http", port, "/200"]) == ""
    assert HEALTH.main(["http", port, "/401"]) == ""
    assert HEALTH.main(["http", port, "/503"]) == f"/503 at port {port} answers 503"


def test_who_does_not_answer_is_not_well(server: http.server.ThreadingHTTPServer) -> None:
    server.shutdown()
    server.server_close()
    assert "does not answer" in HEALTH.main(["http", str(server.server_port), "/200"])


def test_a_process_is_well_while_it_lives(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    assert "does not run" in HEALTH.main(["process", str(lock)])
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        lock.write_text(f"{process.pid}\n")
        assert HEALTH.main(["process", str(lock)]) == ""
        process.communicate(b"\n")
    assert "does not run" in HEALTH.main(["process", str(lock)])
    lock.write_text("")
    assert "does not run" in HEALTH.main(["process", str(lock)])


def test_a_lease_is_well_while_it_is_moved(tmp_path: Path) -> None:
    lease = tmp_path / "lease"
    assert "cannot be looked at" in HEALTH.main(["fresh", str(lease), "60"])
    lease.touch()
    assert HEALTH.main(["fresh", str(lease), "60"]) == ""
    os.utime(lease, (0, 0))
    assert "and not within 60 s" in HEALTH.main(["fresh", str(lease), "60"])


def test_the_health_check_needs_nothing_that_is_installed(tmp_path: Path) -> None:
    done = subprocess.run(
        [FOLDER / "health.py", "process", tmp_path / "none"], capture_output=True, text=True, env={}, check=False
    )
    assert done.returncode == 1
    assert "does not run" in done.stdout
    assert subprocess.run([FOLDER / "health.py"], capture_output=True, check=False).returncode == 1


PROJECT = {
    "name": "some-thing",
    "dependencies": ["one==1"],
    "optional-dependencies": {
        "all": ["some-thing[web, data]"],
        "web": ["two>=2", "some-thing[client]"],
        "data": ["three", "two>=2"],
        "client": ["four[lz4]==4"],
    },
}


def test_the_requirements_of_an_extra_are_those_of_all_that_it_names_and_nothing_of_the_project_itself() -> None:
    assert REQUIREMENTS.needs(PROJECT, ["all"]) == ["one==1", "two>=2", "three", "four[lz4]==4"]
    assert REQUIREMENTS.needs(PROJECT, ["client"]) == ["one==1", "four[lz4]==4"]


def test_an_extra_that_there_is_not_is_named() -> None:
    with pytest.raises(SystemExit, match="there is no extra 'everything'; there are all, web, data, client"):
        REQUIREMENTS.needs(PROJECT, ["everything"])
