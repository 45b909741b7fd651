# SPDX-License-Identifier: MIT
# The module exports every type that fwd.hpp declares.
cmake_minimum_required(VERSION 3.25)
file(READ ${ROOT}/include/redlatch/redlatch.cppm module)
file(STRINGS ${ROOT}/include/redlatch/fwd.hpp lines REGEX "^(class|struct|enum class) [A-Za-z]+")
foreach(line IN LISTS lines)
    string(REGEX REPLACE "^(class|struct|enum class) ([A-Za-z]+).*" "\\2" name "${line}")
    if(NOT module MATCHES "\nusing redlatch::${name}[^A-Za-z_]")
        message(SEND_ERROR "redlatch.cppm does not export ${name}")
    endif()
endforeach()
if(NOT lines)
    message(FATAL_ERROR "fwd.hpp declares nothing")
endif()
