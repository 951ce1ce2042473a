# `make help` lists what there is. Needs git, make and Python 3.11 or newer; everything else comes into .venv, versions locked.

# The newest Python from 3.11 on that is there and can make a virtual environment.
PYTHON ?= $(shell for version in 3.14 3.13 3.12 3.11; do \
	python$$version -c 'import ensurepip' 2> /dev/null && echo python$$version && break; done)
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
STRANDS := .venv-strands
LITELLM := .venv-litellm
MITMPROXY := .venv-mitmproxy
PHOENIX := .venv-phoenix
CLIENTS := .venv-clients
# Processes that run tests: one more than cores, as many tests wait.
WORKERS := $$(($$(getconf _NPROCESSORS_ONLN) + 1))
QUICK := not slow and not check and not real_cluster and not browser
ARGS ?=
SIZE ?=

.DEFAULT_GOAL := help
.PHONY: help demo test test-browser test-all test-thorough test-slow test-cluster check format audit docs bench bench-compare \
	bench-capture soak attacks matrix upgrades gradual memory-kills inspector-kills cluster-ml strands bench-memory front-ends \
	bench-inspector bench-mirrors bench-streams bench-rehearse mitmproxy phoenix dist clean

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# A lock file names everything (`make check` runs `pip check`), so pip has nothing to resolve: with --no-deps a release that
# is newer than a lock, of a package that is required with an extra, can't stop the installation.
PIP = $(PY) -m pip install --disable-pip-version-check --progress-bar off --no-deps
packages = $(shell grep -c '^[a-zA-Z0-9._-]*==' $(1))
# Shows pip's lines as one that counts, and all of them if it fails.
COUNT := { all = all $$0 "\n" } \
	/^(Collecting|Processing|Requirement already|Obtaining) / { printf "\r  %d of %d read", ++n, of; fflush() } \
	/^Installing collected/ { printf ", installing ..."; fflush() } \
	/^pip failed/ { failed = 1 } \
	END { if (failed) { printf "\n%s", all; exit 1 } print " done" }
$(STAMP): requirements-dev.lock pyproject.toml
	@test -x $(PY) || test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; name one: make PYTHON=python3"; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "Installing $(call packages,requirements-dev.lock) locked packages into $(VENV), once:"
	@{ $(PIP) --require-hashes -r requirements-dev.lock 2>&1 || echo "pip failed"; } | awk -v of=$(call packages,requirements-dev.lock) '$(COUNT)'
	@{ $(PIP) --no-build-isolation --editable . 2>&1 || echo "pip failed"; } | awk -v of=1 '$(COUNT)'
	@touch $@

demo: $(STAMP) ## unified input reaching the LLM through agents that don't know it (ARGS=--once: and end; --all: more)
	$(PY) -m gateway demo $(ARGS)

# Bytecode is kept: the tests start many processes, each of which would compile the gateway.
unexport PYTHONDONTWRITEBYTECODE

test: $(STAMP) ## the tests, without the slow ones and those of `make check`
	$(PY) -m pytest -n $(WORKERS) --dist worksteal -m "$(QUICK)" $(ARGS)

test-browser: $(STAMP) ## the inspector's page in Debian's Chromium
	$(PY) -m pytest -m browser $(ARGS)

test-all: $(STAMP) ## what CI runs besides: a twelfth of the slow tests and of those on a real ML Commons
	$(MAKE) --jobs 2 test-slow test-cluster SIZE="-p tests.sampling --sample 12 --hypothesis-profile=ci"

test-thorough: $(STAMP) ## all of these tests, with all of their examples and requests: an hour
	$(MAKE) --jobs 2 test-slow test-cluster SIZE="--hypothesis-profile=thorough"

# One test at a time, as the longest come first (mark `slow`).
test-slow: $(STAMP)
	$(PY) -m pytest -n $(WORKERS) --dist load --maxschedchunk 1 \
		-m "(slow or hypothesis) and not real_cluster and not browser" $(SIZE) $(ARGS)

# Beside the slow tests, as these wait for the cluster most of the time.
test-cluster: $(STAMP)
	$(PY) -m pytest -m real_cluster $(SIZE) $(ARGS)

check: $(STAMP) ## packages, lint, format, types, layers, pages and manifests
	$(PY) -m pip check
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PY) -m pytest -q -n $(WORKERS) --dist worksteal -m "check and not slow" $$(grep -rl pytest.mark.check tests --include='test_*.py')

audit: $(STAMP) ## known vulnerabilities in the locked dependencies
	$(PY) -m tests.security.audit

format: $(STAMP) ## format the code, fix what lint can fix
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

docs: $(STAMP) ## write the generated parts of the documentation, and the picture of the demo
	$(PY) -m gateway.config.describe docs/reference/settings.md
	$(PY) -m tests.docs.cli_page
	$(PY) -m tests.docs.first_minutes
	$(PY) -m tests.docs.worked_examples
	$(PY) -m tests.docs.codes_table
	$(PY) -m tests.smuggling.page
	$(PY) docs/images/demo.py
	$(PY) -m tests.docs.embedding_page

bench: $(STAMP) ## measure
	$(PY) -m bench.run $(ARGS)

bench-compare: $(STAMP) ## this tree beside an older commit (ARGS="--against REV")
	$(PY) -m bench.compare $(ARGS)

bench-capture: $(STAMP) ## what recording exchanges costs (ARGS="--rounds 80")
	$(PY) -m bench.capture $(ARGS)

