# SPDX-License-Identifier: MIT
# redlatch_python_tool(<out> <package> <version>) sets <out> to the program of a Python package of that name. pip installs
# it in an environment of its own below build/, once. Without a network or pip <out> is empty, and <out>_REASON holds the
# reason.
function(redlatch_python_tool out package version)
    cmake_path(SET root NORMALIZE ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../..)
    set(dir ${root}build/${package}/${version})
    set(${out} "" PARENT_SCOPE)
    if(NOT EXISTS ${dir}/complete)
        find_program(python NAMES python3 NO_CACHE)
        if(NOT python)
            set(${out}_REASON "there is no python3 here" PARENT_SCOPE)
            return()
        endif()
        file(REMOVE_RECURSE ${dir})
        foreach(arguments IN ITEMS "${python};-m;venv;${dir}"
                "${dir}/bin/python;-m;pip;install;-q;--disable-pip-version-check;--timeout;20;--retries;1;${package}==${version}")
            execute_process(COMMAND ${arguments} TIMEOUT 240 RESULT_VARIABLE status OUTPUT_VARIABLE said ERROR_VARIABLE said)
            if(NOT status EQUAL 0)
                string(STRIP "${said}" said)
                string(REGEX REPLACE ".*\n" "" said "${said}") # keeps the last line
                set(${out}_REASON "pip could not get ${package} ${version}: ${said}" PARENT_SCOPE)
                return()
            endif()
        endforeach()
        file(TOUCH ${dir}/complete)
    endif()
    set(${out} ${dir}/bin/${package} PARENT_SCOPE)
endfunction()
