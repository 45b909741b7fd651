# SPDX-License-Identifier: MIT
# Writes the reference, an HTML page for each public class, to build/docs/html: cmake -P cmake/docs.cmake
# Fails if a public member has no description, and at every other warning of Doxygen. -DOUTPUT=dir before -P writes it
# elsewhere. The comments in the headers are plain; cmake/docs.awk shows them to Doxygen.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/setup.cmake)
redlatch_setup(doxygen)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
if(NOT OUTPUT)
    set(OUTPUT ${root}/build/docs)
endif()

# The headers that define something public: those of the top folder, and those that they take it from.
file(GLOB headers ${root}/include/redlatch/*.hpp)
list(APPEND headers ${root}/include/redlatch/lock/hold.hpp ${root}/include/redlatch/lock/spin_options.hpp)
foreach(header IN ITEMS base/credentials base/ids base/time base/tls_options base/url base/version protocol/permit_id
        redis/hiredis_transport semaphore/permits session/any_executor session/operation transport/reply
        transport/transport)
    list(APPEND headers ${root}/include/redlatch/${header}.hpp)
endforeach()

# A page for each example: its first comment, then its code. Doxygen links classes to the examples that use them.
set(pages "/** @mainpage redlatch\n")
string(APPEND pages "The public classes and functions. The guides say how they are used, and why.\n")
string(APPEND pages "*/\n")
string(APPEND pages "/** @namespace redlatch\nEverything of the library. */\n")
string(APPEND pages "/** @namespace redlatch::testing\nA Redis server inside the process, for unit tests. */\n")
file(GLOB examples RELATIVE ${root}/examples ${root}/examples/*.cpp)
foreach(example IN LISTS examples)
    string(APPEND pages "/** @example ${example} */\n")
endforeach()
file(WRITE ${OUTPUT}/pages.dox "${pages}")

list(JOIN headers "\" \"" inputs)
set(theme /usr/share/doxygen-awesome-css/doxygen-awesome.css)
if(NOT EXISTS ${theme})
    set(theme "")
endif()
set(filter "awk -v self='${CMAKE_CURRENT_LIST_DIR}/docs.awk' -f '${CMAKE_CURRENT_LIST_DIR}/docs.awk'")
file(READ ${root}/include/redlatch/base/version.hpp version)
string(REGEX MATCHALL "version_[a-z]+ = [0-9]+" version "${version}")
list(TRANSFORM version REPLACE ".* " "")
list(JOIN version "." version)

file(WRITE ${OUTPUT}/Doxyfile "
PROJECT_NAME = redlatch
PROJECT_NUMBER = ${version}
OUTPUT_DIRECTORY = \"${OUTPUT}\"
INPUT = \"${OUTPUT}/pages.dox\" \"${inputs}\"
FILTER_PATTERNS = \"*.hpp=${filter}\"
STRIP_FROM_PATH = \"${root}/include\"
STRIP_FROM_INC_PATH = \"${root}/include\"
EXAMPLE_PATH = \"${root}/examples\"
HTML_EXTRA_STYLESHEET = \"${theme}\"
JAVADOC_AUTOBRIEF = YES
ENABLE_PREPROCESSING = NO
SORT_MEMBER_DOCS = NO
INLINE_INHERITED_MEMB = YES
GENERATE_LATEX = NO
GENERATE_TREEVIEW = YES
DISABLE_INDEX = NO
HAVE_DOT = NO
CLASS_GRAPH = NO
SHOW_INCLUDE_FILES = NO
VERBATIM_HEADERS = NO
QUIET = YES
WARN_AS_ERROR = FAIL_ON_WARNINGS
")
file(REMOVE_RECURSE ${OUTPUT}/html)
find_program(doxygen NAMES doxygen NO_CACHE)
execute_process(COMMAND ${doxygen} ${OUTPUT}/Doxyfile WORKING_DIRECTORY ${OUTPUT} RESULT_VARIABLE status)
if(NOT status EQUAL 0)
    message(FATAL_ERROR "The reference is not complete: see the warnings above.")
endif()
message(NOTICE "${OUTPUT}/html/index.html")
