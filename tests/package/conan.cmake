# SPDX-License-Identifier: MIT
# Makes the Conan package in BUILD, which is emptied first, and builds and runs a program with it. Conan is a Python
# package, which pip installs below build/ once. Without it the test is skipped.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/python_tool.cmake)
redlatch_python_tool(conan conan 2.34.0)
if(NOT conan)
    message(FATAL_ERROR "No Conan: ${conan_REASON}")
endif()

file(REMOVE_RECURSE ${BUILD})
set(ENV{CONAN_HOME} ${BUILD}/home)
if(COMPILER_ID STREQUAL "GNU")
    set(compiler "compiler=gcc\ncompiler.libcxx=libstdc++11")
else()
    set(compiler "compiler=clang\ncompiler.libcxx=libstdc++11")
endif()
string(REGEX MATCH "^[0-9]+" major ${COMPILER_VERSION})
cmake_host_system_information(RESULT arch QUERY OS_PLATFORM)
string(REPLACE "aarch64" "armv8" arch ${arch})
# Nothing is written into the source tree.
file(WRITE ${BUILD}/profile "[settings]\nos=Linux\narch=${arch}\n${compiler}\ncompiler.version=${major}\n"
    "compiler.cppstd=20\nbuild_type=Debug\n[conf]\ntools.build:compiler_executables={'cpp': '${COMPILER}'}\n"
    "tools.cmake.cmaketoolchain:generator=${GENERATOR}\ntools.cmake.cmaketoolchain:user_presets=\n"
    "tools.cmake.cmake_layout:test_folder=${BUILD}/test\ntools.build:jobs=1\n")

set(options --no-remote --profile:all ${BUILD}/profile)
execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND ${conan} create ${CMAKE_CURRENT_LIST_DIR}/conan/hiredis
    --version 0.14.1 ${options})
# Conan prints the output of programs to stderr.
execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND ${conan} create ${ROOT}/cmake/packaging/conan
    --test-folder ${CMAKE_CURRENT_LIST_DIR}/conan ${options}
    OUTPUT_VARIABLE said ERROR_VARIABLE said ECHO_OUTPUT_VARIABLE ECHO_ERROR_VARIABLE)
if(NOT said MATCHES "(^|\n)${VERSION}\n")
    message(FATAL_ERROR "the program did not print ${VERSION}")
endif()
