# SPDX-License-Identifier: MIT
# Stands for the package hiredis: that of the system, so that the test needs no packages from elsewhere.
from conan import ConanFile


class Hiredis(ConanFile):
    name = "hiredis"
    package_type = "shared-library"

    def package_info(self):
        self.cpp_info.includedirs = []
        self.cpp_info.libdirs = []
        self.cpp_info.bindirs = []
        self.cpp_info.system_libs = ["hiredis"]
