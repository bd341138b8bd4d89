# `make` alone lists the commands. Stamps in $(VENV) make a second call instant.

PYTHON    ?= python3
VENV      := .venv
# A build of torch once installed (make install TORCH=torch==2.14.1) stays until another is named.
INSTALLED_TORCH := $(shell cat $(VENV)/.install 2>/dev/null)
TORCH     ?= $(or $(INSTALLED_TORCH),torch==2.13.0)
# An index that carries another build of torch, for example a CPU-only one; empty: pip's own.
TORCH_INDEX ?=

BIN  := $(VENV)/bin
NOTEBOOKS := out/notebooks
PIP  := -m pip --disable-pip-version-check -qq
# Python compiles what it imports; pip would compile all that it installs, which takes longest here.
export PIP_NO_COMPILE := 1
# Writes what .ci/run prints: one line a tier, under build/tiers.
TIER := $(BIN)/python tools/run_tier.py

.DEFAULT_GOAL := help
.PHONY: help install demo bench notebooks test test-all check lock clean FORCE

help: ## list the commands
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1#/p' Makefile | awk -F'#' '{printf "make %-10s %s\n", $$1, $$2}'

install: $(VENV)/.install ## create .venv with what serves, generates and shows (PYTHON=, TORCH=, TORCH_INDEX=)

demo: install ## two servers on the shipped checkpoint and a page that shows them (DEMO_PORT=, DEMO_SERVER_PORT=)
	@$(BIN)/kit demo $(addprefix --port ,$(DEMO_PORT)) $(addprefix --server-port ,$(DEMO_SERVER_PORT))

bench: install ## paged against dense here: equality, ratio with interval, capacity; at most 5 minutes
	@$(BIN)/python -m bench run paged_vs_dense --repeats 12

# Papermill runs each in its folder, as Jupyter does. The classic template keeps the figures' titles.
notebooks: $(VENV)/.notebooks ## run the notebooks into out/notebooks: .ipynb, .html, figures as .pdf
	@mkdir -p $(NOTEBOOKS)
	@set -e; for notebook in notebooks/*.ipynb; do \
	  echo "running $$notebook"; \
	  $(BIN)/papermill --no-progress-bar --log-level ERROR --cwd notebooks \
	    -p figures $(abspath $(NOTEBOOKS))/figures "$$notebook" "$(NOTEBOOKS)/$$(basename "$$notebook")"; \
	done
	@$(BIN)/jupyter-nbconvert --log-level ERROR --to html --template classic $(NOTEBOOKS)/*.ipynb
	@echo "see $(NOTEBOOKS)"

test: check ## what every change must pass: at most 10 minutes on 2 cores
	@$(TIER) short -n 2 -m "not long and not cuda"

test-all: test ## the same, then the long tests: at most 60 minutes
	@$(TIER) long -m "long and not cuda"

check: $(VENV)/.test ## lint, format, types and layers; runs no test
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy --no-error-summary
	@report=$$($(BIN)/lint-imports --no-logo 2>&1) || { echo "$$report"; exit 1; }

# What torch brings for its device (CUDA libraries, triton) follows TORCH, so it is not locked.
lock: ## write constraints.txt and the requirements of the images anew: the newest versions allowed
	@set -e; fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; \
	$(PYTHON) -m venv "$$fresh"; \
	"$$fresh/bin/python" $(PIP) install "$(TORCH)" $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)); \
	"$$fresh/bin/python" $(PIP) install "$(TORCH)" -e '.[demo,notebooks,ray,test]'; \
	"$$fresh/bin/python" $(PIP) freeze --exclude-editable > "$$fresh/all.txt"; \
	head -n 1 constraints.txt > "$$fresh/lock.txt"; \
	grep -E '^[A-Za-z0-9._-]+==[^ /]+$$' "$$fresh/all.txt" \
	  | grep -v -i -E '^(torch=|triton|nvidia-|cuda-|setuptools=)' \
	  | LC_ALL=C sort -f -t= -k1,1 >> "$$fresh/lock.txt"; \
	cat "$$fresh/lock.txt" > constraints.txt; \
	"$$fresh/bin/python" $(PIP) install uv; \
	"$$fresh/bin/python" tools/lock_images.py "$$fresh/bin/uv"

clean: ## remove .venv, builds, reports and caches
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find kit bench tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

# ensurepip is asked for as well: without it Debian's venv module fails half-way.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || { \
	  echo "error: the kit needs Python 3.11, 3.12 or 3.13; $(PYTHON) --version says:" \
	       "$$($(PYTHON) --version 2>&1). Name another, for example: make install PYTHON=python3.12" >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "error: $(PYTHON) cannot create virtual environments; install its venv module" \
	       "(Debian and Ubuntu: python3-venv) or name another Python with PYTHON=" >&2; \
	  exit 1; }
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

ifneq ($(INSTALLED_TORCH),$(TORCH))
$(VENV)/.install: FORCE
endif

# TORCH is named again beside the kit: pip then refuses a version outside pyproject.toml's range
# instead of replacing it.
$(VENV)/.install: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing $(TORCH)"
	@$(BIN)/python $(PIP) install "$(TORCH)" $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	@echo "installing the kit and its demo"
	@$(BIN)/python $(PIP) install "$(TORCH)" -e '.[demo]' -c constraints.txt
	@echo "$(TORCH)" > $@

$(VENV)/.notebooks: $(VENV)/.install
	@echo "installing what runs notebooks"
	@$(BIN)/python $(PIP) install "$(TORCH)" -e '.[demo,notebooks]' -c constraints.txt
	@touch $@

$(VENV)/.test: $(VENV)/.install
	@echo "installing the test tools"
	@$(BIN)/python $(PIP) install "$(TORCH)" -e '.[demo,notebooks,ray,test]' -c constraints.txt
	@touch $@
