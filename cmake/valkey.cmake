# SPDX-License-Identifier: MIT
# Gets a Valkey beside the system's Redis, for tests: cmake -P cmake/valkey.cmake
# Downloads the package valkey-tools of the running Debian or Ubuntu release, or of its backports, and unpacks it in the
# build tree. Installs nothing. Prints the value for REDLATCH_REDIS_SERVER in the last line.
cmake_minimum_required(VERSION 3.25)

# Sets <out> to the path of a valkey-server that runs here. If none is available, <out> is empty, and <out>_REASON holds
# the reason.
function(redlatch_valkey out)
    cmake_path(GET CMAKE_CURRENT_FUNCTION_LIST_DIR PARENT_PATH root)
    set(work ${root}/build/valkey)
    set(server ${work}/usr/bin/valkey-server)
    set(${out} "" PARENT_SCOPE)

    find_program(apt_get NAMES apt-get NO_CACHE)
    find_program(dpkg_deb NAMES dpkg-deb NO_CACHE)
    if(NOT apt_get OR NOT dpkg_deb)
        set(${out}_REASON "it takes apt-get and dpkg-deb" PARENT_SCOPE)
        return()
    endif()
    if(NOT EXISTS ${server})
        file(REMOVE_RECURSE ${work})
        file(MAKE_DIRECTORY ${work}/lists/partial ${work}/archives/partial)
        execute_process(COMMAND ${apt_get} -q download valkey-tools WORKING_DIRECTORY ${work}
            TIMEOUT 120 OUTPUT_QUIET ERROR_QUIET RESULT_VARIABLE status)
        if(NOT status EQUAL 0)
            # Backports come from the same mirror as the system's packages. They get separate package lists.
            cmake_host_system_information(RESULT release QUERY DISTRIB_VERSION_CODENAME)
            execute_process(
                COMMAND ${apt_get} indextargets --format "$(RELEASE) $(REPO_URI) $(COMPONENT)" "Created-By: Packages"
                OUTPUT_VARIABLE sources ERROR_QUIET)
            if(NOT sources MATCHES "(^|\n)${release} ([^ ]+) ([a-z]+)")
                set(${out}_REASON "apt-get does not know where the packages of ${release} are" PARENT_SCOPE)
                return()
            endif()
            file(WRITE ${work}/sources.list "deb ${CMAKE_MATCH_2} ${release}-backports ${CMAKE_MATCH_3}\n")
            set(apt ${apt_get} -q -o Dir::Etc::sourcelist=${work}/sources.list -o Dir::Etc::sourceparts=-
                -o Dir::State::lists=${work}/lists -o Dir::Cache=${work} -o Acquire::http::Timeout=20 -o Acquire::Retries=1)
            execute_process(COMMAND ${apt} update TIMEOUT 120 OUTPUT_QUIET ERROR_QUIET)
            execute_process(COMMAND ${apt} download valkey-tools WORKING_DIRECTORY ${work}
                TIMEOUT 120 OUTPUT_QUIET ERROR_QUIET)
        endif()
        file(GLOB package ${work}/valkey-tools_*.deb)
        if(NOT package)
            set(${out}_REASON "apt-get has no valkey-tools for ${release}, or does not reach it" PARENT_SCOPE)
            return()
        endif()
        execute_process(COMMAND ${dpkg_deb} -x ${package} ${work} OUTPUT_QUIET ERROR_QUIET)
        file(CREATE_LINK valkey-check-rdb ${server} SYMBOLIC) # one program, whose name selects its function
    endif()
    execute_process(COMMAND ${server} --version OUTPUT_QUIET ERROR_VARIABLE said RESULT_VARIABLE status)
    if(NOT status EQUAL 0)
        set(${out}_REASON "it does not run here: ${said}" PARENT_SCOPE)
        return()
    endif()
    set(${out} ${server} PARENT_SCOPE)
endfunction()

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
    redlatch_valkey(server)
    if(NOT server)
        message(FATAL_ERROR "No Valkey: ${server_REASON}")
    endif()
    execute_process(COMMAND ${CMAKE_COMMAND} -E echo ${server})
endif()
