# SPDX-License-Identifier: MIT
# Configures and builds PROJECT in BUILD, which is emptied first. Runs its program `consumer`, if there is one, and
# expects it to print the version.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${BUILD})
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
cmake_path(GET root PARENT_PATH root)
execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND ${CMAKE_COMMAND} -S ${PROJECT} -B ${BUILD} -G ${GENERATOR}
    -DCMAKE_CXX_COMPILER=${COMPILER} -DREDLATCH_ROOT=${root} -DREDLATCH_VERSION=${VERSION} ${OPTIONS})
execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND ${CMAKE_COMMAND} --build ${BUILD})
if(EXISTS ${BUILD}/consumer)
    execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND ${BUILD}/consumer OUTPUT_VARIABLE said)
    if(NOT said STREQUAL "${VERSION}\n")
        message(FATAL_ERROR "the program says '${said}' instead of ${VERSION}")
    endif()
elseif(NOT PROJECT MATCHES "wrong_version|components")
    message(FATAL_ERROR "there is no program")
endif()
