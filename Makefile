# Nothing but Python 3.11 and make is needed: each target sets up .venv with the pinned packages.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BASE := .venv/.base
BIN := .venv/bin
READY := .venv/.ready
# What forbids bytecode in a container makes Python compile this checkout anew for each of the tests' commands.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: quickstart test lint unit integration coverage docs soak bench zoo wheels tools clean

# What users install, and no more.
quickstart: $(BASE)
	$(BIN)/python -m scripts.quickstart_models
	$(BIN)/epctx build manifests/quickstart.yaml
	$(BIN)/epctx verify dist/quickstart --manifest manifests/quickstart.yaml --strict

test: lint unit integration

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	printf "%s\n" win32 darwin | xargs -P 2 -I @ $(BIN)/mypy --platform @ --cache-dir .mypy_cache/@ -p epctx
	$(BIN)/lint-imports

# Tests wait for the processes that they start: three of them keep two cores busy.
TESTS := -n 3 --dist worksteal -m "not soak and not bench"
PYTEST := $(BIN)/pytest $(TESTS)

# No real EP, and a process of its own only where the process is what is tested: about three minutes.
UNIT := tests/unit tests/property tests/golden
unit: $(READY)
	$(PYTEST) $(UNIT)

# All the rest, whatever folder it is in.
integration: $(READY) tools
	$(PYTEST) $(UNIT:%=--ignore=%)

# Lines that these tests execute, in all processes, by room.
coverage: $(READY) tools
	$(BIN)/python -m scripts.coverage $(TESTS)

# The site, in build/docs; then every page of it in a browser.
docs: $(READY) tools
	$(BIN)/python -m scripts.site build/docs
	SITE=build/docs $(BIN)/pytest -m soak tests/integration/test_site.py

# The baseline builds models of the zoo.
soak: $(READY) .venv-zoo/.ready
	$(BIN)/pytest -m soak -s
	EPCTX_HYPOTHESIS_PROFILE=explore $(BIN)/pytest -n 2 tests/property
	$(BIN)/python -m scripts.baseline
	$(MAKE) coverage

# Some of its models are exported by torch, which is in .venv-zoo.
bench: $(READY) .venv-zoo/.ready
	$(BIN)/pytest -m bench -s

# Models that nobody here wrote, by some hundreds: what ONNX Runtime does with them, what epctx does. An hour or more.
zoo: $(READY) .venv-zoo/.ready
	$(BIN)/python -m tests.zoo all

# Whether every dependency has wheels for every platform, as docs/reference/hosts.md says; asks the package index.
wheels: $(READY)
	$(BIN)/python -m scripts.wheels

# A browser and libfaketime, for the tests of `epctx report` and `reproduce`: installed on Debian, by root.
tools:
	.ci/tools

clean:
	rm -rf .venv .venv-zoo dist build

# By uv where it is on the PATH, and else by pip; by pip too where uv fails, which knows nothing of pip's mirrors.
pinned = --quiet --constraint constraints.txt --editable ".$(1)"
by_uv = $(if $(shell command -v uv),uv pip install --python $(BIN)/python $(pinned) ||)
install = $(by_uv) $(BIN)/python -m pip install --no-compile $(pinned)

comma := ,
# What quickstart does not import need not be compiled for it; tests import all there is, in many processes.
$(BASE): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(call install)
	touch $(BASE)

$(READY): $(BASE)
	$(call install,[dev$(comma)qnn$(comma)openvino$(comma)remote$(comma)oci$(comma)dask$(comma)report$(comma)attest$(comma)sign])
	$(BIN)/python -m compileall -qq -j 0 .venv || true
	touch $(READY)

.venv-zoo/.ready: tests/zoo/requirements.txt
	$(PYTHON) -m venv .venv-zoo
	.venv-zoo/bin/python -m pip install --quiet --requirement tests/zoo/requirements.txt
	# It asks for an onnx that the other exporters cannot work with, and works with theirs.
	.venv-zoo/bin/python -m pip install --quiet --no-deps hummingbird-ml==0.4.12 onnxconverter-common==1.16.0
	touch .venv-zoo/.ready
