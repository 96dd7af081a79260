#!/bin/sh
# Runs every test. Installs the Debian packages that the tests need where it may.
set -eu
cd "$(dirname "$0")/.."
. scripts/packages.sh

need cc=gcc g++=g++ clang=clang /usr/include/stdio.h=libc6-dev perf=linux-perf objdump=binutils valgrind=valgrind \
    luajit=luajit node=nodejs python3=python3 /usr/share/python-wheels=python3-venv pip3=python3-pip go=golang-go \
    llvm-dwarfdump=llvm eu-readelf=elfutils pkg-config=pkg-config cmake=cmake make=make meson=meson strace=strace mandoc=mandoc \
    dpkg-shlibdeps=dpkg-dev lintian=lintian abidiff=abigail-tools \
    aarch64-linux-gnu-gcc=gcc-aarch64-linux-gnu /usr/aarch64-linux-gnu/include/stdio.h=libc6-dev-arm64-cross \
    gdb-multiarch=gdb-multiarch \
    /usr/share/keyrings/debian-archive-keyring.gpg=debian-archive-keyring

cargo test --locked "$@"
# Old and new perf, held against the ground truth: see docs/compatibility.md. The newer one is fetched, but not installed.
cargo test --locked --package xtask --package jitsym-cranelift
cargo xtask matrix --quick
