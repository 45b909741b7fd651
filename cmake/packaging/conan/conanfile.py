# SPDX-License-Identifier: MIT
# The recipe for Conan 2: conan create cmake/packaging/conan
# The version is that of base/version.hpp.
import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load


class Redlatch(ConanFile):
    name = "redlatch"
    description = "Distributed locks and friends on Redis, header-only C++20"
    license = "MIT"
    topics = ("redis", "distributed-lock", "mutex", "semaphore", "header-only")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"tls": [True, False]}
    default_options = {"tls": False}

    @property
    def _root(self):
        return os.path.normpath(os.path.join(self.recipe_folder, "..", "..", ".."))

    def set_version(self):
        header = load(self, os.path.join(self._root, "include", "redlatch", "base", "version.hpp"))
        self.version = ".".join(re.findall(r"version_(?:major|minor|patch) = (\d+)", header))

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", "cmake/*", "include/*", "single_include/*", ".github/CHANGELOG.md"):
            copy(self, pattern, self._root, self.export_sources_folder)

    def layout(self):
        cmake_layout(self)

    def requirements(self):
        self.requires("hiredis/[>=0.14.1 <2]", transitive_headers=True, transitive_libs=True)
        if self.options.tls:
            self.requires("openssl/[>=1.1.1 <4]", transitive_headers=True, transitive_libs=True)

    def validate(self):
        check_min_cppstd(self, 20)

    def package_id(self):
        self.info.clear()

    def generate(self):
        toolchain = CMakeToolchain(self)
        for part in ("TESTS", "EXAMPLES", "BENCH"):
            toolchain.cache_variables["REDLATCH_BUILD_" + part] = False
        toolchain.generate()
        CMakeDeps(self).generate()

    def build(self):
        CMake(self).configure()

    def package(self):
        CMake(self).install()
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))

    def package_info(self):
        # The package brings its own files for CMake, with all targets and components.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("share", "cmake", "redlatch")]
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
        if self.settings.os in ("Linux", "FreeBSD"):
            self.cpp_info.system_libs = ["pthread"]
