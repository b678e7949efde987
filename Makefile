.DEFAULT_GOAL := help
.PHONY: help venv demo docs test format lint types bench figures clean

BIN := .venv/bin
STAMP := .venv/.installed
PYTHONS := python3.11 python3.12 python3.13 python3.14 python3

help: ## list the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  \1\t\2/' | expand -t 12

venv: $(STAMP) ## make .venv and install gossamer in it, with all that the checks need

# An interpreter may be on the path and yet not run (a version manager's shim) or not make environments, so each is tried.
$(STAMP): pyproject.toml setup.py constraints.txt $(wildcard src/gossamer/kernels/csrc/*)
	@set -e; \
	if [ ! -x $(BIN)/python ]; then \
		for python in $(PYTHONS); do \
			if $$python -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
				echo "making .venv with $$python"; $$python -m venv .venv; break; \
			fi; \
		done; \
	fi; \
	if [ ! -x $(BIN)/python ]; then \
		echo "gossamer needs Python 3.11 or newer with its venv module; tried: $(PYTHONS)" >&2; exit 1; \
	fi
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	@touch $@

demo: venv ## train a plain, a dense Bayesian and a 95 %-sparse Bayesian network, and write a report about them
	@# Networks this small are faster on one thread, above all on a machine that is busy with something else.
	OMP_NUM_THREADS=1 $(BIN)/gossamer compare sgd,vi,ssvi --data digits --density 0.05 --epochs 60 --seeds 3 --time_steps \
		--out runs/demo

test: venv ## all checks: format, lint, types, tests and doctests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2

format: venv ## format the code and sort its imports
	$(BIN)/ruff check --select I --fix .
	$(BIN)/ruff format .

lint: venv ## ruff, format and rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: venv ## mypy
	$(BIN)/mypy

docs: venv ## build the documentation in build/docs
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: venv ## measure what sparsity costs and saves on this CPU (BENCH=--quick: in a minute or two, not half an hour)
	OMP_NUM_THREADS=1 $(BIN)/gossamer bench cpu $(BENCH)

figures: venv ## the same, and rewrite every measured table and picture of README and docs from it
	OMP_NUM_THREADS=1 $(BIN)/gossamer bench cpu --json results/bench-cpu.json
	$(BIN)/gossamer bench show results/bench-cpu.json --into README.md docs/guides/cpu.md --plot docs/images/bench-cpu.svg

clean: ## remove .venv, caches and build outputs
	rm -rf .venv build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f src/gossamer/kernels/_cpu_*.so
