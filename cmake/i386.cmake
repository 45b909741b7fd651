# SPDX-License-Identifier: MIT
# Runs tests as 32-bit programs, on a kernel for x86-64: cmake -P cmake/i386.cmake
# Installs a Debian for i386 below build/ once, with compiler, hiredis and redis-server. In it builds the unit tests of what
# depends on the size of types, tests of an RLock against a real server, and the quickstart, and runs them.
# Needs root (for chroot and mounts) and debootstrap; the tests see another file system, but the same network. The first
# run takes some minutes. `-DTESTS=regex` before `-P` selects other tests, as REDLATCH_TEST_SOURCES does.
cmake_minimum_required(VERSION 3.25)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
set(machine ${root}/build/i386/debian)
if(NOT TESTS)
    set(TESTS "unit/(time|ids|url|names|hold_table|remote_clock|slot_map|reply_reader|wait_loop|wake_pipe|histogram)")
    string(APPEND TESTS "|integration/rlock_waiting")
endif()

execute_process(COMMAND id -u OUTPUT_VARIABLE user OUTPUT_STRIP_TRAILING_WHITESPACE)
find_program(debootstrap NAMES debootstrap PATHS /usr/sbin NO_CACHE)
if(NOT user STREQUAL "0" OR NOT debootstrap)
    message(FATAL_ERROR "This needs root, and debootstrap (Debian, Ubuntu: apt-get install debootstrap).")
endif()

# Runs a command of the other system in a mount namespace of its own, so that nothing stays mounted.
function(inside command)
    execute_process(COMMAND unshare --mount --pid --fork sh -c
        "mount -t proc proc ${machine}/proc && mount --bind /dev ${machine}/dev && exec setarch i686 chroot ${machine} env -i \
            PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive sh -e -c \"$0\"" "${command}"
        RESULT_VARIABLE status)
    if(NOT status EQUAL 0)
        message(FATAL_ERROR "It ended with ${status}: ${command}")
    endif()
endfunction()

if(NOT EXISTS ${machine}/complete)
    file(REMOVE_RECURSE ${machine})
    execute_process(COMMAND ${debootstrap} --arch=i386 --variant=minbase bookworm ${machine} http://deb.debian.org/debian
        RESULT_VARIABLE status)
    if(NOT status EQUAL 0)
        message(FATAL_ERROR "debootstrap ended with ${status}.")
    endif()
    file(COPY /etc/resolv.conf DESTINATION ${machine}/etc FOLLOW_SYMLINK_CHAIN)
    inside("apt-get -q update && apt-get -q -y install --no-install-recommends g++ cmake ninja-build pkg-config \
        redis-server libhiredis-dev doctest-dev")
    file(TOUCH ${machine}/complete)
endif()

file(REMOVE_RECURSE ${machine}/redlatch)
foreach(part IN ITEMS cmake examples include single_include tests CMakeLists.txt LICENSE README.md .github)
    file(COPY ${root}/${part} DESTINATION ${machine}/redlatch)
endforeach()
inside("cd /redlatch
    cmake -S . -B /build -G Ninja -DCMAKE_CXX_COMPILER=g++ -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 \
        -DREDLATCH_TEST_FORMS=compiled -DREDLATCH_BUILD_BENCH=OFF '-DREDLATCH_TEST_SOURCES=${TESTS}'
    ninja -C /build redlatch_unit redlatch_integration quickstart
    echo \"$(g++ -dumpmachine), $(getconf LONG_BIT) bits\"
    ctest --test-dir /build --no-tests=error --output-on-failure -R '^((unit|integration)[.].*|example[.]quickstart)$'")
message("i386: the tests passed")
