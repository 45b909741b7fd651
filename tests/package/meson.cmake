# SPDX-License-Identifier: MIT
# Builds and runs a Meson project with redlatch as a subproject in BUILD, which is emptied first. Meson is a Python package,
# which pip installs below build/ once. Without it the test is skipped.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/python_tool.cmake)
find_program(ninja NAMES ninja NO_CACHE)
set(meson_REASON "it needs ninja")
if(ninja)
    redlatch_python_tool(meson meson 1.12.1)
endif()
if(NOT meson)
    message(FATAL_ERROR "No Meson: ${meson_REASON}")
endif()

file(REMOVE_RECURSE ${BUILD})
file(COPY ${CMAKE_CURRENT_LIST_DIR}/meson/meson.build ${CMAKE_CURRENT_LIST_DIR}/small.cpp DESTINATION ${BUILD}/source)
file(COPY ${ROOT}/include ${ROOT}/cmake/packaging/meson/meson.build DESTINATION ${BUILD}/source/subprojects/redlatch)
set(ENV{CXX} ${COMPILER})
# The subproject, also where redlatch is installed.
execute_process(COMMAND_ERROR_IS_FATAL ANY
    COMMAND ${meson} setup --wrap-mode=forcefallback ${BUILD}/build ${BUILD}/source)
execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND ${meson} compile -C ${BUILD}/build -j 1)
execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND ${BUILD}/build/consumer OUTPUT_VARIABLE said)
if(NOT said STREQUAL "${VERSION}\n")
    message(FATAL_ERROR "the program says '${said}' instead of ${VERSION}")
endif()
