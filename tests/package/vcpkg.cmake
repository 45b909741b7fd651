# SPDX-License-Identifier: MIT
# Runs the vcpkg port with stand-ins for vcpkg's functions, in BUILD, which is emptied first. They configure and install
# as vcpkg does, into BUILD/installed. So this shows that the port's options and paths fit the project, and not that
# vcpkg itself accepts it.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${BUILD})
set(CURRENT_PORT_DIR ${ROOT}/cmake/packaging/vcpkg/redlatch)
set(CURRENT_PACKAGES_DIR ${BUILD}/installed)

file(READ ${CURRENT_PORT_DIR}/vcpkg.json manifest)
string(JSON name GET "${manifest}" name)
string(JSON version GET "${manifest}" version)
string(JSON dependency GET "${manifest}" dependencies 0)
if(NOT "${name} ${version} ${dependency}" STREQUAL "redlatch ${VERSION} hiredis")
    message(FATAL_ERROR "vcpkg.json is for ${name} ${version} on ${dependency}, not for redlatch ${VERSION} on hiredis")
endif()

function(vcpkg_cmake_configure)
    cmake_parse_arguments(PARSE_ARGV 0 arg "" SOURCE_PATH OPTIONS)
    execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND ${CMAKE_COMMAND} -S ${arg_SOURCE_PATH} -B ${BUILD}/build
        -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_INSTALL_PREFIX=${CURRENT_PACKAGES_DIR}
        -DCMAKE_BUILD_TYPE=Release ${arg_OPTIONS})
endfunction()

function(vcpkg_cmake_install)
    execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND ${CMAKE_COMMAND} --build ${BUILD}/build --target install)
endfunction()

# vcpkg moves the folder to share/redlatch, and corrects the depth in it.
function(vcpkg_cmake_config_fixup)
    cmake_parse_arguments(PARSE_ARGV 0 arg "" CONFIG_PATH "")
    file(MAKE_DIRECTORY ${CURRENT_PACKAGES_DIR}/share/redlatch)
    file(GLOB files ${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH}/*)
    file(COPY ${files} DESTINATION ${CURRENT_PACKAGES_DIR}/share/redlatch)
    file(REMOVE_RECURSE ${CURRENT_PACKAGES_DIR}/share/cmake)
    file(READ ${CURRENT_PACKAGES_DIR}/share/redlatch/redlatchTargets.cmake text)
    set(up "get_filename_component(_IMPORT_PREFIX \"\${_IMPORT_PREFIX}\" PATH)\n")
    string(REPLACE "${up}${up}" "${up}" text "${text}")
    file(WRITE ${CURRENT_PACKAGES_DIR}/share/redlatch/redlatchTargets.cmake "${text}")
endfunction()

function(vcpkg_fixup_pkgconfig)
    if(NOT EXISTS ${CURRENT_PACKAGES_DIR}/share/pkgconfig/redlatch.pc)
        message(FATAL_ERROR "there is no share/pkgconfig/redlatch.pc")
    endif()
endfunction()

function(vcpkg_install_copyright)
    cmake_parse_arguments(PARSE_ARGV 0 arg "" "" FILE_LIST)
    file(COPY_FILE ${arg_FILE_LIST} ${CURRENT_PACKAGES_DIR}/share/redlatch/copyright)
endfunction()

include(${CURRENT_PORT_DIR}/portfile.cmake)

# vcpkg installs each feature and each build type itself.
if(EXISTS ${CURRENT_PACKAGES_DIR}/debug OR EXISTS ${CURRENT_PACKAGES_DIR}/share/doc)
    message(FATAL_ERROR "the port installs debug/ or share/doc/")
endif()
