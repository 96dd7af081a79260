#!/bin/sh
# Makes the files of a release. `release.sh --help` says how.
set -eu

usage() {
  cat <<'END'
usage: release.sh DIRECTORY [WHAT]...
Makes the files of a release in the directory, the same bytes each time from the
same sources and compilers; all of them, or those that are named:
  source              jitsym-VERSION.tar.gz, the sources with all crates: builds
                      without a network by cargo, or by make and rustc alone
  x86_64-linux-gnu, aarch64-linux-gnu
                      jitsym-VERSION-WHAT.tar.gz, what install.sh installs, for
                      glibc 2.17 and newer
  x86_64-linux-musl, aarch64-linux-musl
                      the same for musl
  deb                 Debian packages for the system that they are built on
SHA256SUMS lists what was made. The directory gets the bill of materials too.
Environment:
  SOURCE_DATE_EPOCH   the time of all files (that of the last commit)
  ZIG                 the program zig, which knows the symbols of glibc 2.17
                      (fetched, if not named)
END
}

refuse() {
  echo "release.sh: $*" >&2
  usage >&2
  exit 2
}

for argument in "$@"; do
  case $argument in
    --help | -h) usage; exit 0 ;;
    -*) refuse "no such option: $argument" ;;
  esac
done
[ $# -ge 1 ] || refuse "a directory is needed"
out=$1
shift
[ $# -gt 0 ] || set -- source x86_64-linux-gnu aarch64-linux-gnu x86_64-linux-musl aarch64-linux-musl deb
for what in "$@"; do
  case $what in
    source | deb | x86_64-linux-gnu | aarch64-linux-gnu | x86_64-linux-musl | aarch64-linux-musl) ;;
    *) refuse "what is $what?" ;;
  esac
done
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")/.."
. scripts/packages.sh
need git=git gzip=gzip

# The time of the last change of the sources.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
export LC_ALL=C TZ=UTC
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
name=jitsym-$version
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022

# pack DIRECTORY FILE: the same bytes, whoever packs it, and when.
made=
pack() {
  tar --sort=name --format=ustar --owner=0 --group=0 --numeric-owner --mode=u+rwX,go+rX,go-w --mtime="@$SOURCE_DATE_EPOCH" \
    -C "${1%/*}" -cf - "${1##*/}" | gzip -9n >"$out/$2.new"
  mv -f "$out/$2.new" "$out/$2"
  made="$made $2"
  echo "$out/$2"
}

# ---- sources ----

# Everything is made of the archive's sources.
tree=$work/$name
mkdir "$tree"
git ls-files -z -- Cargo.toml Cargo.lock build.rs cbindgen.toml README.md CHANGELOG.md SECURITY.md 'LICENSE-*' CMakeLists.txt \
  cmake pkgconfig man include src scripts docs tests/exports.txt step tool ':!tool/tests' bindings examples ':!examples/cranelift' |
  tar --null --files-from=- -cf - | tar -xf - -C "$tree"
cargo run --quiet --locked --package xtask -- source "$tree"
cp "$tree/jitsym.cdx.json" "$out/$name.cdx.json"
made="$name.cdx.json"

# ---- binaries ----

target=$work/target
paths=--remap-path-prefix=$tree=/$name
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_TARGET

# What cargo calls the variable $2 of a target.
variable() {
  echo "CARGO_TARGET_$(echo "$1" | tr a-z- A-Z_)_$2"
}

# The standard library for a target.
standard_library() {
  [ -d "$(rustc --print target-libdir --target "$1")" ] || rustup --quiet target add "$1"
}

# The program of an architecture, without any shared library.
program() {
  file=$target/$1-unknown-linux-musl/program/jitsym
  if ! [ -f "$file" ]; then
    standard_library "$1-unknown-linux-musl"
    (cd "$tree" && env "$(variable "$1-unknown-linux-musl" RUSTFLAGS)=-Clinker=rust-lld -Clinker-flavor=ld.lld $paths" \
      cargo build --quiet --locked --profile program --package jitsym-tool --target "$1-unknown-linux-musl" \
      --target-dir "$target")
  fi
}

