# Antiphon: `make demo` and `make test` work from a fresh clone with Python 3.11+, make and git.

PYTHON ?= python3
JOBS   ?= 5
VENV   := .venv
PY     := $(VENV)/bin/python
UV      = $$(uv --version >/dev/null 2>&1 && echo uv || echo $(VENV)/bin/uv)
PIP     = $(PY) -m pip install --quiet --disable-pip-version-check --no-deps

.DEFAULT_GOAL := help
.PHONY: help setup compiled demo unit test escapes prove prove-long prove-short mutants fuzz soak kills approval-attacks coverage lint types format bench bench-pins schemas reference docs pythons wheel-test console console-check screenshots site lock clean distclean

help: ## what there is
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null || sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1: \2/p' $(MAKEFILE_LIST)

setup: $(VENV)/.installed ## make .venv from requirements.lock, with the command `antiphon` in it

# The packages, exactly as locked. uv does it in seconds: the machine's own, or the locked one put into the
# environment first. Where uv cannot reach the package index, pip does the same in a minute or two.
$(VENV)/.locked: requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Antiphon needs Python 3.11 or newer; say which with: make $(MAKECMDGOALS) PYTHON=/path/to/python"; exit 1; }
	@echo "making $(VENV) …"
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || uv venv --clear --quiet --python $(PYTHON) $(VENV)
	@uv --version >/dev/null 2>&1 || test -x $(VENV)/bin/uv || { \
	  sed -n '/^uv==/,/[^\\]$$/p' requirements.lock > $(VENV)/uv.txt && $(PIP) --require-hashes -r $(VENV)/uv.txt; }
	@$(UV) pip install --quiet --require-hashes --python $(PY) -r requirements.lock || $(PIP) --require-hashes -r requirements.lock
	@touch $@

# Antiphon itself, editable; its dependencies and its build tool are in the lock.
$(VENV)/.installed: $(VENV)/.locked pyproject.toml
	@$(UV) pip install --quiet --no-deps --no-build-isolation --python $(PY) --editable . || $(PIP) --no-build-isolation --editable .
	@touch $@

# Bytecode, once: uv leaves none behind, and the tests start some thousand interpreters. pytest keeps its own.
unexport PYTHONDONTWRITEBYTECODE
$(VENV)/.compiled: $(VENV)/.locked
	@$(PY) -m compileall -qq -j 0 -x '/(pip|setuptools|tests)/' $(VENV)/lib || true
	@touch $@

compiled: setup $(VENV)/.compiled
	@$(PY) -m compileall -q src

demo: setup ## a write that happens once, a crash, a replay: in a minute
	$(VENV)/bin/antiphon demo

unit: compiled ## tests without servers: seconds
	$(PY) -m pytest tests/unit -q -n $(JOBS) --dist worksteal

test: compiled ## all tests, against real servers that it starts and stops itself
	$(PY) -m pytest -q -n $(JOBS) --dist worksteal

prove: compiled ## check every promise: 200,000 schedules, planted bugs, 156 kills, 42 pauses, faults of stores; 20 minutes
	$(PY) -m scripts.prove --out docs/explanation/proof.json
	$(PY) -m scripts.make_guarantees

prove-long: compiled ## … 1,000,000 schedules, 612 kills, 102 pauses; an hour, then hours of mutation testing
	$(PY) -m scripts.prove --long --out docs/explanation/proof.json
	$(PY) -m scripts.make_guarantees
	$(PY) -m tests.mutation

mutants: setup ## mutation testing of the code that decides about a call: score and survivors per file (ONLY=keys.py)
	$(PY) -m tests.mutation $(if $(ONLY),--only $(ONLY)) $(ARGS)

prove-short: compiled ## … the same in small, for CI; 3 minutes (ONLY=faults,schedules)
	$(PY) -m scripts.prove --short $(if $(ONLY),--only $(ONLY))

fuzz: setup ## change envelopes, artifacts, model answers, streams, what the proxy gets … at random for two minutes, requests for two more; prints counts
	$(PY) -m tests.fuzz $(ARGS)
	ANTIPHON_TEST_CASES=60 $(PY) -m pytest -q -s tests/integration/server/test_openapi_fuzz.py

