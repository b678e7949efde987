.DEFAULT_GOAL := help
.PHONY: help venv lock sbom audit demo docs test sizes format lint types bench figures measure endurance sanitize valgrind arm clean

BIN := .venv/bin
STAMP := .venv/.installed
DEMO := recipes/demo.toml --ood permuted
PYTHONS := python3.11 python3.12 python3.13 python3.14 python3

help: ## list the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  \1\t\2/' | expand -t 12

venv: $(STAMP) ## make .venv and install gossamer in it, with everything the checks need

# Try each interpreter: one on the path may not run (a version manager's shim) or may lack the venv module.
$(STAMP): pyproject.toml setup.py constraints.txt requirements.lock $(wildcard src/gossamer/kernels/csrc/*)
	@set -e; \
	if [ ! -x $(BIN)/python ]; then \
		for python in $(PYTHONS); do \
			if $$python -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
				echo "making .venv with $$python"; $$python -m venv .venv; break; \
			fi; \
		done; \
	fi; \
	if [ ! -x $(BIN)/python ]; then \
		echo "the checks need Python 3.11 or newer with its venv module; tried: $(PYTHONS)" >&2; exit 1; \
	fi
	$(BIN)/python -m pip install --quiet --no-compile torch==2.13.0
	$(BIN)/python -m pip install --quiet --no-compile --require-hashes --no-deps -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e ".[dev]"
	@touch $@

# What torch brings itself: its builds differ by machine, and so do their checksums.
OF_TORCH := torch triton cuda-bindings cuda-pathfinder cuda-toolkit nvidia-cublas nvidia-cuda-cupti nvidia-cuda-nvrtc \
	nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile nvidia-curand nvidia-cusolver nvidia-cusparse \
	nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvjitlink nvidia-nvshmem-cu13 nvidia-nvtx
LOCKED := requirements.lock

lock: ## pin every package again, with checksums, in requirements.lock and constraints.txt (needs uv)
	@command -v uv > /dev/null || { echo "make lock needs uv: pip install uv" >&2; exit 1; }
	@$(FOLDER); torch=$$(grep '^torch==' constraints.txt); echo "$$torch" > $$folder/torch; \
	uv pip compile pyproject.toml --extra dev --extra docs --universal --python-version 3.11 --fork-strategy fewest \
		--prerelease disallow --quiet \
		--no-header --no-annotate --generate-hashes $(OF_TORCH:%=--no-emit-package %) -c $$folder/torch -o $$folder/lock; \
	{ sed '/^#/!d' $(LOCKED); cat $$folder/lock; } > $$folder/new; cp $$folder/new $(LOCKED); \
	{ sed '/^#/!d' constraints.txt; { grep '^[^ #].*==' $(LOCKED) | sed 's/ *\\$$//'; echo "$$torch"; } | LC_ALL=C sort -f; } \
		> $$folder/new; cp $$folder/new constraints.txt

# Tools that look at the environment live in one of their own, so that they are no part of what they look at.
TOOLS := build/tools
$(TOOLS)/bin/pip-audit: | venv
	$(BIN)/python -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet pip-audit==2.10.1 pip-licenses==5.5.5 cyclonedx-bom==7.5.0

sbom: venv $(TOOLS)/bin/pip-audit ## list every installed package in build/sbom.json (CycloneDX)
	$(TOOLS)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o build/sbom.json $(BIN)/python

# Licences that ask nothing of a user of gossamer but to be named.
ALLOWED := MIT;MIT License;MIT-CMU;Apache;BSD;ISC;PSF;Python Software Foundation;MPL;Mozilla Public;Zlib;Unlicense

audit: venv $(TOOLS)/bin/pip-audit ## check the licences of all packages, and whether any has a known vulnerability
	$(TOOLS)/bin/pip-licenses --python=$(BIN)/python --from=mixed --partial-match --allow-only="$(ALLOWED)" \
		--ignore-packages gossamer > build/licences.txt
	$(TOOLS)/bin/pip-audit --strict --no-deps --disable-pip --progress-spinner off -r requirements.lock || \
		{ echo "the audit has failed: a package above has a known vulnerability (take a newer version: make lock), or" \
		"the package index could not be asked about it (connect to the internet and try again)" >&2; exit 1; }

demo: venv ## train one network and five, dense and with a twentieth of the weights, and write a report about them
	@# Networks this small are faster on one thread, above all on a machine that is busy with something else.
	OMP_NUM_THREADS=1 $(BIN)/gossamer compare $(DEMO) --out runs/demo

test: venv ## all checks: format, lint, types, tests and doctests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2

sizes: venv ## lower the numbers of lines that CONTRIBUTING.md allows each room to what it has
	$(BIN)/python tests/test_size.py

format: venv ## format the code and sort its imports
	$(BIN)/ruff check --select I --fix .
	$(BIN)/ruff format .

lint: venv ## ruff, format and rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: venv ## mypy
	$(BIN)/mypy

docs: venv ## build the documentation in build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: venv ## measure what sparsity costs and saves on this CPU (BENCH=--quick: in a minute or two, not half an hour)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks cpu $(BENCH)

figures: venv ## rewrite every measured table and picture of README and docs from what is stored in results
	$(BIN)/python -m benchmarks show results/bench-cpu.json --into docs/guides/cpu.md --plot docs/images/bench-cpu.svg
	$(BIN)/python -m benchmarks show results/bench-gpu.json --into docs/guides/gpu.md
	$(BIN)/python -m benchmarks show results --into README.md docs/results.md docs/citizen.md \
		docs/studies/learned-std.md docs/studies/noise.md docs/uci.md docs/reliability.md docs/scale.md \
		docs/guides/variable-selection.md docs/guides/which-method.md docs/guides/prediction.md docs/guides/own-data.md \
		docs/tutorials/finetune.md docs/guides/deploy.md
	$(BIN)/python -m reproductions page

endurance: venv ## attack runs, files and sweeps as the page on reliability counts it (hours), and store the counts
	$(BIN)/python -m tests.endurance.attacks --tries 30 --json results/attacks.json
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.endurance.mutations --n 1000000 --seed 1 --json results/mutations.json
	$(BIN)/python -m tests.endurance.sweep --json results/sweep.json
	$(BIN)/python -m benchmarks show results --into docs/reliability.md

measure: venv ## measure again what a CPU can (some hours), store it in results, then make figures
	rm -rf runs/measure
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks cpu --json results/bench-cpu.json
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.state results/bytes.json
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.predictions
	OMP_NUM_THREADS=1 $(BIN)/gossamer compare $(DEMO) --device cpu --out runs/measure/demo
	cp runs/measure/demo/comparison.json results/demo.json
	OMP_NUM_THREADS=1 $(BIN)/gossamer compare recipes/digits.toml --model mlp --device cpu --out runs/measure/digits
	cp runs/measure/digits/comparison.json results/digits.json
	OMP_NUM_THREADS=1 $(BIN)/gossamer compare recipes/digits.toml --model conv_net --device cpu \
		--out runs/measure/digits-conv
	cp runs/measure/digits-conv/comparison.json results/digits-conv.json
	for name in digits fashion; do \
		OMP_NUM_THREADS=1 $(BIN)/gossamer compare recipes/all-methods-$$name.toml --device cpu \
			--out runs/measure/all-methods-$$name || exit 1; \
		cp runs/measure/all-methods-$$name/comparison.json results/all-methods-$$name.json; \
	done
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.table_pictures docs/images
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.shift_pictures docs/images
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.tutorial_pictures docs
	$(MAKE) figures

# The native kernels under tools that watch every access; none of it is part of `make test`. See CONTRIBUTING.md.
KERNELS := src/gossamer/kernels/csrc/kernels.cpp
DRIVER := tests/kernels/driver.cpp $(KERNELS)
WATCHED := -std=c++17 -O1 -g -fopenmp -Wno-psabi $(if $(shell grep -m 1 avx2 /proc/cpuinfo 2>/dev/null),-march=x86-64-v3)
SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=undefined
FOLDER := set -e; folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT

sanitize: venv ## the native kernels under ASan and UBSan: a driver without Python, then their tests
	@$(FOLDER); \
	$(CXX) $(WATCHED) $(SANITIZE) -o $$folder/driver $(DRIVER); $$folder/driver; \
	cp -r src $$folder; rm -f $$folder/src/gossamer/kernels/_cpu_*; \
	$(CXX) $(WATCHED) $(SANITIZE) -fPIC -shared -o $$folder/src/gossamer/kernels/_cpu_generic.so $(KERNELS); \
	export ASAN_OPTIONS=detect_leaks=0; `# Python and torch leave memory to the system; the driver has been checked` \
	export LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)"; \
	$(BIN)/pytest -q --capture=sys -p no:cacheprovider -o pythonpath=$$folder/src tests/kernels tests/contract/test_kernels.py

valgrind: ## the native kernels under valgrind: a driver without Python
	@$(FOLDER); \
	$(CXX) $(filter-out -fopenmp,$(WATCHED)) -o $$folder/driver $(DRIVER); \
	valgrind --quiet --leak-check=full --show-leak-kinds=all --error-exitcode=1 $$folder/driver

arm: ## the native kernels for aarch64, emulated: a driver without Python
	@$(FOLDER); \
	aarch64-linux-gnu-$(CXX) -std=c++17 -O3 -static -Wno-psabi -o $$folder/driver $(DRIVER); \
	qemu-aarch64 $$folder/driver

clean: ## remove .venv, caches and build outputs
	rm -rf .venv build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f src/gossamer/kernels/_cpu_*.so
