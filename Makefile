# Every command that people and CI type. `make` alone lists them.
#
# A machine with rustup and Debian is enough: what else is needed gets installed on the way (scripts/setup).

# --- What is built -------------------------------------------------------------------------------------------------

# The demo's machine: arm64 or x86_64.
ARCH ?= arm64
# One boot test by name; empty for all.
CASE ?=
# Seconds for one boot. Generous: QEMU emulates every instruction, and the host may be busy.
BOOT_TIMEOUT ?= 300
# How much longer the storms of random operations run in `make test-long`.
STORM ?= 20

# LIVE TESTS: the command of `make test-live`, which must print test results as scripts/tally counts them.
LIVE_CMD ?= tests/live/run

ARCHES := arm64 x86_64

target_arm64 := aarch64-unknown-none-softfloat
target_x86_64 := x86_64-unknown-none

# Instructions (arm64) or bytes (x86_64) of NOPs that the compiler leaves for each function, and how many of them stand before it.
sled_arm64 := 4,2
sled_x86_64 := 18,16

# The kernels once more: with sites that have no prefix; for the arm64 target that lets Rust use vector registers; with signed
# return addresses (arm64) and landing pads.
BOOTS := $(ARCHES) arm64-plain x86_64-plain arm64-vectors arm64-guarded x86_64-guarded
target_arm64-plain := $(target_arm64)
sled_arm64-plain := 2
target_x86_64-plain := $(target_x86_64)
sled_x86_64-plain := 5
target_arm64-vectors := aarch64-unknown-none
sled_arm64-vectors := 2
target_arm64-guarded := $(target_arm64)
sled_arm64-guarded := $(sled_arm64)
target_x86_64-guarded := $(target_x86_64)
sled_x86_64-guarded := $(sled_x86_64)

# What the kernel is compiled with: for its Cargo call alone, so that host programs are built as always. The flags go to
# a pinned stable compiler, which takes `-Z` with RUSTC_BOOTSTRAP.
kernel_flags = -Cforce-frame-pointers=yes -Crelocation-model=static -Zpatchable-function-entry=$(sled_$(1)) $(guards_$(1))
guards_arm64-guarded := -Zbranch-protection=bti,pac-ret -Clink-arg=--emit-relocs
guards_x86_64-guarded := -Zcf-protection=full -Clink-arg=--emit-relocs
# Relocations stay in the image for `fgraph check --landing-pads`.
# A target folder of its own for each set of flags, since others would throw away what is built.
kernel_target = target/kernel$(if $(findstring plain,$(1)),-plain)$(if $(findstring guarded,$(1)),-guarded)
# The standard library as it comes has no landing pads: with one such part, the linker does not call the whole guarded.
kernel_std = $(if $(findstring guarded,$(1)),-Zbuild-std=core$(comma)alloc$(comma)compiler_builtins)
comma := ,
kernel_cargo = env -u CARGO_ENCODED_RUSTFLAGS RUSTC_BOOTSTRAP=1 RUSTFLAGS="$(call kernel_flags,$(1))" \
	cargo build -p fgraph-qemu --profile kernel --target $(target_$(1)) --target-dir $(call kernel_target,$(1)) $(call kernel_std,$(1))

# The kernel as it was linked, and with the names of its functions: the one that is booted.
kernel_linked = $(call kernel_target,$(1))/$(target_$(1))/kernel/kernel
kernel = $(call kernel_linked,$(1)).fgraph

boot_test_words = $(if $(CASE),case=$(CASE),test)

# --- How make works here -------------------------------------------------------------------------------------------

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# Cargo uses all cores by itself, and output is easier to read in order.
.NOTPARALLEL:

# Where rustup puts cargo; a shell that was open before does not know it yet.
export PATH := $(PATH):$(HOME)/.cargo/bin

ifneq ($(filter demo shell,$(MAKECMDGOALS)),)
ifeq ($(filter $(ARCH),$(ARCHES)),)
$(error ARCH is '$(ARCH)', and not one of: $(ARCHES))
endif
endif

# One target for each machine: $(call each,NAME) is NAME-arm64 NAME-x86_64.
each = $(ARCHES:%=$(1)-%)

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z][^:$$]*\):.*## \(.*\)/\1\t\2/p' Makefile | while IFS=$$'\t' read -r name text; do \
		printf '  make %-20s %s\n' "$$name" "$$text"; done
	@printf '  make %-20s %s\n' \
		qemu-test-ARCH 'boot tests; CASE=NAME for one of them' \
		shell-test-ARCH 'commands typed into the shell' \
		trace-test-ARCH 'the trace that the demo leaves' \
		crash-test-ARCH 'what the kernel says when it crashes' \
		selfcheck-ARCH "the kernel's check of itself, without the tracer"
	@printf '\nARCH is one of: %s\n' '$(ARCHES)'

# --- Machine setup -------------------------------------------------------------------------------------------------

.PHONY: setup setup-rust $(call each,setup-qemu)
setup: ## install whatever is missing
	scripts/step setup-rust scripts/setup rust
	scripts/step setup-qemu scripts/setup qemu $(ARCHES)
