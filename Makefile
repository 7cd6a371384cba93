# kestrelmq: `make serve` runs the server, `make test` runs the tests. Needs Python 3.11 or newer.
#
# Every target installs what it needs into .venv, at the versions of constraints.txt, and installs
# again only when pyproject.toml or constraints.txt changed. What can go on at the same time does:
# pip, apt and npm mostly wait, and the compiler runs beside them.
MAKEFLAGS += --jobs=2

PYTHON ?= python3
ARGS ?=
# One mutant in about forty.
MUTANTS ?= *__mutmut_13

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
NODE_TESTS := tests/conformance/node tests/e2e
PINS := pyproject.toml constraints.txt
# The hot path, compiled: a copy of the package that is put before the source on the path.
HOT := build/compiled
# The server, installed and compiled.
SERVER := $(STAMPS)/build $(HOT)/stamp
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
SOURCES := $(shell find src -name '*.py')
# Half of what a test does is wait, so there are two processes a core; the tests that share something
# stay in one (tests/conftest.py).
WORKERS ?= $(shell expr 2 \* $$(getconf _NPROCESSORS_ONLN))
IN_PARALLEL = -n $(WORKERS) $(if $(CI),--cpu-budgets --durations=30)
# Where the tests of the compiled hot path are: to import all the others takes each process long.
COMPILED = $(shell grep -rl --include='test_*.py' 'mark\.compiled' tests)

# Of the tests that ARGS picks, one of the two runs may have none: that is status 5.
PASSED = { [ $(1) -eq 0 ] $(if $(ARGS),|| [ $(1) -eq 5 ]); }

# Where it is set, every process compiles the modules that it imports again; the tests start hundreds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup everything serve dist check docs format test coverage mutants bench bench-all bench-check bench-picture bench-peers soak site clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' Makefile | expand -t 16

setup: $(STAMPS)/dev ## install everything a developer needs into .venv

everything: $(STAMPS)/dev $(STAMPS)/node $(SERVER) $(STAMPS)/bytecode $(STAMPS)/spark.jsa ## install and compile all that `make check` and `make test` need

serve: $(SERVER) ## run the server in the foreground; ARGS="--memcache-port 0 ..."
	@exec $(BIN)/kestrelmq serve $(ARGS)

dist: $(STAMPS)/build $(if $(KESTRELMQ_PURE),,$(HOT)/stamp) ## make an sdist and a compiled wheel in dist, and a pure wheel in dist/pure
	rm -rf dist
	$(BIN)/hatchling build -t sdist
	KESTRELMQ_PURE=1 $(BIN)/hatchling build -t wheel -d dist/pure
	KESTRELMQ_COMPILED=$(HOT) $(BIN)/hatchling build -t wheel

check: $(STAMPS)/dev site ## formatting, lint, strict types, import rules, generated docs, the site
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict src tests bench
	$(BIN)/lint-imports
	$(BIN)/python scripts/make-promises --check
	$(BIN)/python scripts/make-reference --check

docs: $(STAMPS)/dev ## make the generated pages in docs/ from what is declared
	$(BIN)/python scripts/make-promises
	$(BIN)/python scripts/make-reference

site: $(STAMPS)/dev ## make the documentation site in build/site; a broken link is an error
	$(BIN)/python scripts/make-reference --site docs/generated
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs build/site

format: $(STAMPS)/dev ## reformat the code and fix what lint can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: everything ## all tests, interpreted or compiled, and those of the hot path both; ARGS="-k name" picks some
	@echo "==> interpreted: about 8 minutes on two cores"
	@$(BIN)/pytest $(IN_PARALLEL) -m "not soak and not compiled_only" $(ARGS); \
	    interpreted=$$?; $(call PASSED,$$interpreted) || exit $$interpreted; \
	    echo "==> compiled: about 2 minutes on two cores"; \
	    PYTHONPATH=$(HOT) $(BIN)/pytest $(IN_PARALLEL) -m "(compiled or compiled_only) and not soak" $(or $(ARGS),$(COMPILED)); \
	    compiled=$$?; $(call PASSED,$$compiled) || exit $$compiled; \
	    [ $$interpreted = 0 ] || [ $$compiled = 0 ]

coverage: $(STAMPS)/dev ## branch coverage of journals and queues by the tests that need no server
	$(BIN)/pytest $(IN_PARALLEL) tests/unit tests/property --cov --cov-report=term $(ARGS)

mutants: $(STAMPS)/dev ## which changes of journals and queues no test notices; MUTANTS='*' tries all, for hours
	$(INSTALL) 'kestrelmq[mutate]'
	$(BIN)/mutmut run "$(MUTANTS)"
	$(BIN)/mutmut results

