#!/bin/sh
# Makes a wheel of what install.sh has installed. `wheel.sh --help` says how.
set -eu

usage() {
  cat <<'END'
usage: wheel.sh TREE PLATFORM DIRECTORY
Makes a wheel, a package for pip, in the directory: the Python package, and the
libraries, headers, pkg-config files, program and licences of an unpacked binary
archive of release.sh.
  TREE      the unpacked archive
  PLATFORM  the wheel's platform, for instance manylinux_2_17_x86_64.manylinux2014_x86_64
Needs Python 3.11 or newer. Environment:
  SOURCE_DATE_EPOCH  the time of all files in the wheel (now)
END
}

. "$(dirname -- "$0")/packages.sh"
options "$@"
[ $# = 3 ] || refuse "three arguments are needed"

exec python3 -I - "$(dirname "$0")/../bindings/python" "$@" <<'END'
import base64, hashlib, os, re, sys, time, tomllib, zipfile
from pathlib import Path

package, tree, platform, directory = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
name, version = project["name"], project["version"]
info = f"{name}-{version}.dist-info"
tag = f"py3-none-{platform}"
tags = "".join(f"Tag: py3-none-{one}\n" for one in platform.split("."))
files = {}

for file in (package / "src" / name).iterdir():
    if file.is_file():
        files[f"{name}/{file.name}"] = file.read_bytes()
lib, soname = tree / "lib", os.readlink(tree / "lib/libjitsym.so")
files[f"{name}/lib/{soname}"] = (lib / soname).read_bytes()
# A wheel has no links. This one is for the linker: it looks for the file where it has found this text.
files[f"{name}/lib/libjitsym.so"] = f"INPUT({soname})\n".encode()
for file in [lib / "libjitsym.a", *lib.glob("pkgconfig/*"), *tree.glob("include/*")]:
    files[f"{name}/{file.relative_to(tree)}"] = file.read_bytes()
# pip puts it where programs are.
program = f"{name}-{version}.data/scripts/jitsym"
files[program] = (tree / "bin/jitsym").read_bytes()

metadata = [
    ("Metadata-Version", "2.4"),
    ("Name", name),
    ("Version", version),
    ("Summary", project["description"]),
    ("Keywords", ",".join(project["keywords"])),
    ("License-Expression", project["license"]),
]
for licence in ["LICENSE-APACHE", "LICENSE-MIT", "LICENSES-CRATES"]:
    files[f"{info}/licenses/{licence}"] = (tree / "share/doc/jitsym" / licence).read_bytes()
    metadata.append(("License-File", licence))
metadata += [("Classifier", classifier) for classifier in project["classifiers"]]
metadata += [("Requires-Python", project["requires-python"]), ("Description-Content-Type", "text/markdown")]
# Links to other files of the source tree lead nowhere from here.
readme = re.sub(r"\[([^\]]*)\]\(\.\./[^)]*\)", r"\1", (package / project["readme"]).read_text())
lines = "".join(f"{field}: {value}\n" for field, value in metadata)
files[f"{info}/METADATA"] = f"{lines}\n{readme}".encode()
files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: wheel.sh\nRoot-Is-Purelib: false\n{tags}".encode()

def checksum(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()

record = [f"{path},sha256={checksum(data)},{len(data)}\n" for path, data in sorted(files.items())]
files[f"{info}/RECORD"] = "".join([*record, f"{info}/RECORD,,\n"]).encode()

executable = [program, f"{name}/lib/{soname}"]
# An archive of this format has no earlier times.
moment = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())), 315532800))[:6]
wheel = directory / f"{name}-{version}-{tag}.whl"
if wheel.exists():
    sys.exit(f"{wheel} exists")
# An incomplete file never has the name of a wheel.
unfinished = wheel.with_suffix(".unfinished")
with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
    # What tells of the package comes last, as the format asks for.
    for path, data in sorted(files.items(), key=lambda file: (file[0].startswith(info), file[0])):
        entry = zipfile.ZipInfo(path, moment)
        entry.external_attr = (0o100755 if path in executable else 0o100644) << 16
        archive.writestr(entry, data, zipfile.ZIP_DEFLATED, 9)
unfinished.rename(wheel)
END
