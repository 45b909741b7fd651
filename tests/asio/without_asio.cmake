# SPDX-License-Identifier: MIT
# Checks that redlatch.hpp, src.hpp and the single header include no header of Asio or Boost, and that their text does not
# mention it, even where Asio is installed: cmake -DCOMPILER=c++ -P without_asio.cmake
cmake_minimum_required(VERSION 3.25)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH tests)
cmake_path(GET tests PARENT_PATH root)
foreach(form IN ITEMS include/redlatch/redlatch.hpp include/redlatch/src.hpp single_include/redlatch/redlatch.hpp)
    string(REGEX REPLACE "/redlatch/.*" "" folder ${form})
    execute_process(COMMAND ${COMPILER} -std=c++20 -E -I${root}/${folder} -x c++ ${root}/${form}
        OUTPUT_VARIABLE text ERROR_VARIABLE errors RESULT_VARIABLE failed)
    if(failed)
        message(FATAL_ERROR "${form} cannot be preprocessed:\n${errors}")
    endif()
    string(LENGTH "${text}" length)
    if(length LESS 100000)
        message(FATAL_ERROR "${form}: ${length} characters cannot be all of it")
    endif()
    # The path of this copy of redlatch may contain the words.
    string(REPLACE "${root}" "" text "${text}")
    if(text MATCHES "[^\n]*(asio|boost)(::|/|[.]hpp)[^\n]*")
        message(FATAL_ERROR "${form} contains ${CMAKE_MATCH_0}")
    endif()
endforeach()
