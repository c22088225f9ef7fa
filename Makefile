# Bare `make` prints this list. Everything runs inside .venv, which is made on first use.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

help: ## print this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml requirements/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Holdfast needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

install: $(STAMP) ## make .venv with pinned dependencies

demo: $(STAMP) ## pay orders, kill a worker, see nothing lost (embedded server)
	@$(BIN)/python -m examples.shop.demo

demo-events: $(STAMP) ## orders to a broker and a webhook, payments back, and everything is broken once
	@PYTHONPATH=. $(BIN)/python examples/shop-events/demo.py

demo-workflow: $(STAMP) ## 50 checkouts of many steps, workers killed in the middle of them, nothing done twice
	@$(BIN)/python -m examples.checkout.demo

lab: $(STAMP) ## watch each promise hold, and break without its guard, in a browser (embedded server)
	@$(BIN)/holdfast lab

test: $(STAMP) ## run the tests on every PostgreSQL that can be had
	$(BIN)/python scripts/run_tests.py

test-long: $(STAMP) ## interleavings, random walks and plans at size on the other PostgreSQL versions, and all of 16
	$(BIN)/python scripts/run_tests.py --long

check: $(STAMP) ## lint, types, import layers (static, under 2 minutes)
	$(BIN)/python scripts/check.py

bench: $(STAMP) ## measure everything on this machine, and write docs/performance.md (about an hour)
	$(BIN)/python -m bench all peers workflow-peers pythons --json docs/performance/results.json
	$(BIN)/python scripts/performance.py

bench-quick: $(STAMP) ## the same scenarios in small sizes, to see that they run (2 minutes)
	$(BIN)/holdfast bench all --quick

mutants: $(STAMP) ## remove each guard in turn and see its test fail (about two hours; continues where it was interrupted)
	$(BIN)/python scripts/mutants.py

test-pythons: $(STAMP) ## the core of the tests on every CPython that we support and this machine has
	$(BIN)/python scripts/test_pythons.py

docs: $(STAMP) ## regenerate printed output in README and docs, docs/api.txt and the drawing of the schema
	$(BIN)/python scripts/docs.py
	$(BIN)/python scripts/schema_picture.py
	$(BIN)/python scripts/drawings.py

docs-site: $(STAMP) ## build the documentation with its search into build/site, without a network
	$(BIN)/python scripts/docs_site.py

shots: $(STAMP) ## make the pictures of the dashboard and the lab in docs (needs chromium)
	$(BIN)/python scripts/web_shots.py
	$(BIN)/python scripts/lab_shots.py

pins: ## refresh requirements/dev.txt from the newest releases
	$(PYTHON) scripts/pins.py

.PHONY: help install demo demo-events demo-workflow lab test test-long test-pythons check bench bench-quick mutants docs docs-site shots pins
