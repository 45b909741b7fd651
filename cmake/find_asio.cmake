# SPDX-License-Identifier: MIT
# Finds what the tests and examples of redlatch/asio.hpp need: the folder of standalone Asio as REDLATCH_ASIO_DIR, that of
# Boost as REDLATCH_BOOST_DIR. A variable is false if the library is missing or too old.

# redlatch_find_asio(<out> <version header> <macro> <least>): compares the number in the header.
function(redlatch_find_asio out header macro least)
    find_path(${out} ${header})
    mark_as_advanced(${out})
    if(NOT ${out})
        return()
    endif()
    file(STRINGS ${${out}}/${header} line REGEX "#define ${macro} [0-9]+")
    if(NOT line MATCHES "${macro} ([0-9]+)" OR CMAKE_MATCH_1 LESS least)
        message(STATUS "${${out}}/${header}: too old for redlatch/asio.hpp")
        set(${out} FALSE PARENT_SCOPE)
    endif()
endfunction()

redlatch_find_asio(REDLATCH_ASIO_DIR asio/version.hpp ASIO_VERSION 102200)
redlatch_find_asio(REDLATCH_BOOST_DIR boost/asio/version.hpp BOOST_ASIO_VERSION 102200)

# Asio 1.22 does not know that clang has coroutines with libstdc++, too.
set(REDLATCH_ASIO_DEFINITIONS "")
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    set(REDLATCH_ASIO_DEFINITIONS ASIO_HAS_CO_AWAIT ASIO_HAS_STD_COROUTINE)
endif()
