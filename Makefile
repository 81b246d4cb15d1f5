# SPDX-License-Identifier: Apache-2.0
#
# A thin front for meson. `make help` lists the targets.
PREFIX ?= /usr/local
DESTDIR ?=
ARCH ?=
MESON ?= meson
NINJA ?= ninja
V ?= 0
PACKAGES := libseccomp gnutls sqlite3 jansson libmicrohttpd libcurl cmocka
MUSL_CC := $(shell command -v musl-gcc 2>/dev/null)

PROG := build/prog
LIB := build/lib
ASAN := build/asan
SANE := build/san/prog
FUZZ := build/fuzz
FUZZ_SECONDS ?= 60

ifeq ($(V),0)
QUIET := --quiet
endif
# Ubuntu 22.04's ninja knows --quiet, older ones do not.
QUIET := $(shell $(NINJA) --help 2>&1 | grep -q -- --quiet && echo "$(QUIET)")

# Meson's own words are shown only when it fails.
build = @$(NINJA) -C $(1) build.ninja > $(1).log 2>&1 || { cat $(1).log; exit 1; }; $(NINJA) -C $(1) -k 0 $(QUIET)

.PHONY: all programs library asan sanitized sources sdk deb tarball install uninstall check test unit fuzz bench soak foreign format clean help FORCE

all: programs library ## build the programs and the library

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

# The prefix is compiled in (where libcay looks for the keeper): another one is another configuration.
build/prefix: FORCE
	@mkdir -p build
	@echo '$(PREFIX)' | cmp -s - $@ || echo '$(PREFIX)' > $@

# Who asks for tests gets all of them: a missing dependency is then an error, and stays one in this build directory.
# Without that question the unit tests are built where cmocka happens to be.
build/tests: FORCE
	@mkdir -p build
	@wanted=$(if $(filter asan check unit test fuzz soak,$(MAKECMDGOALS)),enabled,$$(cat $@ 2>/dev/null || echo auto)); \
	echo $$wanted | cmp -s - $@ || echo $$wanted > $@

# A package that was installed, upgraded or removed since the last time: meson has to look again.
build/packages: FORCE
	@mkdir -p build
	@for p in $(PACKAGES); do echo "$$p $$(pkg-config --modversion $$p 2>/dev/null)"; done > $@.new; \
	if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

# musl is another platform as far as meson is concerned; without it the programs are static with the
# system's C library, larger and slower to start.
build/musl.cross: tools/cross-file
	@mkdir -p build
	@tools/cross-file musl > $@

$(PROG)/build.ninja: build/prefix build/packages $(if $(MUSL_CC),build/musl.cross)
	@$(if $(MUSL_CC),,echo "musl-gcc is missing (package musl-tools): the programs will start slower" >&2)
	@$(if $(MUSL_CC),grep -qs musl.cross $(PROG)/meson-private/cmd_line.txt || rm -rf $(PROG)) # configured without musl
	@[ -e $@ ] && r=--reconfigure; $(MESON) setup $$r $(if $(MUSL_CC),--cross-file build/musl.cross) \
		-Dpart=programs -Dstrip=true -Dprefix='$(PREFIX)' $(PROG) > $(PROG).log 2>&1 || { cat $(PROG).log; exit 1; }
	@touch $@

$(LIB)/build.ninja: build/prefix build/packages build/tests
	@[ -e $@ ] && r=--reconfigure; $(MESON) setup $$r -Dpart=library -Dprefix='$(PREFIX)' \
		-Dtests=$$(cat build/tests) $(LIB) > $(LIB).log 2>&1 || { cat $(LIB).log; exit 1; }
	@touch $@

$(ASAN)/build.ninja: build/prefix build/packages
	@[ -e $@ ] && r=--reconfigure; $(MESON) setup $$r -Dpart=library -Dprefix='$(PREFIX)' -Dtests=enabled \
		-Db_sanitize=address,undefined -Db_lundef=false -Doptimization=1 $(ASAN) \
		> $(ASAN).log 2>&1 || { cat $(ASAN).log; exit 1; }
	@touch $@

$(SANE)/build.ninja: build/prefix build/packages
	@mkdir -p build/san; [ -e $@ ] && r=--reconfigure; $(MESON) setup $$r -Dpart=programs -Dprefix='$(PREFIX)' \
		-Db_sanitize=address,undefined -Db_lundef=false -Doptimization=1 $(SANE) \
		> $(SANE).log 2>&1 || { cat $(SANE).log; exit 1; }
	@touch $@