soak: $(STAMP) ## ten minutes of all kinds of requests: right answers, level memory? (ARGS="--minutes 60 --tls")
	$(PY) -m bench.soak $(ARGS)

attacks: $(STAMP) ## attack a gateway: what do other clients notice, is all as before? (ARGS="--quick", ARGS=--help)
	$(PY) -m bench.attacks $(ARGS)

matrix: $(STAMP) ## agents x templates x inputs: arrived, refused, lost, broken
	$(PY) -m tests.matrix $(ARGS)

upgrades: $(STAMP) ## upgrades and rollbacks of a simulated cluster under traffic (ARGS="--tries 20")
	$(PY) -m tests.migrate.under_traffic $(ARGS)

gradual: $(STAMP) ## from an old cluster to a new one and back, under traffic: lost, broken, misled (ARGS="--runs 1")
	$(PY) -m tests.migrate.gradual $(ARGS)

memory-kills: $(STAMP) ## kill writers of a store of sessions at random (ARGS="--store sqlite --rounds 200")
	$(PY) -m tests.memory.kills $(ARGS)

inspector-kills: $(STAMP) ## kill processes that record exchanges, at random (ARGS="--rounds 200")
	$(PY) -m tests.recording.sinks.kills $(ARGS)

bench-rehearse: $(STAMP) ## how long a rehearsal of 100,000 recorded requests takes (ARGS="--exchanges 10000")
	$(PY) -m bench.rehearse $(ARGS)

bench-mirrors: $(STAMP) ## what copies of runs cost the clients whose runs are copied (ARGS="--rounds 30")
	$(PY) -m bench.mirrors $(ARGS)

bench-inspector: $(STAMP) ## what recording an exchange costs, and how fast each filter answers (ARGS="--exchanges 10000")
	$(PY) -m bench.inspector $(ARGS)

cluster-ml: $(STAMP) ## fetch, start and stop a real ML Commons (ARGS=start|stop|…)
	$(PY) tests/real_cluster/cluster.py $(ARGS)

# Strands needs other versions than the tools in .venv, so it has a virtual environment of its own.
$(STRANDS)/.installed: tests/memory/strands/requirements.lock pyproject.toml
	test -x $(STRANDS)/bin/python || $(or $(PYTHON),python3) -m venv $(STRANDS)
	$(STRANDS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
		-r tests/memory/strands/requirements.lock
	$(STRANDS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

strands: $(STRANDS)/.installed ## Strands' own session managers on the gateway's memory
	$(STRANDS)/bin/python -m pytest tests/memory/strands $(ARGS)

bench-memory: $(STRANDS)/.installed ## what a turn costs in each store, beside Strands' FileSessionManager
	$(STRANDS)/bin/python -m bench.memory_stores $(ARGS)

# mitmproxy needs other versions than the tools in .venv.
$(MITMPROXY)/.installed: tests/inspector/mitmproxy/requirements.lock
	test -x $(MITMPROXY)/bin/python || $(or $(PYTHON),python3) -m venv $(MITMPROXY)
	$(MITMPROXY)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
		-r tests/inspector/mitmproxy/requirements.lock
	touch $@

$(PHOENIX)/.installed: tests/telemetry/phoenix/requirements.lock
	test -x $(PHOENIX)/bin/python || $(or $(PYTHON),python3) -m venv $(PHOENIX)
	$(PHOENIX)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
		-r tests/telemetry/phoenix/requirements.lock
	touch $@

$(LITELLM)/.installed: bench/peers/litellm/requirements.lock
	test -x $(LITELLM)/bin/python || $(or $(PYTHON),python3) -m venv $(LITELLM)
	$(LITELLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
		-r bench/peers/litellm/requirements.lock
	touch $@

bench-streams: $(STAMP) $(LITELLM)/.installed ## streams through the adapters' port, beside LiteLLM's proxy (ARGS="--rounds 3")
	$(PY) -m bench.streams $(ARGS)

# LangChain, LlamaIndex and OpenAI's agents, each with packages of its own.
$(CLIENTS)/.installed: tests/adapters/clients/requirements.lock
	test -x $(CLIENTS)/bin/python || $(or $(PYTHON),python3) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
		-r tests/adapters/clients/requirements.lock
	touch $@

front-ends: $(STAMP) $(CLIENTS)/.installed ## other projects' clients, and MCP's suite, before the adapters' port (needs Node 20 and npm)
	cd tests/adapters/node && npm ci --silent --no-audit --no-fund
	cd tests/adapters/conformance && npm ci --silent --no-audit --no-fund
	$(PY) -m pytest tests/adapters/test_other_clients.py tests/adapters/test_conformance.py $(ARGS)

mitmproxy: $(STAMP) $(MITMPROXY)/.installed ## mitmproxy reads our HAR files
	$(PY) -m pytest tests/inspector/test_mitmproxy.py $(ARGS)

dist: $(STAMP) ## build the wheel into dist/, reproducibly, and check its metadata
	$(PY) -m tests.deploy.wheel dist

phoenix: $(STAMP) $(PHOENIX)/.installed ## Phoenix shows our traces
	$(PY) -m pytest tests/telemetry/test_phoenix.py $(ARGS)

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) $(STRANDS) $(MITMPROXY) $(LITELLM) $(PHOENIX) $(CLIENTS) .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache
