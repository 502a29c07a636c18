# Every target sets up what it needs: a virtual environment in .venv, filled by pip.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo test test-all test-kernels test-kernels-faults mutate fuzz house check format peers bench agree build clean

help:
	@echo "make demo    compare methods on the embedded data"
	@echo "make test    run the tests; make test-all: the long ones too; make test-kernels: GPU code without a GPU"
	@echo "make check   format, lint, types, layers; make format: fix the format"
	@echo "make fuzz    try hostile input: MINUTES=20 SEED=0, on two cores"
	@echo "make mutate  how many of 40 seeded faults the tests catch; make house: figures of the source"
	@echo "make bench   measure speed beside other projects (10 minutes on two quiet cores, 15 on busy ones); make build: build the wheel; make clean: remove what was made"
	@echo "make agree   compare methods with plain loops written from their papers (minutes)"

.venv/made:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedtailor needs Python 3.11 or newer, this is " + sys.version)'
	$(PYTHON) -m venv .venv
	@touch $@

.venv/user: .venv/made pyproject.toml constraints.txt
	$(PIP) -e .
	@touch $@

.venv/developer: .venv/made pyproject.toml constraints.txt
	$(PIP) -e '.[dev]'
	@touch $@ .venv/user

demo: .venv/user
	$(BIN)/fedtailor compare

# Tests run beside each other, each on one thread: their models are too small for more.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

test: .venv/developer
	$(PYTEST)

test-all: .venv/developer
	$(PYTEST) -m 'not gpu'

# GPU code without a GPU: interpreted, and then compiled for cards that are not there, each in processes of its own.
# Triton comes alone, as torch's builds for CPUs know nothing of it, and for one platform only.
PLATFORM := $(shell uname -sm)

ifeq ($(PLATFORM),Linux x86_64)
.venv/triton: .venv/developer
	$(PIP) --no-deps triton
	@touch $@

test-kernels: .venv/triton
	TRITON_INTERPRET=1 $(PYTEST) tests/gpu
	TRITON_INTERPRET=0 $(PYTEST) tests/gpu

# How many of 24 faults in such code these tests catch.
test-kernels-faults: .venv/triton
	$(BIN)/python tests/gpu/faults.py
else
test-kernels test-kernels-faults:
	@echo "make $@: these tests need Triton for Linux on x86_64, and this is $(PLATFORM): GPU code is not tested here."
endif

# How many of 40 faults in the library the default tests catch: half an hour on two quiet cores.
mutate: .venv/developer
	$(BIN)/python tools/mutate.py

# Seeded hostile input in forked children, for so many minutes on two cores.
MINUTES ?= 20
SEED ?= 0

fuzz: .venv/developer
	$(BIN)/python tools/fuzz.py --minutes $(MINUTES) --seed $(SEED)

# Figures of the source beside those of model codebases.
house: .venv/developer
	$(BIN)/python tools/house.py

check: .venv/developer
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layers.py tests/test_public_names.py

format: .venv/developer
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Peers have environments of their own, with the same torch. One that cannot be made is left out of the comparison.
.venv-peers/%/made: benchmarks/peers/%.txt constraints.txt
	$(PYTHON) -m venv .venv-peers/$*
	.venv-peers/$*/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -r $<
	@touch $@

peers: .venv-peers/pfl/made .venv-peers/fedjax/made .venv-peers/flwr/made

bench: .venv/developer
	-@$(MAKE) --keep-going peers
	$(BIN)/python benchmarks/compare.py
	$(BIN)/python benchmarks/engines.py
	$(BIN)/python benchmarks/costs.py
	$(BIN)/python benchmarks/report.py

# Eleven methods beside plain loops on PFLlib's split of the digits; docs/agreement.md has the commands for published sets.
agree: .venv/developer
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/agree.py

build: .venv/developer
	$(BIN)/python -m build --wheel

clean:
	rm -rf .venv .venv-peers runs dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