soak: $(STAMPS)/dev $(STAMPS)/node ## the tests that run for minutes or more, and random ones with new examples
	$(BIN)/pytest -m soak --timeout 0 $(ARGS)
	KESTRELMQ_EXAMPLES=20 $(BIN)/pytest -m hypothesis --hypothesis-profile soak --timeout 0 $(ARGS)

bench: $(SERVER) ## measure the server beside the peers this machine has
	PYTHONPATH=$(HOT) $(BIN)/python -m bench.flood $(ARGS)

bench-all: $(SERVER) ## run every benchmark at modest sizes and write build/bench.json; half an hour
	PYTHONPATH=$(HOT) $(BIN)/python -m bench.suite --json build/bench.json $(ARGS)

bench-check: $(SERVER) ## compare the speed with the last release, as ratios to the peers; fails on a loss over 10 % that repeats
	PYTHONPATH=$(HOT) $(BIN)/python -m bench.check $(ARGS)

bench-picture: $(SERVER) ## measure a flood and draw docs/images/flood.svg from it
	PYTHONPATH=$(HOT) $(BIN)/python -m bench.flood --json build/flood.json $(ARGS)
	$(BIN)/python -m bench.report.picture build/flood.json docs/images/flood.svg

bench-peers: ## install the peers from Debian, and leave none of their services running
	scripts/install-debian --no-service redis-server memcached beanstalkd nats-server

clean: ## remove what the other targets made
	rm -rf $(VENV) $(NODE_TESTS:=/node_modules) tests/e2e/screenshots docs/generated build mutants .mypy_cache .ruff_cache .pytest_cache \
	    .import_linter_cache .hypothesis dist
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

# Debian ships venv apart from python3; an unusable venv is made again with it.
$(STAMPS)/venv:
	@echo "==> making $(VENV): about 4 s"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	@$(PYTHON) -m venv $(VENV) || { scripts/install-debian python3-venv && $(PYTHON) -m venv --clear $(VENV); }
	@mkdir -p $(STAMPS) && touch $@

# What compiling needs, which begins then: tools, and the types of pydantic, on which classes depend.
$(STAMPS)/compiler: $(STAMPS)/venv $(PINS)
	@echo "==> installing the compiler of the hot path into $(VENV): about 8 s"
	@$(INSTALL) hatchling mypy setuptools pydantic
	@touch $@

# What else is to be installed waits for this: only one pip at a time may change .venv. It finds
# kestrelmq there, so it only adds what an extra of it names.
$(STAMPS)/build: $(STAMPS)/compiler scripts/run-kestrelmq
	@echo "==> installing the server into $(VENV): about 10 s"
	@KESTRELMQ_PURE=1 $(INSTALL) --no-build-isolation -e '.[build]'
	@cp scripts/run-kestrelmq $(BIN)/kestrelmq
	@touch $@

# Without a compiler the server runs all the same, on plain Python. The stamp has the time at which
# compiling began: a source that is changed meanwhile is compiled the next time.
$(HOT)/stamp: $(SOURCES) scripts/compile-hot-path $(PINS) $(STAMPS)/venv | $(STAMPS)/compiler
	@echo "==> compiling the hot path: about 60 s"
	@touch $(STAMPS)/compiling
	@$(BIN)/python scripts/compile-hot-path $(HOT) || [ $$? -eq 3 ]
	@mkdir -p $(HOT) && touch -r $(STAMPS)/compiling $@

# pylibmc has no wheel for every Python; from source it needs a compiler and two libraries.
$(STAMPS)/dev: $(STAMPS)/venv $(STAMPS)/test-tools $(PINS) | $(STAMPS)/build
	@echo "==> installing what the checks and the tests need into $(VENV): about 60 s"
	@$(INSTALL) 'kestrelmq[dev]'
	@touch $@

# Every process that runs tests would otherwise rewrite the assertions of all of them, for 25 s.
$(STAMPS)/bytecode: | $(STAMPS)/dev
	@echo "==> preparing the tests: about 25 s"
	@$(BIN)/pytest --collect-only --quiet >/dev/null
	@touch $@

$(STAMPS)/spark.jsa: $(STAMPS)/dev scripts/archive-spark-classes
	@echo "==> storing the classes of Spark for the tests: about 60 s"
	@$(BIN)/python scripts/archive-spark-classes $@ >/dev/null 2>&1 || echo "==> without: each Java of a test takes 6 s longer"

$(STAMPS)/test-tools: $(STAMPS)/venv scripts/install-debian scripts/install-test-tools
	@echo "==> looking for the programs that the tests use: about 40 s if they are missing"
	@scripts/install-test-tools
	@touch $@

$(STAMPS)/node: $(STAMPS)/test-tools $(NODE_TESTS:=/package.json)
	@echo "==> installing the npm packages of the tests: a few seconds"
	@for folder in $(NODE_TESTS); do \
	    (cd $$folder && npm install --no-audit --no-fund --no-package-lock) || exit 1; done
	@touch $@
