# SPDX-License-Identifier: MIT
# The Debian package: cpack --config build/CPackConfig.cmake
# It is for all architectures, because it contains no binaries.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME redlatch)
set(CPACK_PACKAGE_VENDOR "the redlatch authors")
set(CPACK_PACKAGE_CONTACT "the redlatch authors")
set(CPACK_PACKAGE_DESCRIPTION
"Locks, fair locks, read-write locks, semaphores and latches that hold across
threads, processes and hosts. They are the same locks as those of Java's
Redisson. This package contains the headers, the single header and the files
for CMake and pkg-config.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
# Whatever the umask of whoever builds the package.
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

set(CPACK_DEBIAN_PACKAGE_NAME libredlatch-dev)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libhiredis-dev (>= 0.14.1)")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libasio-dev, liblua5.1-0-dev, libssl-dev")

# Debian wants the licence under this name, so no other kind of installation has it.
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${CPACK_DEBIAN_PACKAGE_NAME}
    RENAME copyright COMPONENT debian EXCLUDE_FROM_ALL)
set(CPACK_INSTALL_CMAKE_PROJECTS
    ${PROJECT_BINARY_DIR} ${PROJECT_NAME} ALL / ${PROJECT_BINARY_DIR} ${PROJECT_NAME} debian /)
include(CPack)
