# make demo, make test: everything from a fresh clone, with Python 3.11, make and pip only. `make help` lists the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help
BIN := .venv/bin
# A stamp is older than the files that decide what is installed: only then is anything installed again.
INSTALLED_FROM := pyproject.toml constraints.txt tools/setup.sh
RUN_READY := .venv/.ready-run
DEV_READY := .venv/.ready-dev
SYSTEM_READY := .venv/.ready-system

.PHONY: help demo demo-clean test test-accelerator test-system test-handover test-engines chaos check lint format types imports house docs figures site package constraints clean

help:  ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 15

$(RUN_READY): $(INSTALLED_FROM)
	@bash tools/setup.sh run,ui
	@touch $@

$(DEV_READY): $(INSTALLED_FROM)
	@bash tools/setup.sh run,dev
	@touch $@ $(RUN_READY)

$(SYSTEM_READY): $(INSTALLED_FROM)
	@bash tools/setup.sh run,dev,dev-system
	@touch $@ $(DEV_READY) $(RUN_READY)

demo: $(RUN_READY)  ## the whole pipeline on real text, on this machine; a second time it only says that all is done
	@bash tools/demo.sh demo

demo-clean:  ## forget the demo's run
	rm -rf demo

test: $(DEV_READY)  ## three suites: fast (unit, plans, published, golden, doctests), integration, kills
	@$(BIN)/python tools/suites.py test

test-system: $(SYSTEM_READY)  ## what needs apt packages (PostgreSQL, Slurm, Chromium) and Ray, MLflow; installs them when it may
	@bash tools/system_packages.sh
	@$(BIN)/python tools/suites.py system

test-engines: $(DEV_READY)  ## what needs other engines: vLLM, lm-evaluation-harness, a Kubernetes control plane, clients of clouds
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt "lm-eval==0.4.13"
	@$(BIN)/python tools/suites.py engines

test-handover: $(SYSTEM_READY)  ## stages in other engines: their configurations read by their own code, their runs taken over
	@bash tools/system_packages.sh
	@bash tools/engine_environment.sh $(patsubst tools/engines/%.txt,%,$(wildcard tools/engines/*.txt))
	@$(BIN)/python tools/suites.py handover

ACCELERATOR := planned_worlds fake_peaks fake_ppo_peaks fake_steps host_waits attention parallel_models parallel_load parallel recompute runtime \
  device_branches fused_decoding planned_decoder packing vllm_engine
test-accelerator: $(DEV_READY)  ## what accelerators would show and processors can: peaks, waits, masks, shards; no GPU is needed
	@$(BIN)/pytest -q $(ACCELERATOR:%=tests/integration/train/test_%.py) tests/integration/test_first_gpu.py

N ?= 3000
chaos: export CHARTER_CHAOS_KILLS = $(N)
chaos: export CHARTER_CHAOS_FLIPS = 100
chaos: export CHARTER_CHAOS_FUZZ_SECONDS ?= 600
chaos: export CHARTER_KILL_RESULTS ?= $(CURDIR)/.kill-results.jsonl
chaos: $(DEV_READY)  ## the full matrix of kills and faults, N random kills among them, fuzzing, and the page of results
	@$(BIN)/python -m pip install --quiet "atheris==3.0.0" || echo "no atheris here: Hypothesis alone fuzzes the readers"
	@rm -f "$$CHARTER_KILL_RESULTS"
	@$(BIN)/python tools/suites.py chaos
	@$(BIN)/python tools/kill_results.py "$$CHARTER_KILL_RESULTS"

check:  ## what CI does: test, checks beside it, smokes of servers and engines, and the suites that a change touches
	@bash .ci/run

lint: $(DEV_READY)  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(DEV_READY)  ## ruff: rewrite
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(DEV_READY)  ## mypy --strict on the package and the tools
	$(BIN)/mypy
	$(BIN)/mypy tools

imports: $(DEV_READY)  ## the layers of the house
	$(BIN)/lint-imports

house: $(DEV_READY)  ## the figures of the house, held to limits that may only fall
	@$(BIN)/python tools/house.py --check

docs: $(DEV_READY)  ## write the generated pages: the map in CONTRIBUTING.md, the command line in docs/reference/cli.md
	$(BIN)/python tools/module_map.py
	$(BIN)/python tools/cli_reference.py
	$(BIN)/python tools/yaml_reference.py
	$(BIN)/python tools/engine_tables.py
	$(BIN)/python tools/recipes.py

FIGURES := README.md docs/tutorial.md $(wildcard docs/guides/*.md docs/concepts/*.md)
figures: $(DEV_READY)  ## lines of the documentation that its commands no longer print, as `make test` finds them
	@$(BIN)/python tools/page_figures.py $(FIGURES)

site: $(DEV_READY)  ## the documentation as a site with search, in site/; a dead link or a page without a place fails
	@$(BIN)/sphinx-build -W --keep-going -q -b html docs site
	@echo site/index.html

package: $(DEV_READY)  ## source archive and wheel in dist/, checked as an index would
	@$(BIN)/python -m build --no-isolation --outdir dist . >/dev/null && $(BIN)/twine check --strict dist/*

constraints: $(DEV_READY)  ## pin in constraints.txt what .venv holds now
	$(BIN)/python tools/constraints.py > constraints.txt.new && mv constraints.txt.new constraints.txt

clean:  ## caches and .venv
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist build site
