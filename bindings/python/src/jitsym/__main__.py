"""Prints what a build of a C or C++ program needs of the library in this package: `python -m jitsym --help`."""

from __future__ import annotations

import argparse
import sys

from . import __version__
from ._library import BUNDLED

_OPTIONS = {
    "--cflags": "flags for the compiler",
    "--libs": "flags for the linker, with the static library: the program then runs without this package",
    "--lib": "the file of the shared library",
    "--pkgconfig": "a directory for PKG_CONFIG_PATH",
    "--version": "the version of this package",
}


def _word(text: str) -> str:
    """A flag as it is: the shell splits the output of a command at spaces, and evaluates no quotes in it."""
    if text.split() != [text]:
        sys.exit(f"jitsym: a path with a space cannot be a flag: {text}")
    return text


def _answer(option: str) -> str:
    if option == "--version":
        return __version__
    if not BUNDLED.exists():
        sys.exit("jitsym: this package was installed from its sources, which contain no library")
    lib = BUNDLED.parent
    if option == "--cflags":
        return _word(f"-I{lib.with_name('include')}")
    if option == "--libs":
        lines = (lib / "pkgconfig/jitsym-static.pc").read_text().splitlines()
        words = next(line for line in lines if line.startswith("Libs: ")).split()[1:]
        return " ".join(_word(word.replace("${libdir}", str(lib))) for word in words)
    return str(BUNDLED if option == "--lib" else lib / "pkgconfig")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m jitsym",
        description="Prints what a build of a C or C++ program needs of the library in this package.",
        epilog="cc vm.c -o vm $(python -m jitsym --cflags --libs)",
    )
    for option, text in _OPTIONS.items():
        parser.add_argument(option, action="append_const", const=option, dest="wanted", help=text)
    wanted = parser.parse_args().wanted
    if not wanted:
        parser.error("an option is needed")
    print(*map(_answer, wanted))


if __name__ == "__main__":
    main()
