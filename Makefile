# Everything here needs Python >= 3.11, make and git; the rest is installed into .venv and .venv-*.
PYTHON ?= python3
BIN := .venv/bin
PIP := -m pip --disable-pip-version-check -qq install
# A lock names every package with its hashes, so pip has nothing left to resolve.
FROM_LOCK := --require-hashes --no-deps -r
UV_VERSION := 0.13.9

.DEFAULT_GOAL := help
.PHONY: help setup demo test e2e soak lint format check promises lock clean servers up down bench

help: ## show these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/package.stamp .venv-sam/deps.stamp .venv-emulators/deps.stamp servers ## install what the other targets need (they do it themselves)

demo: .venv/package.stamp $(if $(filter redis,$(BACKEND)),servers) ## run the demonstration (BACKEND=sqlite, the default, or redis, on a server of its own)
	@$(BIN)/python examples/demo.py $(if $(BACKEND),--backend $(BACKEND))

test: setup artifacts ## run all tests, then hold the promise table
	$(BIN)/pytest -n 2
	$(BIN)/python tests/promises.py

e2e: setup artifacts ## deploy to a local AWS and run jobs there (no account, no Docker)
	$(BIN)/pytest tests/e2e/test_deployed.py

soak: BACKEND ?= sqlite
soak: SECONDS ?= 60
soak: .venv/package.stamp ## play a BACKEND against the model of the contract for SECONDS, from a SEED or any
	@$(BIN)/python -m tests.soak --backend $(BACKEND) --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

# Servers run natively on private loopback ports (localstack/servers.py), so only their programs are needed.
servers: ## install the servers that the tests start (Debian and Ubuntu; elsewhere install redis by hand)
	@command -v redis-server >/dev/null || command -v valkey-server >/dev/null || { $(APT_GET) update && $(APT_GET) install redis-server; }

up: .venv/package.stamp ## start a local Redis (PORT=6379), with other servers as containers where Docker answers
	@$(BIN)/python -m localstack.servers up $(if $(PORT),--port $(PORT))

down: .venv/package.stamp ## stop what `make up` started and delete its data
	@$(BIN)/python -m localstack.servers down

APT_GET = $(if $(filter-out 0,$(shell id -u)),sudo) env DEBIAN_FRONTEND=noninteractive apt-get -qq -y

bench: .venv/package.stamp .venv-bench/deps.stamp servers ## measure Redis against a floor, AsyncMQ and its own size (ARGS=growth or peer: a part)
	@PYTHONPATH=. $(BIN)/python benchmarks/redis_bench.py $(ARGS)

lint: .venv/package.stamp lint-templates ## check format, lint rules, types, import direction and templates
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(wildcard core functions)
	$(BIN)/pytest -q -p no:randomly tests/unit/test_imports.py -k direction

format: .venv/package.stamp ## rewrite the code in the project's format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

include infra/sam.mk

check: lint test ## lint and test: what CI runs

promises: .venv/package.stamp ## print which tests prove which promise (SHOW=C4 lists them); fail when one lacks a test
	@$(BIN)/python tests/promises.py $(SHOW)

lock: build/uv/bin/uv ## pin the dependencies anew (every .lock file)
	$(LOCK) --group dev --extra aws --extra cli --extra redis pyproject.toml --output-file dev.lock
	$(LOCK) --group sam --output-file sam.lock
	$(LOCK) --group emulators --output-file emulators.lock
	$(LOCK) --group bench --output-file bench.lock
	$(LOCK) --group layer --extra redis --constraint dev.lock pyproject.toml --output-file core/layer-redis.lock

clean: ## remove the environments, caches and builds
	rm -rf .venv .venv-* build dist .aws-sam .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# No header and no index address: a lock reads the same wherever it was made.
LOCK = build/uv/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	--no-header --no-strip-extras --no-emit-index-url --no-config

build/uv/bin/uv:
	@$(check_python)
	@$(PYTHON) -m venv --clear build/uv
	@build/uv/bin/python $(PIP) uv==$(UV_VERSION)

define check_python
$(PYTHON) -c '' 2>/dev/null || { echo "mayflymq: '$(PYTHON)' does not run; install Python 3.11 or newer, or say which: make PYTHON=python3.12" >&2; exit 1; }; \
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "mayflymq: Python 3.11 or newer is needed, and '$(PYTHON)' is $$($(PYTHON) -V 2>&1); say which to use: make PYTHON=python3.12" >&2; exit 1; }; \
$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "mayflymq: '$(PYTHON)' lacks the venv module; install it (Debian and Ubuntu: the package python3-venv)" >&2; exit 1; }
endef

# A changed lock starts a new environment, so nothing that left the lock stays behind.
.venv/deps.stamp: dev.lock
	@$(check_python)
	@echo "installing the development tools into .venv"
	@$(PYTHON) -m venv --clear .venv
	@.venv/bin/python $(PIP) $(FROM_LOCK) dev.lock
	@touch $@

.venv/package.stamp: .venv/deps.stamp pyproject.toml
	@.venv/bin/python $(PIP) --no-deps --no-build-isolation -e .
	@touch $@

# The SAM command line, the local AWS, the benchmark's peer: each apart, as each pins what the others use.
.venv-%/deps.stamp: %.lock
	@$(check_python)
	@echo "installing $< into .venv-$*"
	@$(PYTHON) -m venv --clear .venv-$*
	@.venv-$*/bin/python $(PIP) $(FROM_LOCK) $<
	@touch $@
