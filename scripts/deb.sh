#!/bin/sh
# Builds Debian packages of what install.sh installs. `deb.sh --help` says how.
set -eu

usage() {
  cat <<'END'
usage: deb.sh DIRECTORY
Builds Debian packages of what install.sh installs, into the directory:
  libjitsym0.1   the shared library
  libjitsym-dev  everything to compile and link with, and the manual
  jitsym         the program
They are for the system that they are built on: what they depend on is asked of
its dpkg. Environment:
  DEBFULLNAME, DEBEMAIL  whose packages they are, as for Debian's own tools
                         (The libjitsym authors <libjitsym@packages.debian.org>)
  SOURCE_DATE_EPOCH      when they were made
END
}

. "$(dirname -- "$0")/packages.sh"
options "$@"
[ $# = 1 ] || refuse "one directory is needed"
unset CDPATH
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
need dpkg-shlibdeps=dpkg-dev cc=gcc

date=${SOURCE_DATE_EPOCH:-$(date +%s)}
export SOURCE_DATE_EPOCH="$date"
maintainer="${DEBFULLNAME:-The libjitsym authors} <${DEBEMAIL:-libjitsym@packages.debian.org}>"
architecture=$(dpkg --print-architecture)
libdir=usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
umask 022
all=$work/all
DESTDIR=$all scripts/install.sh --prefix=/usr --libdir="/$libdir" >/dev/null
version=$(sed -n 's/^Version: //p' "$all/$libdir/pkgconfig/jitsym.pc")
# dpkg keeps such a list itself.
rm "$all/$libdir/cmake/jitsym/manifest.txt"
# Debian's libraries are not executable.
chmod 644 "$all/$libdir/libjitsym.so.$version"
soname=$(readelf -d "$all/$libdir/libjitsym.so.$version" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
library=libjitsym${soname#libjitsym.so.}

# move PACKAGE FILE...: from the installed tree to that of a package.
move() {
  to=$work/$1
  shift
  for file in "$@"; do
    mkdir -p "$to/${file%/*}"
    mv "$all/$file" "$to/$file"
  done
}
files() { (cd "$all" && find "$@" ! -type d); }

# shellcheck disable=SC2046 # One argument for each file.
{
  move "$library" $(files "$libdir" -name 'libjitsym.so.*')
  move jitsym usr/bin/jitsym usr/share/man/man1/jitsym.1 \
    $(files usr/share/bash-completion usr/share/zsh usr/share/fish)
  move libjitsym-dev $(files .)
}

# ---- what dpkg is to know ----

mkdir -p "$work/shlibs/debian" "$work/$library/DEBIAN" "$work/libjitsym-dev/DEBIAN" "$work/jitsym/DEBIAN"
echo "libjitsym ${soname#libjitsym.so.} $library (>= $version)" >"$work/$library/DEBIAN/shlibs"
# The linker's cache is for dpkg to renew when all packages are in place.
echo "activate-noawait ldconfig" >"$work/$library/DEBIAN/triggers"

# What a program or library of a package needs, by version.
needs() {
  echo "Source: libjitsym" >"$work/shlibs/debian/control"
  (cd "$work/shlibs" && dpkg-shlibdeps -O "$1") >"$work/shlibs/found"
  sed -n 's/^shlibs:Depends=//p' "$work/shlibs/found"
}
library_needs=$(needs "$work/$library/$libdir/libjitsym.so.$version")
program_needs=$(needs "$work/jitsym/usr/bin/jitsym")

# package NAME SECTION DEPENDS SUMMARY, and the description as input: writes the control file and the documents.
package() {
  tree=$work/$1 doc=$work/$1/usr/share/doc/$1
  mkdir -p "$doc"
  gzip -9n <CHANGELOG.md >"$doc/changelog.gz"
  printf 'libjitsym (%s-1) unstable; urgency=medium\n\n  * Built from the sources of this version.\n\n -- %s  %s\n' \
    "$version" "$maintainer" "$(date -uRd "@$date")" | gzip -9n >"$doc/changelog.Debian.gz"
  {
    printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: libjitsym\n\n'
    printf 'Files: *\nCopyright: %s\n' "$(sed -n 's/^Copyright (c) //p' LICENSE-MIT)"
    printf 'License: MIT or Apache-2.0\n\nLicense: MIT\n'
    sed '1,/^Copyright/d; s/^$/./; s/^/ /' LICENSE-MIT | sed '1d'
    printf '\nLicense: Apache-2.0\n On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.\n'
  } >"$doc/copyright"
  # Timestamps within gzip files would make each build another one.
  if [ -d "$tree/usr/share/man" ]; then find "$tree/usr/share/man" -type f -exec gzip -9n {} +; fi
  # As dpkg-gencontrol counts, which does not depend on the file system.
  size=$(cd "$tree" && find usr -type f -printf '%s\n' | awk '{ size += int(($1 + 1023) / 1024) } END { print size }')
  {
    printf 'Package: %s\nSource: libjitsym\nVersion: %s-1\nArchitecture: %s\n' "$1" "$version" "$architecture"
    printf 'Maintainer: %s\nInstalled-Size: %s\n' "$maintainer" "$size"
    printf 'Section: %s\nPriority: optional\nDepends: %s\n' "$2" "$3"
    case $1 in jitsym) ;; *) echo "Multi-Arch: same" ;; esac
    printf 'Description: %s\n' "$4"
    sed 's/^$/./; s/^/ /'
  } >"$tree/DEBIAN/control"
  (cd "$tree" && find usr -type f -exec md5sum {} + | LC_ALL=C sort -k2) >"$tree/DEBIAN/md5sums"
  dpkg-deb --root-owner-group -Zxz --build "$tree" "$out" >/dev/null
  echo "$out/$1_$version-1_$architecture.deb"
}

package "$library" libs "$library_needs" "JIT-compiled code made visible to profilers" <<'END'
A just-in-time compiler tells this library where it has put code and what the
code is called. A background thread writes that down in the forms that perf,
bpftrace, samply and others read: perf maps, jitdumps, and the ELF files of
regions of code memory. It tells gdb, lldb, the unwinder and valgrind, too,
and serves lookups by crash handlers.
END
package libjitsym-dev libdevel "$library (= $version-1)" "JIT-compiled code made visible to profilers - development files" <<'END'
A just-in-time compiler tells this library where it has put code and what the
code is called. A background thread writes that down in the forms that perf,
bpftrace, samply and others read: perf maps, jitdumps, and the ELF files of
regions of code memory. It tells gdb, lldb, the unwinder and valgrind, too,
and serves lookups by crash handlers.

Header, static library, pkg-config file, CMake package and manual pages.
END
package jitsym utils "$program_needs" "reads jitdumps and perf maps" <<'END'
Records programs with JIT-compiled code, finds problems in jitdumps and perf
maps, prints such files, completes the files of killed processes that used
libjitsym, and removes the files of dead processes.
END