setup-rust:
	@scripts/step setup-rust scripts/setup rust
$(call each,setup-qemu): setup-qemu-%:
	@scripts/step setup-qemu-$* scripts/setup qemu $*

# --- The kernel ----------------------------------------------------------------------------------------------------

.PHONY: demo shell $(BOOTS:%=kernel-%)
demo: setup-qemu-$(ARCH) kernel-$(ARCH) ## boot the demo: ARCH=arm64 or ARCH=x86_64
	QEMU_TRACE=$(demo_trace) qemu/run $(ARCH) $(call kernel,$(ARCH)) $(BOOT_TIMEOUT) demo
	@printf '\nWhere the time went, by `fgraph report --format table --limit 10 %s`:\n\n' '$(demo_trace)'
	@$(fgraph) report --format table --limit 10 $(demo_trace)

# What the demo leaves, and the host tool that reads it.
demo_trace = target/demo-$(ARCH).fgraph
fgraph = cargo run -q -p fgraph-cli --

# How long a shell may stay, in seconds.
SHELL_TIMEOUT ?= 86400
shell: setup-qemu-$(ARCH) kernel-$(ARCH) ## a shell in the kernel, with the tracer's files: ARCH=arm64 or ARCH=x86_64
	@qemu/run $(ARCH) $(call kernel,$(ARCH)) $(SHELL_TIMEOUT) shell

$(BOOTS:%=kernel-%): kernel-%: setup-rust
	scripts/step kernel-$* $(call kernel_cargo,$*)
	scripts/step embed-$* cargo run -q -p fgraph-cli -- embed $(call kernel_linked,$*) --output $(call kernel,$*)

# --- Tests ---------------------------------------------------------------------------------------------------------

.PHONY: test test-long
test: host-test test-live $(BOOTS:%=qemu-test-%) $(call each,shell-test) $(call each,trace-test) $(call each,crash-test) ## all tests: host, live, boot on both machines
test-long: export FGRAPH_STORM := $(STORM)
test-long: boot_test_words += long
test-long: BOOT_TIMEOUT := 1500
test-long: test ## the same with longer storms: STORM=20

.PHONY: host-test host-test-scripts host-test-debug host-test-release host-test-bare host-test-cli
host-test: host-test-scripts host-test-debug host-test-release host-test-bare host-test-cli ## tests on this machine
host-test-scripts:
	scripts/step --tests scripts scripts/self-test
host-test-debug: setup-rust
	scripts/step --tests fgraph cargo test --no-fail-fast -p fgraph
host-test-release: setup-rust
	scripts/step --tests fgraph-release cargo test --no-fail-fast -p fgraph --all-features --release
# What the host tool and other users of the codecs alone get.
host-test-bare: setup-rust
	scripts/step --tests fgraph-no-trampolines \
		cargo test --no-fail-fast -p fgraph --no-default-features --features symbols
# In release: one of its tests needs an optimised program, and the others read large files.
host-test-cli: setup-rust
	scripts/step --tests fgraph-cli cargo test --no-fail-fast -p fgraph-cli --release

.PHONY: test-live
test-live: setup-rust ## trampolines in a real process
ifeq ($(LIVE_CMD),)
	@echo "== live: skipped, LIVE_CMD is empty"
else
	scripts/step --tests live $(LIVE_CMD)
endif

.PHONY: $(BOOTS:%=qemu-test-%) $(call each,selfcheck)
$(call each,qemu-test): qemu-test-%: setup-qemu-% kernel-%
	scripts/step --tests boot-$* qemu/run $* $(call kernel,$*) $(BOOT_TIMEOUT) $(boot_test_words)

qemu-test-arm64-vectors: setup-qemu-arm64 kernel-arm64-vectors
	scripts/step --tests boot-arm64-vectors qemu/run arm64 $(call kernel,arm64-vectors) $(BOOT_TIMEOUT) $(boot_test_words)

.PHONY: $(call each,shell-test) $(call each,trace-test) $(call each,crash-test)
$(call each,shell-test): shell-test-%: setup-qemu-% kernel-%
	scripts/step --tests shell-$* qemu/shell-test $* $(call kernel,$*) $(BOOT_TIMEOUT)

$(call each,crash-test): crash-test-%: setup-qemu-% kernel-%
	scripts/step --tests crash-$* qemu/crash-test $* $(call kernel,$*) $(BOOT_TIMEOUT)

# The host tool is there: it put the names into the kernel.
$(call each,trace-test): trace-test-%: setup-qemu-% kernel-%
	scripts/step --tests trace-$* qemu/trace-test $* $(call kernel,$*) $(BOOT_TIMEOUT) "$${CARGO_TARGET_DIR:-target}/debug/fgraph"

# Sites without a prefix, hooked the classic way. (Those of arm64-vectors are hooked the balanced way.)
qemu-test-arm64-plain: setup-qemu-arm64 kernel-arm64-plain
	scripts/step --tests boot-arm64-plain qemu/run arm64 $(call kernel,arm64-plain) $(BOOT_TIMEOUT) $(boot_test_words) classic
