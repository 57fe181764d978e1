# Meridian: `make demo` shows the whole way of a job; `make test` checks everything.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help install install-dev learning-venv demo up down test test-fuzz test-properties test-faults test-packaging test-kafka test-kubernetes test-external lint format generate kafka kubernetes bench bench-traces clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt --config-settings editable_mode=compat --editable '.[all]'
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt --config-settings editable_mode=compat --editable '.[dev]'
	touch $@ $(VENV)/.installed

install: $(VENV)/.installed ## everything a user needs into .venv (the command is .venv/bin/meridian)

install-dev: $(VENV)/.installed-dev ## also what tests and checks need

learning-venv: ## .venv-learning with torch, for learning/ (about 5 GB; nothing else needs it)
	test -x .venv-learning/bin/python || $(PYTHON) -m venv .venv-learning
	.venv-learning/bin/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[graph,learning]' pytest pytest-asyncio pytest-timeout

demo: install ## a compute network of five domains, a training job, a killed node, the resumed job
	$(BIN)/meridian demo

up: install ## start the network on this machine and keep it
	$(BIN)/meridian up

down: install ## stop it; no process stays
	$(BIN)/meridian down

test: install-dev ## all tests but the long suites
	$(BIN)/python -m pytest -q -n 2 --reruns 1 --rerun-show-tracebacks -raR -m "not slow"

test-fuzz: install-dev ## 100,000 spoiled inputs of every parser: pages, documents, tables, output of programs, messages
	MERIDIAN_FUZZ_EXAMPLES=100000 $(BIN)/python -m pytest -q --timeout=3600 tests/fuzz

test-properties: install-dev ## every property on newly drawn examples, not on those of the ordinary run
	MERIDIAN_NEW_EXAMPLES=1 $(BIN)/python -m pytest -q -n 2 --timeout=1800 $$(grep -rl "from hypothesis" tests/unit)

test-faults: install-dev ## every service and the broker killed in turn under 1,000 jobs
	$(BIN)/python -m pytest -q -m slow tests/faults

test-packaging: install-dev ## each extra installed alone in a fresh environment, and its service started
	$(BIN)/python -m pytest -q -m slow tests/integration/packaging

test-kafka: install-dev kafka ## the bus conformance suite on Apache Kafka
	$(BIN)/python -m pytest -q -m kafka tests/conformance

test-kubernetes: install-dev kubernetes ## the agent's engine for Kubernetes on a real control plane
	$(BIN)/python -m pytest -q -m slow tests/integration/kubernetes

test-external: install-dev ## tests on public data sets (MERIDIAN_DATA names their folder)
	$(BIN)/python -m pytest -q -m external

lint: install-dev ## ruff, mypy, import contracts, protobuf contracts, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint proto
	$(BIN)/buf breaking proto --against proto/baseline/v1.binpb
	$(BIN)/python proto/generate.py --check

format: install-dev ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

generate: install-dev ## protobuf modules and the AsyncAPI document from proto/
	$(BIN)/python proto/generate.py

kafka: install-dev ## fetch Apache Kafka by its Maven coordinates (needs Java 17 and Maven)
	$(BIN)/python deploy/kafka/kafka.py fetch

kubernetes: install-dev ## build a control plane of Kubernetes from source (needs Go; 10 to 20 minutes)
	$(BIN)/python deploy/kubernetes/kubernetes.py build

bench: install-dev ## all benchmarks, with their baselines
	@set -e; mkdir -p var/bench; for program in bus events gateway telemetry perception_accuracy graph scheduler failover forecast jobs pareto; do \
	  test -f bench/$$program.py || continue; \
	  echo "== bench/$$program.py"; $(BIN)/python bench/$$program.py --json var/bench/$$program.json; done

bench-traces: install-dev ## simulations on public traces (MERIDIAN_DATA): speed, backfilling, nearness to data, mixed chips, run times
	@set -e; mkdir -p var/bench; for program in simulator backfill wan heterogeneous run_time_prediction; do \
	  test -f bench/$$program.py || continue; \
	  echo "== bench/$$program.py"; $(BIN)/python -m bench.$$program --json var/bench/$$program.json; done

clean: ## remove what was built, not the data of a running network
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build
