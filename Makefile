# Every target sets up what it needs: a fresh machine with make and Python 3.11+ is enough.
#   make test PYTHON=python3.12   chooses the interpreter
#   make test WORKERS=8           runs more tests side by side

VENV    := .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.installed
PYTHONS := $(or $(PYTHON),python3.13 python3.12 python3.11 python3 python)
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help test test-all lint demo engines docs clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/'

# One thread a process: tests run side by side, and no result may depend on the number of cores.
test test-all: export OMP_NUM_THREADS = 1
test: lint ## style, types, prose, import direction, then the tests that are neither slow nor need a GPU
	$(BIN)/pytest -n $(WORKERS) -m "not slow and not gpu"

test-all: lint ## the same with every test that this machine can run
	@# The fuzzer has wheels for some machines; elsewhere its test is skipped.
	-@$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: -c constraints.txt atheris
	$(BIN)/pytest -n $(WORKERS)

lint: $(STAMP) ## style, types, prose and import direction only
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict
	$(BIN)/python -m scripts.prose
	$(BIN)/pytest tests/test_imports.py

demo: $(STAMP) ## train two small models in a minute and draw how far they hold
	$(BIN)/looped demo

# Real ones: a Ray of two simulated nodes, a Slurm of one node that lives in a temporary folder as long as its tests.
SLURM := slurm-wlm munge
engines: export OMP_NUM_THREADS = 1
engines: $(STAMP) ## the engines ray and slurm against real ones, installed where that is possible
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,ray]'
	@if ! { [ -x /usr/sbin/slurmd ] && [ -x /usr/sbin/slurmctld ] && [ -x /usr/sbin/munged ]; }; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			{ apt-get update -q && DEBIAN_FRONTEND=noninteractive \
				apt-get install -q -y --no-install-recommends $(SLURM); } >/dev/null || \
				echo "$(SLURM) could not be installed: the tests of slurm are skipped" >&2; \
		else echo "no Slurm here, and only root can install it: apt-get install $(SLURM)" >&2; fi; \
	fi
	$(BIN)/pytest -rs tests/experiments/test_ray.py tests/experiments/test_slurm.py

docs: $(STAMP) ## the documentation site, into site/, without a request to anywhere
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs]'
	$(BIN)/zensical build --strict
	@# Pages show figures that lie outside docs/. The site has its own, so that it can be put anywhere.
	rm -rf site/figures && cp -r results/figures site/figures
	for page in site/*.html; do sed 's#\.\./results/figures/#figures/#g' "$$page" >"$$page.new" && mv "$$page.new" "$$page"; done

clean: ## remove the environment and everything generated
	rm -rf $(VENV) build dist demo site .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find looped tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Made again only when what it is made from changes. An environment that works keeps its interpreter, unless one is
# asked for: another one's put over it would break both.
$(STAMP): pyproject.toml constraints.txt
	@[ -z "$(PYTHON)" ] && $(BIN)/python -c 'import pip, ssl' 2>/dev/null && exit 0; \
	for python in $(PYTHONS); do \
		"$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
		echo "installing into $(VENV) with $$("$$python" --version); this takes a few minutes once"; \
		"$$python" -m venv --clear $(VENV) && exit 0; \
	done; \
	echo "no Python 3.11 or newer with its venv module among: $(PYTHONS)" >&2; exit 1
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
