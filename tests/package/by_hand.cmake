# SPDX-License-Identifier: MIT
# Compiles a program by a single command, as a program without CMake does, in BUILD, which is emptied first. FORM is
#   pkg_config     the installed headers, with the flags of pkg-config, after the installation was moved
#   single_header  the installed single header, copied, with the flags of the README
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${BUILD})
file(MAKE_DIRECTORY ${BUILD})
if(FORM STREQUAL "pkg_config")
    file(COPY ${PREFIX}/ DESTINATION ${BUILD}/moved)
    set(ENV{PKG_CONFIG_PATH} ${BUILD}/moved/share/pkgconfig)
    execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND ${PKG_CONFIG} --validate redlatch)
    execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND ${PKG_CONFIG} --modversion redlatch
        OUTPUT_VARIABLE said OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(NOT said STREQUAL VERSION)
        message(FATAL_ERROR "redlatch.pc says ${said} instead of ${VERSION}")
    endif()
    execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND ${PKG_CONFIG} --cflags --libs redlatch
        OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE)
    string(FIND "${flags}" "${PREFIX}/" original)
    if(NOT flags MATCHES "-lhiredis" OR flags MATCHES "-std=" OR NOT original EQUAL -1)
        message(FATAL_ERROR "redlatch.pc has the wrong flags: ${flags}")
    endif()
    set(source small.cpp)
    separate_arguments(flags UNIX_COMMAND "${flags}")
else()
    file(COPY ${PREFIX}/share/redlatch/single_include/redlatch/redlatch.hpp DESTINATION ${BUILD}/redlatch)
    set(source consumer.cpp)
    set(flags -I${BUILD} -lhiredis -pthread)
endif()

# -H prints the headers.
execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND ${COMPILER} -std=c++20 -H ${CMAKE_CURRENT_LIST_DIR}/${source}
    ${flags} -o ${BUILD}/consumer ERROR_VARIABLE headers)
string(FIND "${headers}" ". ${BUILD}/" copied)
string(FIND "${headers}" ". ${PREFIX}/" original)
if(copied EQUAL -1 OR NOT original EQUAL -1)
    message(FATAL_ERROR "the wrong headers were included: ${headers}")
endif()
execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND ${BUILD}/consumer OUTPUT_VARIABLE said)
if(NOT said STREQUAL "${VERSION}\n")
    message(FATAL_ERROR "the program says '${said}' instead of ${VERSION}")
endif()
