"""Builds libjitsym from the sources that this file lies in, for Conan 2: `conan create packaging/conan`."""

import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import cross_building
from conan.tools.files import copy, load, rm, rmdir

required_conan_version = ">=2"


class Jitsym(ConanFile):
    name = "jitsym"
    description = "Makes JIT-compiled code visible to perf and other Linux profilers"
    license = "MIT OR Apache-2.0"
    topics = ("jit", "perf", "profiling", "jitdump", "unwinding")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False]}
    default_options = {"shared": False}

    def set_version(self):
        manifest = load(self, os.path.join(self.recipe_folder, "../../Cargo.toml"))
        self.version = re.search('^version = "(.*)"', manifest, re.MULTILINE)[1]

    def export_sources(self):
        root = os.path.join(self.recipe_folder, "../..")
        copy(self, "*", root, self.export_sources_folder, excludes=("target/*", ".git/*"))

    def validate(self):
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration("jitsym is for Linux")
        if cross_building(self):
            raise ConanInvalidConfiguration("this recipe builds for the machine that it runs on")

    def package_id(self):
        # rustc builds the same library for all of them.
        del self.info.settings.compiler
        del self.info.settings.build_type

    def package(self):
        script = os.path.join(self.source_folder, "scripts/install.sh")
        self.run(f"DESTDIR='{self.package_folder}' sh '{script}' --prefix=/", cwd=self.build_folder)
        copy(self, "LICENSE*", self.source_folder, os.path.join(self.package_folder, "licenses"))
        # A linker would take the other library too, and CMake the files of the tree.
        unwanted = "libjitsym.a" if self.options.shared else "libjitsym.so*"
        rm(self, unwanted, os.path.join(self.package_folder, "lib"))
        rmdir(self, os.path.join(self.package_folder, "lib/cmake"))
        rmdir(self, os.path.join(self.package_folder, "lib/pkgconfig"))

    def package_info(self):
        self.cpp_info.libs = ["jitsym"]
        if not self.options.shared:
            self.cpp_info.system_libs = ["util", "rt", "pthread", "m", "dl"]