# Signals at random instructions hit the tracer instead of the code, and a process that is killed writes its data first.
UNTRACED := --ignore=tests/faults/test_signals.py \
	--deselect=tests/unit/stores/test_redis_pack.py::test_a_signal_while_numbers_are_packed \
	--deselect=tests/integration/stores/test_sqlite_wal.py::test_what_a_killed_process_committed_is_found_before_the_zeros

coverage: compiled ## branch coverage of all tests: of the parts that decide about a call, and of everything
	@rm -f .coverage .coverage.*
	$(PY) -m coverage run -m pytest -q -n $(JOBS) --dist worksteal $(UNTRACED) $(ARGS)
	@$(PY) -m coverage combine --quiet
	@$(PY) -m coverage report --skip-covered --include='*/decide/*,*/keys.py,*/_gateway/*,*/_replay/*'
	@$(PY) -m coverage report | tail -1

escapes: setup ## replayed code that tries to get out, and 200 random mixes of replays and live tests; prints the counts
	$(PY) -m pytest -q tests/integration/replay/test_escapes.py
	$(PY) -m tests.integration.replay.mixed --rounds 200
	$(PY) -m tests.integration.replay.mixed --rounds 200 --jobs 2 --seed 2

soak: setup ## hours of work in 15 minutes: memory, descriptors and threads stay flat (ARGS="--minutes 3 --json")
	$(PY) -m tests.campaigns.soak $(ARGS)

kills: setup ## 1,000 kills of each of SQLite and PostgreSQL during approvals, sagas and undos; the total (ARGS="--kills 100")
	$(PY) -m tests.campaigns.kills $(ARGS)

approval-attacks: setup ## every attack on an approval and 500 legitimate flows, on four stores and both faces; round trips
	$(PY) -m tests.campaigns.approval_attacks

lint: setup ## ruff, mypy --strict, layers, pages and schemas made from the code
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PY) -m scripts.make_schemas --check
	$(PY) scripts/make_reference.py --check
	$(PY) -m scripts.make_guarantees --check

types: setup ## how much of the public interface is annotated (pyright --verifytypes); fails below 99 %
	$(PY) -m scripts.type_completeness

format: setup ## format and sort imports
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

bench: setup ## measure ourselves and our peers side by side (ONLY=canonical,imports)
	$(PY) -m bench $(if $(ONLY),--only $(ONLY)) $(ARGS)

bench-pins: setup ## pin the peers of the benchmarks and tests again
	@for peer in bench/peers/*.in tests/peers/*.in; do \
	  $(UV) pip compile --quiet --universal --no-annotate --no-header --python-version 3.11 --generate-hashes $$peer -o $${peer%.in}.txt || exit 1; \
	done

schemas: setup ## write the JSON Schemas of the contract to schemas/
	$(PY) -m scripts.make_schemas

reference: setup ## write docs/reference/cli.md and settings.md from the code
	$(PY) scripts/make_reference.py

pythons: setup ## bare install and unit tests on every Python of this machine
	$(PY) scripts/pythons.py

wheel-test: setup ## the built wheel alone, then the unit tests against it instead of the sources (ARGS=tests/unit/keys)
	$(PY) scripts/wheel_test.py $(ARGS)

console: ## build the script of the console from its sources (needs npm)
	cd src/antiphon/console/source && npm ci --silent && npm run -s build

console-check: ## is the committed script of the console what its sources give? (needs npm)
	cd src/antiphon/console/source && npm ci --silent && npm run -s check

screenshots: setup ## make the pictures of README and documentation again
	$(PY) scripts/screenshots.py

docs: setup ## check the documentation: links, navigation, examples
	$(PY) -m pytest -q tests/docs

site: setup ## build the documentation as a site under site/
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict
	@echo "read it with: $(PY) -m http.server --directory site 8000"

lock: setup ## resolve requirements.lock again, after a change of pyproject.toml
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes pyproject.toml --all-extras --group dev --group site --group examples \
	  --no-emit-package antiphon --custom-compile-command "make lock" -o requirements.lock
	@! grep -nE '^ *(--index-url|--extra-index-url|--find-links|.* @ )' requirements.lock

clean: ## remove what tools left behind
	rm -rf build dist .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache bench/out site
	find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## … and the environments
	rm -rf $(VENV) bench/.envs tests/node/node_modules
