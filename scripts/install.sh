#!/bin/sh
# Builds libjitsym and the program `jitsym` as they are released, and installs them. `install.sh --help` says how.
#
# The installed tree finds itself: it can be moved, and made with DESTDIR.
set -eu

usage() {
  cat <<'END'
usage: install.sh [OPTION]...
  --prefix=DIR      where everything goes (/usr/local)
  --libdir=DIR      libraries, pkg-config file and CMake package (PREFIX/lib)
  --includedir=DIR  header (PREFIX/include)
  --bindir=DIR      program (PREFIX/bin)
  --mandir=DIR      manual pages (PREFIX/share/man)
  --small           builds Rust's standard library too, without its printer of
                    backtraces, which makes the libraries a third smaller; needs
                    the library's source (rustup component add rust-src)
A directory that is not absolute lies below the prefix. Environment:
  DESTDIR             put before every path that is written, for packagers
  CARGO, STRIP, LD, OBJCOPY, AR
                      the programs to use; STRIP=: leaves debug information in
  CARGO_TARGET_DIR    where to build
  CARGO_BUILD_TARGET  what to build for
END
}

fail() {
  echo "install.sh: $*" >&2
  exit 1
}

prefix=/usr/local libdir=lib includedir=include bindir=bin mandir=share/man small=
while [ $# -gt 0 ]; do
  case $1 in
    --help) usage; exit 0 ;;
    --small) small=yes; shift; continue ;;
    --prefix=* | --libdir=* | --includedir=* | --bindir=* | --mandir=*) option=${1%%=*} value=${1#*=} ;;
    --prefix | --libdir | --includedir | --bindir | --mandir)
      [ $# -ge 2 ] || fail "$1 needs a directory"
      option=$1 value=$2
      shift
      ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
  case /$value/ in
    */../* | */./*) fail "$option: no . or .. in a path, please: $value" ;;
    //) fail "$option needs a directory" ;;
  esac
  # One slash between names and none at the end, so that paths can be compared. The root directory becomes empty.
  value=$(printf '%s\n' "$value" | sed 's,//*,/,g; s,/$,,')
  case $option in
    --prefix) prefix=$value ;;
    --libdir) libdir=$value ;;
    --includedir) includedir=$value ;;
    --bindir) bindir=$value ;;
    --mandir) mandir=$value ;;
  esac
done
case $prefix in
  "" | /*) ;;
  *) fail "--prefix is not absolute: $prefix" ;;
esac
case $libdir in /*) ;; *) libdir=$prefix/$libdir ;; esac
case $includedir in /*) ;; *) includedir=$prefix/$includedir ;; esac
case $bindir in /*) ;; *) bindir=$prefix/$bindir ;; esac
case $mandir in /*) ;; *) mandir=$prefix/$mandir ;; esac

# The way from one absolute directory to another, by names alone.
relative() {
  common=$1 up=
  while :; do
    case $2/ in "$common"/*) break ;; esac
    common=${common%/*} up=../$up
  done
  down=${2#"$common"}
  down=$up${down#/}
  down=${down%/}
  echo "${down:-.}"
}

# ---- build ----

command -v "${CARGO:-cargo}" >/dev/null || fail "Rust 1.88 or newer is needed, and there is no cargo (https://rustup.rs)"
echo "building, which takes some minutes the first time" >&2

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
case $target in /*) ;; *) target=$(pwd)/$target ;; esac
release=${CARGO_BUILD_TARGET:+$CARGO_BUILD_TARGET/}release
cargo=${CARGO:-cargo}
cd "$root"

# The version is written in Cargo.toml and nowhere else; what depends on it is made from this line.
version=$(sed -n '/^\[package\]/,/^\[/s/^version *= *"\(.*\)".*/\1/p' Cargo.toml)
major=${version%%.*}
minor=${version#*.}
minor=${minor%%.*}
[ -n "$major" ] && [ -n "$minor" ] || fail "no version in $root/Cargo.toml"
# As in build.rs.
if [ "$major" = 0 ]; then soname=libjitsym.so.0.$minor; else soname=libjitsym.so.$major; fi
shared=libjitsym.so.$version

# What makes the C libraries what they are, besides the release profile.
set -- --quiet --locked --release --lib --features reserve
library_release=$release bootstrap=
if [ -n "$small" ]; then
  rustc=${RUSTC:-rustc}
  [ -e "$("$rustc" --print sysroot)/lib/rustlib/src/rust/library/Cargo.lock" ] ||
    fail "--small needs the source of Rust's standard library: rustup component add rust-src, or your system's rust-src"
  # The stable compiler can do it, though it calls the options unstable. A target has to be named for them.
  bootstrap=1
  triple=${CARGO_BUILD_TARGET:-$("$rustc" -vV | sed -n 's/^host: //p')}
  set -- "$@" --target "$triple" -Zbuild-std=std,panic_unwind -Zbuild-std-features=optimize_for_size
  library_release=$triple/release
fi

# Without the Rust library, because there is no LTO as soon as `lib` is among the crate types; in a directory of their own, so
# that cargo does not build them anew when it has built the program.
env ${bootstrap:+RUSTC_BOOTSTRAP=1} "$cargo" rustc "$@" --crate-type cdylib,staticlib --target-dir "$target/c"
libraries=$target/c/$library_release static=$target/c/$library_release/sealed/libjitsym.a
mkdir -p "${static%/*}"
sh scripts/seal.sh "$libraries/libjitsym.a" "$static"
"$cargo" build --quiet --locked --release --bin jitsym --target-dir "$target"

# ---- install ----

# What is installed is for everyone to read, whatever the umask of the person who installs.
umask 022
destdir=${DESTDIR:-}
new=
trap 'if [ -n "$new" ]; then rm -f "$new"; fi' EXIT

# Names the place for a new file in `new`. Files are renamed to their places, never written there: a program that runs
# with the old library keeps it whole.
begin() {
  mkdir -p "$destdir$1"
  new=$destdir$1/.$2.$$
  rm -f "$new"
}

finish() {
  mv -f "$new" "$destdir$1/$2"
  new=
  echo "$destdir$1/$2"
}

# install_file MODE SOURCE DIRECTORY NAME
install_file() {
  begin "$3" "$4"
  cp "$2" "$new"
  chmod "$1" "$new"
  finish "$3" "$4"
}

# As install_file, without what the option $5 of strip takes away.
install_stripped() {
  begin "$3" "$4"
  cp "$2" "$new"
  if command -v "${STRIP:-strip}" >/dev/null; then "${STRIP:-strip}" "$5" "$new"; fi
  chmod "$1" "$new"
  finish "$3" "$4"
}

# install_link TARGET DIRECTORY NAME
install_link() {
  begin "$2" "$3"
  ln -s "$1" "$new"
  finish "$2" "$3"
}

# What a program that is linked with the static library needs beside it, as `--print native-static-libs` says for glibc;
# but for the unwinder (-lgcc_s), which C compilers add by themselves, and know whether the static one is wanted.
static_libs="-lutil -lrt -lpthread -lm -ldl -lc"
static_libs_list=$(echo "$static_libs" | tr ' ' ';')

# The text of $2 as the replacement of a `s,@$1@,...,g`.
substitute() {
  printf 's,@%s@,%s,g\n' "$1" "$(printf '%s\n' "$2" | sed 's/[\\,&]/\\&/g')"
}

pkgconfigdir=$libdir/pkgconfig
cmakedir=$libdir/cmake/jitsym
substitutions="$(substitute VERSION "$version")
$(substitute VERSION_MAJOR "$major")
$(substitute VERSION_MINOR "$minor")
$(substitute SONAME "$soname")
$(substitute SHARED_FILE "$shared")
$(substitute STATIC_LIBS "$static_libs")
$(substitute STATIC_LIBS_LIST "$static_libs_list")
$(substitute PKGCONFIG_TO_PREFIX "$(relative "$pkgconfigdir" "$prefix")")
$(substitute PREFIX_TO_LIBDIR "$(relative "$prefix" "$libdir")")
$(substitute PREFIX_TO_INCLUDEDIR "$(relative "$prefix" "$includedir")")
$(substitute CMAKE_TO_LIBDIR "$(relative "$cmakedir" "$libdir")")
$(substitute CMAKE_TO_INCLUDEDIR "$(relative "$cmakedir" "$includedir")")"

# install_template SOURCE DIRECTORY NAME
install_template() {
  begin "$2" "$3"
  sed "$substitutions" "$1" >"$new"
  chmod 644 "$new"
  finish "$2" "$3"
}

install_stripped 755 "$libraries/libjitsym.so" "$libdir" "$shared" --strip-unneeded
install_link "$shared" "$libdir" "$soname"
install_link "$soname" "$libdir" libjitsym.so
install_stripped 644 "$static" "$libdir" libjitsym.a --strip-debug
install_file 644 include/jitsym.h "$includedir" jitsym.h
install_file 644 include/jitsym_dl.h "$includedir" jitsym_dl.h
install_template pkgconfig/jitsym.pc.in "$pkgconfigdir" jitsym.pc
install_template cmake/jitsymConfig.cmake.in "$cmakedir" jitsymConfig.cmake
install_template cmake/jitsymConfigVersion.cmake.in "$cmakedir" jitsymConfigVersion.cmake
install_stripped 755 "$target/$release/jitsym" "$bindir" jitsym --strip-unneeded
for page in man/*; do
  install_file 644 "$page" "$mandir/man${page##*.}" "${page#man/}"
done