$(FUZZ)/build.ninja: build/prefix build/packages
	@[ -e $@ ] && r=--reconfigure; CC=clang $(MESON) setup $$r -Dpart=library -Dprefix='$(PREFIX)' -Dfuzzers=true \
		-Dtests=enabled -Dc_args=-fsanitize=fuzzer-no-link -Db_sanitize=address,undefined -Db_lundef=false \
		-Doptimization=1 $(FUZZ) > $(FUZZ).log 2>&1 || { cat $(FUZZ).log; exit 1; }
	@touch $@

sources: ## bring the file lists of src/*/meson.build up to date
	@tools/sync-sources

programs: sources $(PROG)/build.ninja ## build cay, cay-keeper, cay-init
	$(call build,$(PROG))

library: sources $(LIB)/build.ninja ## build libcay, cayd, cay-remote, cay-audit, unit tests, examples
	$(call build,$(LIB))
	@mkdir -p $(PROG); for p in cay-remote cay-audit; do ln -sf ../lib/$$p $(PROG)/$$p; done

asan: sources $(ASAN)/build.ninja ## build the library part with ASan and UBSan
	$(call build,$(ASAN))

sanitized: sources $(SANE)/build.ninja ## programs with ASan and UBSan; then: CAY_TEST_BUILD=build/san tools/test integration
	$(call build,$(SANE))

sdk: ## the packages of the SDKs, to build/sdk: a wheel and an npm archive
	@tools/make-sdk

deb: programs ## Debian packages, to build/dist; ARCH=arm64 (or amd64): for another machine
	@tools/package deb $(ARCH)

tarball: programs ## the static programs with an install script, to build/dist; ARCH as above
	@tools/package tarball $(ARCH)

install: all ## install below PREFIX (/usr/local)
	@tools/install '$(PREFIX)' '$(DESTDIR)'

uninstall: ## remove what install put there
	@tools/install --remove '$(PREFIX)' '$(DESTDIR)'

check: all asan ## layers, sizes, format, static analysis, ASan + UBSan unit tests, fuzz corpora
	@tools/check

unit: library ## unit tests alone
	@tools/unit $(LIB)

test: all asan ## everything: check, unit, integration, security and the other suites
	@tools/test

fuzz: sources $(FUZZ)/build.ninja ## each fuzz target for FUZZ_SECONDS (60) with libFuzzer
	$(call build,$(FUZZ))
	@tools/fuzz $(FUZZ) $(FUZZ_SECONDS)

bench: all ## the budgets, side by side with bubblewrap, crun and runc
	@bench/run

soak: all ## crash rounds, and whole suites in an emulated machine with pure cgroup v2 (hours)
	@tests/soak/run
	@tests/soak/ends.py --rounds 300
	@tests/soak/faults.py
	@tests/soak/run --faults --rounds 2000
	@CAY_FAULTS=long python3 -B -m pytest -q -c tests/pytest.ini --rootdir tests tests/faults -k 'not test_calls'
	@CAY_OOM_ROUNDS=10 python3 -B -m pytest -q -c tests/pytest.ini --rootdir tests tests/integration/test_oom.py -k nine
	@CAY_TEST_STREAM=1G python3 -B -m pytest -q -c tests/pytest.ini --rootdir tests tests/integration/test_streams.py
	@tests/soak/qemu/run --long

foreign: programs ## packages of the other architecture, and its programs in an emulated machine; fetches 800 MB
	@[ "$$(id -u)" = 0 ] || { echo "make foreign needs root" >&2; exit 1; }
	@arch=$$(case $$(uname -m) in x86_64) echo arm64 ;; *) echo amd64 ;; esac); \
	case $$arch in arm64) set -- qemu-system-aarch64 qemu-system-arm ;; *) set -- qemu-system-x86_64 qemu-system-x86 ;; esac; \
	command -v $$1 > /dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $$2 && \
	tools/package deb $$arch && tools/package tarball $$arch && tests/soak/qemu/run --arch $$arch

format: ## clang-format in place
	@clang-format -i $$(find src include tests examples tools bench -name '*.[ch]')

clean: ## remove build/
	@rm -rf build
