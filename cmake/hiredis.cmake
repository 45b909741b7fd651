# SPDX-License-Identifier: MIT
# Builds a current hiredis beside the system's, for tests: cmake -P cmake/hiredis.cmake
# Downloads the Python package of that name with pip and builds its C source as a static library. Prints the folder for
# -DCMAKE_PREFIX_PATH in the last line.
cmake_minimum_required(VERSION 3.25)

set(redlatch_hiredis_package 3.5.0) # hiredis 1.5.0
set(redlatch_hiredis_sha256 c227592cc56b7df247abe4755c26723965be68972be2149fa441ac33d82131ba)

# Sets <out> to the folder with include/hiredis/ and lib/libhiredis.a. Without a network, pip or a C compiler <out> is
# empty, and <out>_REASON holds the reason. A further argument is the target of a cross compiler: aarch64-linux-gnu.
function(redlatch_current_hiredis out)
    cmake_path(GET CMAKE_CURRENT_FUNCTION_LIST_DIR PARENT_PATH root)
    set(work ${root}/build/hiredis)
    set(compilers cc gcc clang clang-14)
    set(archiver ar)
    if(ARGC GREATER 1)
        string(APPEND work -${ARGV1})
        set(compilers ${ARGV1}-gcc)
        set(archiver ${ARGV1}-ar)
    endif()
    set(prefix ${work}/${redlatch_hiredis_package})
    set(${out} "" PARENT_SCOPE)
    if(EXISTS ${prefix}/lib/libhiredis.a) # gets this name only when it is complete
        set(${out} ${prefix} PARENT_SCOPE)
        return()
    endif()

    find_program(python NAMES python3 NO_CACHE)
    find_program(cc NAMES ${compilers} NO_CACHE)
    find_program(ar NAMES ${archiver} NO_CACHE)
    foreach(tool IN ITEMS python cc ar)
        if(NOT ${tool})
            set(${out}_REASON "there is no ${tool} here" PARENT_SCOPE)
            return()
        endif()
    endforeach()

    file(REMOVE_RECURSE ${work}/new)
    file(MAKE_DIRECTORY ${work}/new/include/hiredis ${work}/new/lib ${work}/new/source)
    file(WRITE ${work}/new/wanted "hiredis==${redlatch_hiredis_package} --hash=sha256:${redlatch_hiredis_sha256}\n")
    # pip runs the package's setup.py, which needs setuptools: those of the system if installed, otherwise pip gets them.
    foreach(isolation IN ITEMS "--no-build-isolation" "")
        execute_process(
            COMMAND ${python} -m pip download -q --disable-pip-version-check --timeout 20 --retries 1 ${isolation}
                --no-deps --no-binary :all: --require-hashes -r ${work}/new/wanted -d ${work}/new
            TIMEOUT 120 RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE said)
        file(GLOB archive ${work}/new/hiredis-*.tar.gz)
        if(archive)
            break()
        endif()
    endforeach()
    if(NOT archive)
        string(STRIP "${said}" said)
        string(REGEX REPLACE ".*\n" "" said "${said}") # keeps the last line
        set(${out}_REASON "pip could not get it: ${said}" PARENT_SCOPE)
        return()
    endif()
    file(ARCHIVE_EXTRACT INPUT ${archive} DESTINATION ${work}/new/source)
    set(source ${work}/new/source/hiredis-${redlatch_hiredis_package}/vendor/hiredis)

    set(objects "")
    foreach(part IN ITEMS alloc async hiredis net read sds sockcompat)
        execute_process(COMMAND ${cc} -std=c99 -O2 -g -fPIC -w -c ${source}/${part}.c -o ${work}/new/source/${part}.o
            RESULT_VARIABLE status ERROR_VARIABLE said)
        if(NOT status EQUAL 0)
            set(${out}_REASON "${part}.c could not be compiled: ${said}" PARENT_SCOPE)
            return()
        endif()
        list(APPEND objects ${work}/new/source/${part}.o)
    endforeach()
    execute_process(COMMAND ${ar} rcs ${work}/new/lib/libhiredis.a ${objects} COMMAND_ERROR_IS_FATAL ANY)
    file(GLOB headers ${source}/*.h)
    file(COPY ${headers} DESTINATION ${work}/new/include/hiredis)
    file(REMOVE_RECURSE ${prefix})
    file(RENAME ${work}/new ${prefix})
    set(${out} ${prefix} PARENT_SCOPE)
endfunction()

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
    redlatch_current_hiredis(prefix)
    if(NOT prefix)
        message(FATAL_ERROR "No current hiredis: ${prefix_REASON}")
    endif()
    execute_process(COMMAND ${CMAKE_COMMAND} -E echo ${prefix})
endif()
