#!/bin/sh
# Makes the files of a release. `release.sh --help` says how.
set -eu

usage() {
  cat <<'END'
usage: release.sh DIRECTORY [WHAT]...
Makes the files of a release of the last commit, in a directory that is new or
empty. The same commit and the same compilers give the same bytes. WHAT names
the files; without it, all of them are made except those for musl:
  source              jitsym-VERSION.tar.gz, the sources with all crates: builds
                      without a network by cargo, or by make and rustc alone
  x86_64-linux-gnu, aarch64-linux-gnu
                      jitsym-VERSION-WHAT.tar.gz, what install.sh installs, for
                      glibc 2.17 and newer
  x86_64-linux-musl, aarch64-linux-musl
                      the same for musl
  wheel               jitsym-VERSION-py3-none-manylinux_2_17_MACHINE.manylinux2014_MACHINE.whl, the
                      Python package with the libraries for glibc
  npm                 jitsym-VERSION.tgz, the Node.js package with the same
  deb                 Debian packages for the system that they are built on
Wheels and the npm package are made for the targets for glibc among the WHAT, or
for both targets if there is none.
The directory also gets the bill of materials, and SHA256SUMS.
Environment (other variables change nothing):
  SOURCE_DATE_EPOCH   the time of all files (that of the last commit)
  ZIG                 the program zig, which knows the symbols of glibc 2.17
                      (fetched, if not named)
  JITSYM_XTASK        the program xtask (built, if not named)
END
}

fail() {
  printf 'release.sh: %s\n' "$*" >&2
  exit 1
}

. "$(dirname -- "$0")/packages.sh"
options "$@"
for argument in "$@"; do
  [ -n "$argument" ] || refuse "an empty name"
done
[ $# -ge 1 ] || refuse "a directory is needed"
directory=$1
shift
[ $# -gt 0 ] || set -- source x86_64-linux-gnu aarch64-linux-gnu wheel npm deb
glibc=
for what in "$@"; do
  case $what in
    *-linux-gnu) glibc="$glibc $what" ;;
  esac
  case $what in
    source | wheel | npm | deb | x86_64-linux-gnu | aarch64-linux-gnu | x86_64-linux-musl | aarch64-linux-musl) ;;
    *) refuse "what is $what?" ;;
  esac
done
glibc=${glibc:-x86_64-linux-gnu aarch64-linux-gnu}

# What stays is where programs are, and how the network is reached.
for name in $(env | sed -n 's/^\([A-Za-z_][A-Za-z_0-9]*\)=.*/\1/p'); do
  case $name in
    PATH | HOME | PWD | TERM | SOURCE_DATE_EPOCH | ZIG | JITSYM_XTASK | XDG_CACHE_HOME) ;;
    CARGO_HOME | CARGO_HTTP_* | CARGO_NET_* | CARGO_REGISTRIES_* | RUSTUP_* | PIP_* | SSL_CERT_* | *_proxy | *_PROXY) ;;
    *) unset "$name" ;;
  esac
done
export LC_ALL=C TZ=UTC
umask 022

mkdir -p "$directory"
out=$(cd "$directory" && pwd -P)
[ -z "$(ls -A "$out")" ] || fail "$out is not empty"
cd "$(dirname "$0")/.."
need git=git gzip=gzip
work=$(mktemp -d "$out/.work.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
export TMPDIR="$work"
files=$work/files
mkdir "$files"

# The time of the last change of the sources.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
xtask=${JITSYM_XTASK:-}
if [ -z "$xtask" ]; then
  cargo build --quiet --locked --package xtask --target-dir target
  xtask=target/debug/xtask
fi

# ---- sources ----

# Everything is made of the archive's sources.
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
name=jitsym-$version
tree=$work/$name
"$xtask" source "$tree"
cp "$tree/jitsym.cdx.json" "$files/$name.cdx.json"

# ---- binaries ----

target=$work/target
# Directories may have spaces, and these variables are only split at the character in `separator`.
separator=$(printf '\037')
flags=$(sed -n 's/^rustflags = \["\(.*\)"\]$/\1/p' "$tree/.cargo/config.toml")$separator--remap-path-prefix=$work=/
[ "${flags#-}" != "$flags" ] || fail "no flags in .cargo/config.toml"

# The standard library for a target.
standard_library() {
  [ -d "$(rustc --print target-libdir --target "$1")" ] || rustup --quiet target add "$1"
}

# The program of an architecture, without any shared library.
program() {
  if ! [ -f "$target/$1-unknown-linux-musl/program/jitsym" ]; then
    standard_library "$1-unknown-linux-musl"
    (
      cd "$tree"
      CARGO_ENCODED_RUSTFLAGS=$flags$separator-Clinker=rust-lld$separator-Clinker-flavor=ld.lld \
        cargo build --quiet --locked --profile program --package jitsym-tool --target "$1-unknown-linux-musl" \
        --target-dir "$target"
    )
  fi
}

# Libraries without code, for the linker: what a program finds where it runs.
stubs() {
  stubs=$work/stubs/$1
  mkdir -p "$stubs"
  zig=${ZIG:-$("$xtask" tool zig)}
  # The unwinder: versions as in all versions of libgcc_s since GCC 4.2.
  cat >"$stubs/gcc_s.map" <<'END'
GCC_3.0 { global: _Unwind_*; __register_frame*; __deregister_frame*; local: *; };
GCC_3.3 { global: _Unwind_Backtrace; _Unwind_FindEnclosingFunction; _Unwind_GetCFA; } GCC_3.0;
GCC_4.2.0 { global: _Unwind_GetIPInfo; } GCC_3.3;
END
  for function in _Unwind_Backtrace _Unwind_DeleteException _Unwind_FindEnclosingFunction _Unwind_Find_FDE _Unwind_GetCFA \
    _Unwind_GetDataRelBase _Unwind_GetIP _Unwind_GetIPInfo _Unwind_GetLanguageSpecificData _Unwind_GetRegionStart \
    _Unwind_GetTextRelBase _Unwind_RaiseException _Unwind_Resume _Unwind_SetGR _Unwind_SetIP __register_frame \
    __register_frame_info __register_frame_info_table __deregister_frame __deregister_frame_info; do
    echo "void $function(void) {}"
  done >"$stubs/gcc_s.c"
  # zig keeps the libraries of glibc in its cache.
  export ZIG_GLOBAL_CACHE_DIR="$stubs/zig" ZIG_LOCAL_CACHE_DIR="$stubs/zig"
  case $1 in
    *-gnu) machine=$1.2.17 ;;
    *) machine=$1 ;;
  esac
  # The linker that rustc has with it.
  ln -s "$(rustc --print sysroot)/lib/rustlib/$(rustc --print host-tuple)/bin/rust-lld" "$stubs/rust-lld"
  "$zig" cc -target "$machine" -c -fno-builtin -w -o "$stubs/gcc_s.o" "$stubs/gcc_s.c"
  "$stubs/rust-lld" -flavor gnu -shared -soname libgcc_s.so.1 --version-script="$stubs/gcc_s.map" \
    -o "$stubs/libgcc_s.so" "$stubs/gcc_s.o"
  case $1 in
    *-gnu)
      echo 'int unused;' >"$stubs/empty.c"
      "$zig" cc -target "$machine" -shared -o "$stubs/empty.so" "$stubs/empty.c"
      libc=$(find "$stubs/zig/o" -name libc.so.6)
      for library in libc.so.6 libld.so.2 libutil.so.1 librt.so.1 libpthread.so.0 libm.so.6 libdl.so.2; do
        cp "${libc%/*}/$library" "$stubs"
        ln -s "$library" "$stubs/${library%.*}"
      done
      # Functions that older versions of glibc have only in this archive, `stat64` for one.
      cp "$(find "$stubs/zig/o" -name libc_nonshared.a)" "$stubs"
      rm "$stubs/libc.so"
      echo 'INPUT(libc.so.6 libc_nonshared.a AS_NEEDED(libld.so.2))' >"$stubs/libc.so"
      ;;
      # Every program that is linked with musl has all of it.
    *) echo 'INPUT()' >"$stubs/libc.so" ;;
  esac
  # What build.rs says is for a C compiler.
  cat >"$stubs/link" <<'END'