qemu-test-x86_64-plain: setup-qemu-x86_64 kernel-x86_64-plain
	scripts/step --tests boot-x86_64-plain qemu/run x86_64 $(call kernel,x86_64-plain) $(BOOT_TIMEOUT) $(boot_test_words)

# An arm64 CPU that enforces all of it; QEMU has none for x86_64.
qemu-test-arm64-guarded: setup-qemu-arm64 kernel-arm64-guarded
	QEMU_CPU=max scripts/step --tests boot-arm64-guarded qemu/run arm64 $(call kernel,arm64-guarded) $(BOOT_TIMEOUT) \
		$(boot_test_words) guarded
qemu-test-x86_64-guarded: setup-qemu-x86_64 kernel-x86_64-guarded
	scripts/step --tests boot-x86_64-guarded qemu/run x86_64 $(call kernel,x86_64-guarded) $(BOOT_TIMEOUT) $(boot_test_words)

$(call each,selfcheck): selfcheck-%: setup-qemu-% kernel-%
	scripts/step --tests selfcheck-$* qemu/run $* $(call kernel,$*) $(BOOT_TIMEOUT) selfcheck

.PHONY: loom
loom: setup-rust ## what the control side and the traced path say to each other, in every order
	scripts/step --tests loom cargo test -p fgraph-loom --release

# Inputs that each fuzz target is given in `make fuzz-smoke`.
FUZZ_RUNS ?= 100000

.PHONY: fuzz-smoke
fuzz-smoke: setup-rust ## every fuzz target for a while, always the same: FUZZ_RUNS=100000
	scripts/step --tests fuzz-smoke scripts/fuzz $(FUZZ_RUNS)

.PHONY: bench
bench: setup-rust $(call each,setup-qemu) $(call each,kernel) ## instructions and time of a traced call, memory, sites, reports: one table
	scripts/step bench scripts/bench target/bench/bench.json $(foreach arch,$(ARCHES),$(arch)=$(call kernel,$(arch)))

.PHONY: $(call each,bench)
$(call each,bench): bench-%: setup-qemu-% kernel-% ## instructions of a traced call, counted by QEMU
	QEMU_ICOUNT=1 QEMU_SMP=1 qemu/run $* $(call kernel,$*) 120 bench

.PHONY: miri
miri: setup-rust ## the engine's tests under Miri (minutes), with the nightly toolchain
	scripts/step setup-miri scripts/setup miri
	scripts/step --tests miri scripts/miri

# --- Checks --------------------------------------------------------------------------------------------------------

# Sets of features that must build by themselves.
features_default :=
features_all := --all-features
features_bare := --no-default-features
features_cli := --no-default-features --features symbols
FEATURES := default all bare cli

.PHONY: cross $(call each,cross)
cross: $(call each,cross) ## build and clippy of fgraph for both bare targets
$(call each,cross): cross-%: setup-rust
	$(foreach f,$(FEATURES),scripts/step build-$*-$f cargo build -p fgraph --target $(target_$*) $(features_$f);)
	$(foreach f,$(FEATURES),scripts/step clippy-$*-$f \
		cargo clippy -p fgraph --target $(target_$*) $(features_$f) -- -D warnings;)

.PHONY: lint lint-format lint-scripts lint-host $(call each,lint)
lint: lint-format lint-scripts lint-host $(call each,lint) ## formatting, clippy everywhere, shellcheck if it is there
lint-format: setup-rust
	scripts/step format cargo fmt --all -- --check
lint-scripts:
	@if command -v shellcheck >/dev/null; then scripts/step shellcheck shellcheck scripts/* .ci/run qemu/run qemu/*-test tests/live/run tests/live/peers; \
	else echo "== shellcheck: skipped, it is not installed"; fi
lint-host: setup-rust
	scripts/step clippy cargo clippy --workspace --all-targets --all-features -- -D warnings
	$(foreach f,default bare cli,scripts/step clippy-$f \
		cargo clippy -p fgraph --all-targets $(features_$f) -- -D warnings;)
$(call each,lint): lint-%: setup-rust
	scripts/step clippy-$* cargo clippy -p fgraph -p fgraph-qemu --target $(target_$*) -- -D warnings

.PHONY: doc
doc: setup-rust ## the reference of the crates, warnings being errors
	RUSTDOCFLAGS="-D warnings" scripts/step doc cargo doc --no-deps -p fgraph -p fgraph-cli --all-features
	$(foreach a,$(ARCHES),RUSTDOCFLAGS="-D warnings" scripts/step doc-$a \
		cargo doc --no-deps -p fgraph --all-features --target $(target_$a);)

.PHONY: package-check
package-check: setup-rust ## what would be published is complete, and builds by itself on stable
	scripts/step package-check scripts/package-check $(foreach a,$(ARCHES),$(target_$a))

# --- The rest ------------------------------------------------------------------------------------------------------

.PHONY: clean
clean: ## remove everything that was built
	cargo clean
	cargo clean --target-dir target/kernel
	cargo clean --target-dir target/kernel-plain
	cargo clean --target-dir target/kernel-guarded
