#!/bin/sh
# Builds libjitsym and the program `jitsym` as they are released, and installs or removes them. `install.sh --help` says how.
#
# The installed tree finds itself: it can be moved, and made with DESTDIR.
set -eu

usage() {
  cat <<'END'
usage: install.sh [OPTION]...
Builds libjitsym and the program jitsym, and installs them.
  --prefix=DIR      where everything goes (/usr/local)
  --libdir=DIR      libraries, pkg-config file and CMake package (PREFIX/lib)
  --includedir=DIR  headers (PREFIX/include)
  --bindir=DIR      program (PREFIX/bin)
  --mandir=DIR      manual pages (PREFIX/share/man)
  --small           builds Rust's standard library too, and all for the least size:
                    the libraries are a fifth smaller, and calls take up to a
                    sixth more instructions; needs the source of the standard library
                    (rustup component add rust-src)
  --uninstall       builds nothing, and removes the files that were installed with
                    the same prefix, libdir and DESTDIR, and the directories that
                    were made for them and are empty
A directory that is not absolute lies below the prefix. Environment:
  DESTDIR             put before every path that is written, for packagers
  CARGO, STRIP, LD, OBJCOPY, AR
                      the programs to use; STRIP=: leaves debug information in
  CARGO_TARGET_DIR    where to build
  CARGO_BUILD_TARGET  what to build for
  JITSYM_PROGRAM      a program jitsym that is built already, and is installed
                      instead of another one
  JITSYM_LIBRARIES    a directory with libraries that rustc has made already, and
                      with the manual pages of build.rs (see the archive of sources
                      that release.sh makes)
END
}

fail() {
  printf 'install.sh: %s\n' "$*" >&2
  exit 1
}

prefix=/usr/local libdir=lib includedir=include bindir=bin mandir=share/man small='' uninstall=''
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) usage; exit 0 ;;
    --small) small=yes; shift; continue ;;
    --uninstall) uninstall=yes; shift; continue ;;
    --prefix=* | --libdir=* | --includedir=* | --bindir=* | --mandir=*) option=${1%%=*} value=${1#*=} ;;
    --prefix | --libdir | --includedir | --bindir | --mandir)
      [ $# -ge 2 ] || fail "$1 needs a directory"
      option=$1 value=$2
      shift
      ;;
    *) printf 'install.sh: no such option: %s\n' "$1" >&2; usage >&2; exit 2 ;;
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

# A path in a line. (echo would take a backslash in it for more.)
line() {
  printf '%s\n' "$1"
}

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
  line "${down:-.}"
}

# Where such a way leads to, if it goes on with a name.
follow() {
  from=$1 way=$2
  while :; do
    case $way in ../*) from=${from%/*} way=${way#../} ;; *) break ;; esac
  done
  line "$from/${way#./}"
}

# Where shells look for what they complete.
datadir=$prefix/share
destdir=${DESTDIR:-}
case $destdir in "" | /*) ;; *) destdir=$PWD/$destdir ;; esac
pkgconfigdir=$libdir/pkgconfig
cmakedir=$libdir/cmake/jitsym
# What was installed, by the ways from the file itself, in the order in which it is removed: files, with this one as the last,
# and then, with a slash at their ends, the directories that were made for them.
manifest=manifest.txt

# ---- uninstall ----

if [ -n "$uninstall" ]; then
  if ! [ -f "$destdir$cmakedir/$manifest" ]; then
    line "nothing is installed: there is no $destdir$cmakedir/$manifest" >&2
    exit 0
  fi
  ways=$(cat "$destdir$cmakedir/$manifest")
  printf '%s\n' "$ways" | while IFS= read -r way; do
    path=$destdir$(follow "$cmakedir" "${way%/}")
    case $way in
      */) rmdir "$path" 2>/dev/null || continue ;;
      *) if [ -f "$path" ] || [ -L "$path" ]; then rm -f "$path"; else continue; fi ;;
    esac
    line "$path"
  done
  exit
fi

# ---- build ----

