# Each target sets up .venv when it is missing, or what it is made of has changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test quick lint format docs site bench release clean

demo: $(READY)
	$(BIN)/bayplan simulate -f configs/examples/prefer-gather

# Tests start many processes; without cached bytecode each would compile everything again.
test: export PYTHONDONTWRITEBYTECODE =
test: $(READY)
	$(BIN)/python -m pytest --numprocesses auto

# What an edit breaks first: the rooms from api/ to plugins/, without processes, browsers and stories.
QUICK := api cycle dialects explain gangs house plugin plugins profiles queues scheduler schemas snapshot
LONG := house/test_used_names plugins/test_contract plugins/autoscaling/test_growing \
	plugins/gpus/test_gpu_fragmentation plugins/queues/test_hostile_shapes \
	plugins/queues/test_leaving_pods plugins/queues/kai/test_kai_actions \
	plugins/queues/kueue/test_dry_run plugins/queues/kueue/test_properties \
	plugins/queues/volcano/test_volcano_properties plugins/volumes/test_volume_binding
quick: export PYTHONDONTWRITEBYTECODE =
quick: $(READY)
	$(BIN)/python -m pytest --numprocesses auto $(QUICK:%=tests/%) $(LONG:%=--ignore=tests/%.py)

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY)
	$(BIN)/python docs/make_hooks.py
	$(BIN)/python docs/make_reference.py
	$(BIN)/bayplan profile schema > docs/profile.schema.json
	$(BIN)/bayplan admission policies > configs/admission/policies.yaml

# In site/: the documentation with search. A broken link ends it.
site: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

bench: $(READY)
	$(BIN)/bayplan bench basic --nodes 5000 --pods 10000
	$(BIN)/bayplan bench affinity --nodes 5000 --pods 2000
	$(BIN)/bayplan bench gang
	$(BIN)/bayplan bench dra
	$(BIN)/bayplan bench topology
	$(BIN)/bayplan bench load

# In dist/VERSION: wheel, chart, requirements with hashes, SBOM (CycloneDX), checksums.
release: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check 'cyclonedx-bom>=7,<8'
	$(BIN)/python release/make_release.py

clean:
	rm -rf $(VENV)

$(READY): pyproject.toml hatch_build.py $(wildcard dra/bayplan_dra/driver/proto/*.proto remote/bayplan_remote/proto/*.proto)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "bayplan needs Python 3.11 or newer; try make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@
