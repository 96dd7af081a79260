#!/bin/sh
# Makes an npm package of what install.sh has installed. `npm.sh --help` says how.
set -eu

usage() {
  cat <<'END'
usage: npm.sh DIRECTORY CPU=TREE...
Makes jitsym-VERSION.tgz, a package for npm, in the directory: the Node.js
package, and the shared libraries and licences of unpacked binary archives of
release.sh.
  CPU   whose library it is, in the words of Node.js: x64 or arm64
  TREE  the unpacked archive
Environment:
  SOURCE_DATE_EPOCH  the time of all files in the package (now)
END
}

. "$(dirname -- "$0")/packages.sh"
options "$@"
[ $# -ge 2 ] || refuse "a directory and a tree are needed"
out=$1
shift
for argument in "$@"; do
  case $argument in x64=?* | arm64=?*) ;; *) refuse "not x64=TREE or arm64=TREE: $argument" ;; esac
done

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(date +%s)}
node=$here/../bindings/node
version=$(sed -n 's/^ *"version": "\(.*\)",$/\1/p' "$node/package.json")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# npm wants this name.
package=$work/package
mkdir "$package"
cp "$node"/*.js "$node/index.d.ts" "$node/package.json" "$package"
# Links to other files of the source tree lead nowhere from here.
sed 's,\[\([^]]*\)\](\.\./[^)]*),\1,g' "$node/README.md" >"$package/README.md"
for argument; do
  tree=${argument#*=} lib=$package/lib/${argument%%=*}
  mkdir -p "$lib"
  cp "$tree/lib/$(readlink "$tree/lib/libjitsym.so")" "$lib"
  cp "$tree"/share/doc/jitsym/LICENSE* "$package"
done
pack "$package" "$out/jitsym-$version.tgz"
