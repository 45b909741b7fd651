# SPDX-License-Identifier: MIT
# Installs headers, package files, the single header and the licence. The modules that find hiredis and Lua are included,
# because consumers need them, too.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_DATADIR}/cmake/redlatch)
install(TARGETS redlatch redlatch_openssl redlatch_testing redlatch_asio EXPORT redlatchTargets FILE_SET HEADERS)
install(EXPORT redlatchTargets NAMESPACE redlatch:: DESTINATION ${package_dir})
install(FILES ${PROJECT_SOURCE_DIR}/include/redlatch/redlatch.cppm DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/redlatch)
# Not in the include folder, because the header tree has a file of the same name.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/single_include DESTINATION ${CMAKE_INSTALL_DATADIR}/redlatch
    FILES_MATCHING PATTERN *.hpp)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/.github/CHANGELOG.md
    DESTINATION ${CMAKE_INSTALL_DOCDIR})

write_basic_package_version_file(${PROJECT_BINARY_DIR}/redlatchConfigVersion.cmake
    COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES
    ${PROJECT_BINARY_DIR}/redlatchConfigVersion.cmake
    ${PROJECT_SOURCE_DIR}/cmake/compiled.cmake
    ${PROJECT_SOURCE_DIR}/cmake/module.cmake
    ${PROJECT_SOURCE_DIR}/cmake/redlatchConfig.cmake
    ${PROJECT_SOURCE_DIR}/cmake/FindRedlatchHiredis.cmake
    ${PROJECT_SOURCE_DIR}/cmake/FindRedlatchLua.cmake
    DESTINATION ${package_dir})

# An absolute folder stays as it is.
file(RELATIVE_PATH pc_to_prefix ${CMAKE_INSTALL_FULL_DATADIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" pc_to_prefix "${pc_to_prefix}")
set(pc_includedir "\${prefix}")
cmake_path(APPEND pc_includedir "${CMAKE_INSTALL_INCLUDEDIR}")
set(pc_dl "")
if(CMAKE_DL_LIBS)
    list(TRANSFORM CMAKE_DL_LIBS PREPEND " -l" OUTPUT_VARIABLE pc_dl)
    list(JOIN pc_dl "" pc_dl)
endif()
configure_file(${PROJECT_SOURCE_DIR}/cmake/packaging/redlatch.pc.in ${PROJECT_BINARY_DIR}/redlatch.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/redlatch.pc DESTINATION ${CMAKE_INSTALL_DATADIR}/pkgconfig)

# The packages of a surrounding project are its own.
if(PROJECT_IS_TOP_LEVEL)
    include(${PROJECT_SOURCE_DIR}/cmake/packaging/debian.cmake)
endif()
