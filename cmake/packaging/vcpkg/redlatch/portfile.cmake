# SPDX-License-Identifier: MIT
# The port for vcpkg, of the checkout that contains it: vcpkg install redlatch --overlay-ports=cmake/packaging/vcpkg
set(VCPKG_BUILD_TYPE release) # header-only
cmake_path(SET source NORMALIZE ${CURRENT_PORT_DIR}/../../../..)

vcpkg_cmake_configure(SOURCE_PATH ${source} OPTIONS
    -DREDLATCH_BUILD_TESTS=OFF -DREDLATCH_BUILD_EXAMPLES=OFF -DREDLATCH_BUILD_BENCH=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH share/cmake/redlatch)
vcpkg_fixup_pkgconfig()
file(REMOVE_RECURSE ${CURRENT_PACKAGES_DIR}/share/doc)
vcpkg_install_copyright(FILE_LIST ${source}/LICENSE)