# Libraries without code, for the linker: what a program finds where it runs.
stubs() {
  stubs=$work/stubs/$1
  mkdir -p "$stubs"
  zig=${ZIG:-$(cargo run --quiet --locked --package xtask -- tool zig)}
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
    *-gnu) version=.2.17 ;;
    *) version= ;;
  esac
  # The linker that rustc has with it.
  lld=$(rustc --print sysroot)/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin/rust-lld
  "$zig" cc -target "$1$version" -c -fno-builtin -w -o "$stubs/gcc_s.o" "$stubs/gcc_s.c"
  "$lld" -flavor gnu -shared -soname libgcc_s.so.1 --version-script="$stubs/gcc_s.map" -o "$stubs/libgcc_s.so" "$stubs/gcc_s.o"
  case $1 in
    *-gnu)
      echo 'int unused;' >"$stubs/empty.c"
      "$zig" cc -target "$1$version" -shared -o "$stubs/empty.so" "$stubs/empty.c"
      libc=$(find "$stubs/zig/o" -name libc.so.6)
      echo "INPUT($libc AS_NEEDED(${libc%/*}/libld.so.2))" >"$stubs/libc.so"
      for library in util.so.1 rt.so.1 pthread.so.0 m.so.6 dl.so.2; do
        ln -s "${libc%/*}/lib$library" "$stubs/lib${library%.*}"
      done
      ;;
      # Every program that is linked with musl has all of it.
    *) echo 'INPUT()' >"$stubs/libc.so" ;;
  esac
  # What build.rs says is for a C compiler.
  cat >"$stubs/link" <<END
#!/bin/sh
for argument; do
  shift
  case \$argument in
    -Wl,*) IFS=,; set -- "\$@" \${argument#-Wl,}; unset IFS ;;
    *) set -- "\$@" "\$argument" ;;
  esac
done
exec "$lld" "\$@" -L "$stubs" --build-id=sha1
END
  chmod +x "$stubs/link"
}

binary() {
  arch=${1%%-*} triple=$arch-unknown-${1#*-} tools=
  if [ "$arch" != "$(uname -m)" ]; then
    tools=$arch-linux-gnu-
    need "${tools}ld=binutils-$(echo "$arch" | tr _ -)-linux-gnu"
  fi
  standard_library "$triple"
  program "$arch"
  stubs "$1"
  case $1 in
    *-musl) shared=-Ctarget-feature=-crt-static ;;
    *) shared= ;;
  esac
  stage=$work/$name-$1
  env "$(variable "$triple" RUSTFLAGS)=-Clinker=$stubs/link -Clinker-flavor=ld.lld $paths $shared" DESTDIR="$stage" \
    CARGO_BUILD_TARGET="$triple" CARGO_TARGET_DIR="$target" LD="${tools}ld" OBJCOPY="${tools}objcopy" AR="${tools}ar" \
    STRIP="${tools}strip" JITSYM_PROGRAM="$target/$arch-unknown-linux-musl/program/jitsym" \
    sh "$tree/scripts/install.sh" --prefix=/ >/dev/null
  mkdir -p "$stage/share/doc/jitsym"
  cp README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT "$tree/LICENSES-CRATES" "$tree/jitsym.cdx.json" "$stage/share/doc/jitsym"
  pack "$stage" "$name-$1.tar.gz"
}

for what in "$@"; do
  case $what in
    source) pack "$tree" "$name.tar.gz" ;;
    deb)
      packages=$(RUSTFLAGS=$paths CARGO_TARGET_DIR=$target sh "$tree/scripts/deb.sh" "$out")
      printf '%s\n' "$packages"
      made="$made $(printf '%s\n' "$packages" | sed 's,.*/,,')"
      ;;
    *) binary "$what" ;;
  esac
done
# shellcheck disable=SC2086 # One word for each file.
(cd "$out" && sha256sum $made >SHA256SUMS)
echo "$out/SHA256SUMS"
