# Every target makes what it needs; Python 3.11 or newer and pip are all that must be there.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
TORCH  ?= torch==2.13.0
# For tests alone, in a folder of its own: beside the CPU build of torch it does not import as it is.
TORCHVISION ?= torchvision==0.28.0
# Without what they ask for: TorchTitan wants an older datasets than the tests, and packages for GPUs.
TRAINERS ?= torchtitan==0.3.0 megatron-core==0.16.1 docstring_parser==0.18.0 einops==0.8.2 spmd_types==0.2.3 \
	torch_checkpointing==0.1.1 torchdata==0.11.0 typeguard==4.6.1 tyro==1.0.17
WHEEL_TESTS ?= tests/test_import.py tests/test_layout.py tests/test_cli_verify.py operators/tests/test_pack.py operators/tests/test_patchify.py codecs

.PHONY: core setup demo experiment test test-services test-wheel soak lint docs bench clean

# What the demo needs, and users: zvl and its dependencies.
core: $(VENV)/.core

$(VENV)/.core: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

# And what tests, trainers and the experiment need.
setup: $(VENV)/.ready

$(VENV)/.ready: $(VENV)/.core
	$(BIN)/python -m pip install --quiet --editable ".[test,lint]"
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(VENV)/torchvision "$(TORCHVISION)"
	$(BIN)/python -m pip install --quiet --no-deps $(TRAINERS)
	@touch $@

demo: core
	$(BIN)/zvl demo

# Saves training on 2 ranks and goes on with 1, 2 and 4, with zvl and with torch's DistributedSampler; draws the figure.
experiment: setup
	$(BIN)/python -m elastic_training.experiment

test: setup
	$(BIN)/python -m pytest -q -n auto --dist worksteal

# The site of docs/, in site/. The pages' code is run by tests/test_docs.py.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# Tests with programs that do not come from pip: Azure's storage server, from npm, and a browser, Debian's where none is
# on the path. Fails where they are missing.
AZURITE ?= azurite@3.35.0
SERVICES = $(VENV)/services
test-services: setup
	npm install --silent --no-audit --no-fund --prefix $(SERVICES) $(AZURITE)
	AZURITE=$(SERVICES)/node_modules/.bin/azurite-blob $(BIN)/python -m pytest -q tests/services/stores_azure.py
	command -v chromium > /dev/null || (apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium)
	$(BIN)/python -m pytest -q tests/services/inspect_page.py

# Ten times the mutated pictures of the tests, and ten times their long runs and sudden deaths (docs/soak.md, about half
# an hour); SEED=N tries others.
SEED ?= 1000000
soak: setup
	PYTHONPATH=tests $(BIN)/python -m damage.fuzz --files 6000 --first $(SEED)
	PYTHONPATH=tests $(BIN)/python -m soak --seed $(SEED)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The wheel as users get it, in a folder without the sources; its environment borrows the dependencies of $(VENV).
WHEEL = $(dir $(abspath $(VENV)))zvl-wheel
test-wheel: setup
	rm -rf $(WHEEL) && mkdir -p $(WHEEL)/run
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir $(WHEEL) .
	$(PYTHON) -m venv $(WHEEL)/venv
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > $(WHEEL)/borrowed
	cp $(WHEEL)/borrowed "$$($(WHEEL)/venv/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/borrowed.pth"
	$(WHEEL)/venv/bin/python -m pip install --quiet --no-deps $(WHEEL)/*.whl
	cp -r tests operators codecs docs conftest.py pyproject.toml examples $(WHEEL)/run/
	rm -rf $(WHEEL)/run/*/zvl_*
	cd $(WHEEL)/run && ZVL_CACHE=$(abspath .cache/zvl) $(WHEEL)/venv/bin/python -m pytest -q -n auto $(WHEEL_TESTS)

# zvl beside other loaders, in an environment of its own: about 35 minutes on 2 idle CPUs, QUICK=1 shows that it runs.
BENCH = benchmarks/.venv
bench: $(BENCH)/.ready
	$(BENCH)/bin/python benchmarks/compare.py $(if $(QUICK),--quick --out build/bench-quick)

$(BENCH)/.ready: pyproject.toml benchmarks/requirements.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --upgrade pip
	$(BENCH)/bin/python -m pip install --quiet "$(TORCH)"
	$(BENCH)/bin/python -m pip install --quiet --editable . --requirement benchmarks/requirements.txt
	$(BENCH)/bin/python -m pip install --quiet --no-deps --upgrade --target $(BENCH)/torchvision "$(TORCHVISION)"
	@touch $@

clean:
	rm -rf $(VENV) $(BENCH) .cache build dist site
