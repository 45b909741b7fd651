# SPDX-License-Identifier: MIT
# Runs tests as programs for aarch64, on a Linux for another processor: cmake -P cmake/aarch64.cmake
# Compiles them with Debian's cross compiler, against a hiredis of its own (cmake/hiredis.cmake), and runs them in QEMU's
# emulation of a processor. Servers run as ever. The tests are the unit tests, those of locks on a real server, and the
# quickstart, but for tests that start another program, because the kernel cannot start one of another processor.
# `-DTESTS=regex` before `-P` selects other tests, as REDLATCH_TEST_SOURCES does.
cmake_minimum_required(VERSION 3.25)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
include(${CMAKE_CURRENT_LIST_DIR}/setup.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/hiredis.cmake)
redlatch_setup(make aarch64 emulator redis redis-cli doctest)
redlatch_current_hiredis(hiredis aarch64-linux-gnu)
if(NOT hiredis)
    message(FATAL_ERROR "No hiredis for aarch64: ${hiredis_REASON}")
endif()
if(NOT TESTS)
    set(TESTS "unit/|integration/(rlock_(protocol|lease|watchdog)|grants|fenced_grants|fair_grants|async_lock|upkeep|inspect)_test")
endif()

set(build ${root}/build/aarch64)
file(CONFIGURE OUTPUT ${build}/toolchain.cmake @ONLY CONTENT [[
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static)
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu @hiredis@)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
]])
# Emulation is as slow as a sanitizer, so the same bounds on time suit it.
execute_process(COMMAND ${CMAKE_COMMAND} -S ${root} -B ${build} -G Ninja --toolchain ${build}/toolchain.cmake
    -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_CXX_FLAGS_DEBUG=-O0 -DREDLATCH_SANITIZED"
    -DREDLATCH_TEST_FORMS=compiled -DREDLATCH_BUILD_BENCH=OFF
    -DREDLATCH_TEST_SOURCES=${TESTS} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${build} --target redlatch_unit redlatch_integration quickstart
    COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_CTEST_COMMAND} --test-dir ${build} --no-tests=error --output-on-failure
    --label-regex "^(unit|integration)$" --exclude-regex "^unit[.](checkers|kit|suspended)_test$" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} "-DPROGRAM=qemu-aarch64-static;${build}/bin/quickstart"
    -P ${root}/tests/support/with_redis.cmake COMMAND_ERROR_IS_FATAL ANY)
message("aarch64: the tests passed")