libraries=${JITSYM_LIBRARIES:-}
case $libraries in "" | /*) ;; *) fail "JITSYM_LIBRARIES is not absolute: $libraries" ;; esac
[ -n "$libraries" ] || command -v "${CARGO:-cargo}" >/dev/null ||
  fail "Rust 1.88 or newer is needed, and there is no cargo (https://rustup.rs)"

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
case $target in /*) ;; *) target=$(pwd)/$target ;; esac
release=${CARGO_BUILD_TARGET:+$CARGO_BUILD_TARGET/}release
cargo=${CARGO:-cargo}
cd "$root"

# The version is written in Cargo.toml and nowhere else; what depends on it is made from this line.
version=$(sed -n '/^\[.*package\]/,/^\[/s/^version *= *"\(.*\)".*/\1/p' Cargo.toml)
major=${version%%.*}
minor=${version#*.}
minor=${minor%%.*}
[ -n "$major" ] && [ -n "$minor" ] || fail "no version in $root/Cargo.toml"
# As in build.rs.
if [ "$major" = 0 ]; then soname=libjitsym.so.0.$minor; else soname=libjitsym.so.$major; fi
shared=libjitsym.so.$version

# What makes the C libraries what they are, besides the release profile.
set -- --quiet --locked --release --lib --features reserve
library_release=$release bootstrap='' flags=${RUSTFLAGS:-}
if [ -n "$small" ]; then
  rustc=${RUSTC:-rustc}
  [ -e "$("$rustc" --print sysroot)/lib/rustlib/src/rust/library/Cargo.lock" ] ||
    fail "--small needs the source of Rust's standard library: rustup component add rust-src, or your system's rust-src"
  # The stable compiler can do it, though it calls the options unstable. A target has to be named for them.
  bootstrap=1
  triple=${CARGO_BUILD_TARGET:-$("$rustc" -vV | sed -n 's/^host: //p')}
  set -- "$@" --target "$triple" -Zbuild-std=std,panic_unwind -Zbuild-std-features=optimize_for_size
  # Calls take more instructions for it. Frame pointers make the unwind tables smaller. Nobody sees what a panic would say.
  set -- "$@" --config 'profile.release.opt-level="z"'
  flags="$flags -Cforce-frame-pointers=yes -Cllvm-args=-inline-threshold=15 -Cllvm-args=-inlinehint-threshold=25"
  flags="$flags -Zlocation-detail=none -Zfmt-debug=none"
  library_release=$triple/release
fi

# Without the Rust library, because there is no LTO as soon as `lib` is among the crate types; in a directory of their own, so
# that cargo does not build them anew when it has built the program.
if [ -n "$libraries" ]; then
  pages=$libraries/man
else
  echo "install.sh: building the library, which takes some minutes the first time" >&2
  messages=$(env ${bootstrap:+RUSTC_BOOTSTRAP=1} ${bootstrap:+"RUSTFLAGS=$flags"} "$cargo" rustc "$@" \
    --crate-type cdylib,staticlib --target-dir "$target/c" --message-format json-render-diagnostics)
  # Where build.rs has written the manual pages.
  pages=$(printf '%s\n' "$messages" | sed -n 's,.*"package_id":"[^"]*jitsym[@#][^"/]*".*"out_dir":"\([^"]*\)".*,\1/man,p')
  libraries=$target/c/$library_release
fi
static=$libraries/sealed/libjitsym.a
mkdir -p "${static%/*}"
sh scripts/seal.sh "$libraries/libjitsym.a" "$static"
# The package that cargo makes of the library is without it.
tool=${JITSYM_PROGRAM:-}
case $tool in "" | /*) ;; *) fail "JITSYM_PROGRAM is not absolute: $tool" ;; esac
if [ -z "$tool" ] && [ -f tool/Cargo.toml ]; then
  tool=$target/${release%release}program/jitsym
  echo "install.sh: building the program jitsym" >&2
  "$cargo" build --quiet --locked --profile program --package jitsym-tool --target-dir "$target"
fi

# ---- install ----

# What is installed is for everyone to read, whatever the umask of the person who installs.
umask 022
new='' installed=''
trap 'if [ -n "$new" ]; then rm -f "$new"; fi' EXIT

# note DIRECTORY NAME: for the manifest.
note() {
  installed="$installed$(relative "$cmakedir" "$1")/$2
"
}

# Makes a directory, and those above it.
make_directory() {
  if [ -z "$1" ]; then
    mkdir -p "$destdir/"
  elif ! [ -d "$destdir$1" ]; then
    make_directory "${1%/*}"
    mkdir "$destdir$1"
    note "${1%/*}" "${1##*/}/"
  fi
}

# Names the place for a new file in `new`. Files are renamed to their places, never written there: a program that runs
# with the old library keeps it whole.
begin() {
  make_directory "$1"
  note "$1" "$2"
  new=$destdir$1/.$2.$$
  rm -f "$new"
}

finish() {
  mv -f "$new" "$destdir$1/$2"
  new=
  line "$destdir$1/$2"
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
for header in jitsym.h jitsym_region.h jitsym_control.h jitsym_dl.h jitsym_map.h jitsym.hpp; do
  install_file 644 "include/$header" "$includedir" "$header"
done
install_template pkgconfig/jitsym.pc.in "$pkgconfigdir" jitsym.pc
install_template pkgconfig/jitsym-static.pc.in "$pkgconfigdir" jitsym-static.pc
install_template cmake/jitsymConfig.cmake.in "$cmakedir" jitsymConfig.cmake
install_template cmake/jitsymConfigVersion.cmake.in "$cmakedir" jitsymConfigVersion.cmake
if [ -n "$tool" ]; then
  install_stripped 755 "$tool" "$bindir" jitsym --strip-unneeded
  install_file 644 man/completions/jitsym.bash "$datadir/bash-completion/completions" jitsym
  install_file 644 man/completions/_jitsym "$datadir/zsh/site-functions" _jitsym
  install_file 644 man/completions/jitsym.fish "$datadir/fish/vendor_completions.d" jitsym.fish
fi
for page in "$pages"/*; do
  install_file 644 "$page" "$mandir/man${page##*.}" "${page##*/}"
done

# What an earlier version has installed, too, and its directories, which are there already.
begin "$cmakedir" "$manifest"
ways=$({ printf %s "$installed"; cat "$destdir$cmakedir/$manifest" 2>/dev/null || :; } | LC_ALL=C sort -u)
{ printf '%s\n' "$ways" | grep -v '/$'; printf '%s\n' "$ways" | grep '/$' | LC_ALL=C sort -r; } >"$new"
chmod 644 "$new"
finish "$cmakedir" "$manifest"

# Packagers know where things go.
if [ -z "$destdir" ]; then
  cat <<END
libjitsym is installed below ${prefix:-/}. For a build:
    export PKG_CONFIG_PATH=$pkgconfigdir
    cc vm.c -o vm \$(pkg-config --cflags --libs jitsym) -Wl,-rpath,$libdir
END
  [ -z "$tool" ] || echo "To look at compiled code: $bindir/jitsym record -- ./vm"
fi
