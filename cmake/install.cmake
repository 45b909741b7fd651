# SPDX-License-Identifier: MIT
# Installs headers and package files. The modules that find hiredis and Lua are included, because
# consumers need them, too.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_DATADIR}/cmake/redlatch)
install(TARGETS redlatch redlatch_openssl redlatch_testing redlatch_asio EXPORT redlatchTargets FILE_SET HEADERS)
install(EXPORT redlatchTargets NAMESPACE redlatch:: DESTINATION ${package_dir})

write_basic_package_version_file(${PROJECT_BINARY_DIR}/redlatchConfigVersion.cmake
    COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES
    ${PROJECT_BINARY_DIR}/redlatchConfigVersion.cmake
    ${PROJECT_SOURCE_DIR}/cmake/compiled.cmake
    ${PROJECT_SOURCE_DIR}/cmake/redlatchConfig.cmake
    ${PROJECT_SOURCE_DIR}/cmake/FindRedlatchHiredis.cmake
    ${PROJECT_SOURCE_DIR}/cmake/FindRedlatchLua.cmake
    DESTINATION ${package_dir})
