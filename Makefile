# Two commands matter: `make demo` and `make test`. Both need Python 3.11 or newer and nothing else: what they need is
# installed into .venv, once. Where there are Java 17 and Maven too, `make test` tests on Kafka, and `make broker` starts one.

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
BIN := .venv/bin

.PHONY: demo test check lint soak bench broker clean

demo: .venv/runtime.stamp  ## Play a workload, kill the scheduler, start it again, audit the log (under a minute).
	@rm -rf build/demo
	@$(BIN)/python -m muster.simulator.demo build/demo

test: lint  ## Everything that must hold, two files at a time: most tests wait for processes. make test WORKERS=0 runs one after the other.
	$(BIN)/python -m pytest -n $(or $(WORKERS),2) --dist loadfile --no-loadscope-reorder $(PYTEST_OPTIONS)

check: lint  ## Lint, types, layers and house rules only.
	$(BIN)/python -m pytest tests/tidy

lint: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

soak: .venv/dev.stamp  ## The simulated world from many seeds, and all that happens to three brokers: make soak SEEDS=1000
	$(BIN)/muster soak --seeds $(or $(SEEDS),100)
	MUSTER_SOAK=1 $(BIN)/python -m pytest tests/integration/test_three_brokers.py tests/integration/test_takeover.py \
		tests/integration/test_everything_dies.py tests/simulation/test_kill_at_every_await.py

bench: .venv/runtime.stamp  ## How fast the engine decides.
	$(BIN)/muster bench engine --json

broker:  ## A Kafka broker on this machine, at localhost:9092: make broker NODES=3, and infra/kafka/broker stop.
	infra/kafka/broker start --nodes $(or $(NODES),1) --port $(or $(PORT),9092)

clean:
	rm -rf build .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed and was not found on the PATH" >&2; exit 1; }
	$(PYTHON) -m venv .venv

# The pip that comes with Python 3.11 knows no dependency groups, so it is replaced first.
.venv/runtime.stamp: pyproject.toml | .venv/bin/python
	@echo "Installing into .venv, once"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[scheduler]"
	@touch $@

.venv/dev.stamp: pyproject.toml .venv/runtime.stamp | .venv/bin/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group dev
	@touch $@