#!/bin/sh
for argument; do
  shift
  case $argument in
    -Wl,*) IFS=,; set -- "$@" ${argument#-Wl,}; unset IFS ;;
    *) set -- "$@" "$argument" ;;
  esac
done
# Debug information has paths, and the build ID would depend on them.
exec "${0%/*}/rust-lld" "$@" -L "${0%/*}" --strip-debug --build-id=sha1
END
  chmod +x "$stubs/link"
}

# What install.sh installs for a target: the directory `stage`.
binary() {
  arch=${1%%-*} triple=$arch-unknown-${1#*-} stage=$work/$name-$1 tools=
  if [ -d "$stage" ]; then return; fi
  if [ "$arch" != "$(uname -m)" ]; then
    tools=$arch-linux-gnu-
    need "${tools}ld=binutils-$(echo "$arch" | tr _ -)-linux-gnu"
  fi
  standard_library "$triple"
  program "$arch"
  stubs "$1"
  case $1 in
    *-musl) more=-Ctarget-feature=-crt-static ;;
    # The linker's libraries have all functions of glibc.
    *) more=-Clink-arg=-zdefs ;;
  esac
  more=-Clinker=$stubs/link$separator-Clinker-flavor=ld.lld$separator$more
  CARGO_ENCODED_RUSTFLAGS=$flags$separator$more DESTDIR=$stage CARGO_BUILD_TARGET=$triple CARGO_TARGET_DIR=$target \
    LD=${tools}ld OBJCOPY=${tools}objcopy AR=${tools}ar STRIP=${tools}strip \
    JITSYM_PROGRAM=$target/$arch-unknown-linux-musl/program/jitsym \
    sh "$tree/scripts/install.sh" --prefix=/ >/dev/null
  mkdir -p "$stage/share/doc/jitsym"
  (
    cd "$tree"
    cp README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT LICENSES-CRATES jitsym.cdx.json "$stage/share/doc/jitsym"
  )
}

wheels() {
  need python3=python3
  for what in $glibc; do
    binary "$what"
    sh "$tree/scripts/wheel.sh" "$stage" "manylinux_2_17_$arch.manylinux2014_$arch" "$files"
  done
}

npm() {
  set --
  for what in $glibc; do
    binary "$what"
    case $arch in
      x86_64) set -- "$@" "x64=$stage" ;;
      aarch64) set -- "$@" "arm64=$stage" ;;
    esac
  done
  sh "$tree/scripts/npm.sh" "$files" "$@"
}

for what in "$@"; do
  case $what in
    source) pack "$tree" "$files/$name.tar.gz" ;;
    wheel) wheels ;;
    npm) npm ;;
    deb) CARGO_ENCODED_RUSTFLAGS=$flags CARGO_TARGET_DIR=$target sh "$tree/scripts/deb.sh" "$files" >/dev/null ;;
    *) binary "$what"; pack "$stage" "$files/$name-$what.tar.gz" ;;
  esac
done
(cd "$files" && sha256sum -- * >"$work/SHA256SUMS")
mv "$files"/* "$out"
mv "$work/SHA256SUMS" "$out"
printf '%s\n' "$out"/*
