# Every target sets up what it needs: a machine with Python, git and make is enough.
PYTHON ?= python3
BIN = .venv/bin

.PHONY: demo test check faults fuzz bench bench-plan images matrix format clean

# The main job on real files, step by step, in a folder that stays. DIR=somewhere for another than a temporary one.
demo: .venv/ready
	$(BIN)/precook demo $(or $(DIR),$$(mktemp -d))

test: .venv/ready
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Every write step of every scenario, killed, torn, shortened and failed; power cuts; seeded bugs. Minutes.
faults: .venv/ready
	$(BIN)/python -m tests.faults

# Coverage-guided fuzzing of the pack reader. SECONDS=60 by default.
fuzz: .venv/fuzz
	$(BIN)/python tests/fuzz/fuzz_pack.py --seconds $(or $(SECONDS),60)

# precook beside its peers: about 15 minutes on two cores. ARGS="--only read,batch" for a part.
bench: .venvs/bench/ready
	.venvs/bench/bin/python bench/store.py $(ARGS)

# What a plan costs beside a bare walk over the same files. ARGS="--samples 1000000" for growth.
bench-plan: .venv/ready
	$(BIN)/python bench/plan.py $(ARGS)

# Real pictures with odd corners, from Debian packages; the tests use them where they are.
IMAGES = golang-github-disintegration-imaging-dev golang-github-rwcarlsen-goexif-dev libjxl-testdata tuxpaint-stamps-default
images: $(IMAGES:%=.images/%)
.images/%:
	mkdir -p .images
	cd .images && apt-get download $*
	cd .images && dpkg -x $*_*.deb $*

# The wheel, alone, on every Python that is here: no torch, the numpy half of the tests.
matrix: .venv/ready
	$(BIN)/python tests/matrix.py

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,torch,diffusers,transformers]"
	touch $@

# A venv of its own: some peers ask for older versions of what we use.
.venvs/bench/ready: pyproject.toml bench/constraints.txt
	$(PYTHON) -m venv .venvs/bench
	.venvs/bench/bin/pip install --quiet --disable-pip-version-check -c bench/constraints.txt -e ".[bench]"
	touch $@

.venv/fuzz: .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check atheris
	touch $@

clean:
	rm -rf .venv .venvs build dist bench/out
