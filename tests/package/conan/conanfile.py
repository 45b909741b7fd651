# SPDX-License-Identifier: MIT
# Builds and runs the project find_package with the package that the recipe makes.
import os

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout


class Consumer(ConanFile):
    settings = "os", "arch", "compiler", "build_type"
    generators = ("CMakeDeps",)

    def requirements(self):
        self.requires(self.tested_reference_str)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["SOURCE"] = "small.cpp"
        toolchain.cache_variables["EXPECTED_HIREDIS"] = "hiredis::hiredis"
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure(build_script_folder=os.path.join("..", "find_package"))
        cmake.build()

    def test(self):
        self.run(os.path.join(self.cpp.build.bindir, "consumer"), env="conanrun")
