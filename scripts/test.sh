#!/bin/sh
# Runs the tests: each promise once. `test.sh fast` runs some of each kind, in less than a minute if all is built; `test.sh all` runs
# all that there are. Other arguments are parts of the names of tests. Installs the Debian packages that the tests need where it may.
set -eu
cd "$(dirname "$0")/.."

tier=gate
case ${1-} in
    fast | gate | all) tier=$1 ;;
    ?*) exec cargo xtask test "$@" ;;
esac

. scripts/packages.sh

need cc=gcc g++=g++ clang=clang /usr/include/stdio.h=libc6-dev perf=linux-perf objdump=binutils valgrind=valgrind \
    luajit=luajit node=nodejs python3=python3 /usr/share/python-wheels=python3-venv pip3=python3-pip go=golang-go \
    llvm-dwarfdump=llvm eu-readelf=elfutils pkg-config=pkg-config cmake=cmake make=make meson=meson strace=strace mandoc=mandoc \
    zsh=zsh fish=fish zstd=zstd dpkg-shlibdeps=dpkg-dev abidiff=abigail-tools \
    gdb=gdb lldb=lldb heaptrack=heaptrack google-pprof=google-perftools /usr/lib/llvm-14/lib/libunwind.so.1=libunwind-14 \
    /usr/share/doc/libunwind-dev=libunwind-dev /usr/share/keyrings/debian-archive-keyring.gpg=debian-archive-keyring

if [ "$tier" = all ]; then
    need rakudo=rakudo perl=perl /usr/include/tommath.h=libtommath-dev /usr/include/uv.h=libuv1-dev \
        /usr/include/atomic_ops.h=libatomic-ops-dev /usr/include/x86_64-linux-gnu/ffi.h=libffi-dev /usr/include/zlib.h=zlib1g-dev lintian=lintian \
        aarch64-linux-gnu-gcc=gcc-aarch64-linux-gnu aarch64-linux-gnu-g++=g++-aarch64-linux-gnu \
        riscv64-linux-gnu-g++=g++-riscv64-linux-gnu /usr/aarch64-linux-gnu/include/stdio.h=libc6-dev-arm64-cross \
        gdb-multiarch=gdb-multiarch riscv64-linux-gnu-gcc=gcc-riscv64-linux-gnu /usr/riscv64-linux-gnu/include/stdio.h=libc6-dev-riscv64-cross \
        s390x-linux-gnu-gcc=gcc-s390x-linux-gnu /usr/s390x-linux-gnu/include/stdio.h=libc6-dev-s390x-cross \
        i686-linux-gnu-gcc=gcc-i686-linux-gnu /usr/i686-linux-gnu/include/stdio.h=libc6-dev-i386-cross \
        arm-linux-gnueabihf-gcc=gcc-arm-linux-gnueabihf /usr/arm-linux-gnueabihf/include/stdio.h=libc6-dev-armhf-cross \
        powerpc64le-linux-gnu-gcc=gcc-powerpc64le-linux-gnu /usr/powerpc64le-linux-gnu/include/stdio.h=libc6-dev-ppc64el-cross \
        /usr/include/dnnl.h=libdnnl-dev /usr/lib/postgresql=postgresql
fi

# `cargo xtask test` would build what it shares with the tests once more, with fewer features.
if [ "$tier" = all ]; then set --; else set -- --exclude jitsym-cranelift; fi
cargo build --quiet --locked --workspace --exclude jitsym-models "$@" --bins --tests
exec "${CARGO_TARGET_DIR:-target}/debug/xtask" test "$tier"
