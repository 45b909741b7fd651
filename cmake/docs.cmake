# SPDX-License-Identifier: MIT
# Writes the reference to build/docs/html, with the guides and the examples: cmake -P cmake/docs.cmake
# Fails if a public member has no description, and at every other warning of Doxygen. -DOUTPUT=dir before -P writes it
# elsewhere. The comments in the headers are plain: cmake/docs.awk shows Doxygen the headers, cmake/docs.sed the guides.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/setup.cmake)
redlatch_setup(doxygen)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
if(NOT OUTPUT)
    set(OUTPUT ${root}/build/docs)
endif()

# The headers that define something public: those of the top folder, and those that these take it from.
file(GLOB headers ${root}/include/redlatch/*.hpp)
foreach(header IN ITEMS base/credentials base/ids base/time base/tls_options base/url base/version lock/hold
        lock/spin_options protocol/permit_id redis/hiredis_transport semaphore/permits session/any_executor
        session/operation transport/reply transport/transport)
    list(APPEND headers ${root}/include/redlatch/${header}.hpp)
endforeach()
file(GLOB guides ${root}/examples/guides/*.md ${root}/examples/deployments/*.md)

# Each example is a page. Doxygen links a class to the examples that use it.
set(pages "/** @namespace redlatch\nEverything of the library. */\n")
string(APPEND pages "/** @namespace redlatch::testing\nA Redis server inside the process, for unit tests. */\n")
file(GLOB examples RELATIVE ${root}/examples ${root}/examples/*.cpp)
foreach(example IN LISTS examples)
    string(APPEND pages "/** @example ${example} */\n")
endforeach()
file(WRITE ${OUTPUT}/pages.dox "${pages}")

file(READ ${root}/include/redlatch/base/version.hpp version)
string(REGEX MATCHALL "version_[a-z]+ = [0-9]+" version "${version}")
string(REGEX REPLACE "version_[a-z]+ = ([0-9]+);?" "\\1." version "${version}")
string(REGEX REPLACE "\\.$" "" version "${version}")

set(theme /usr/share/doxygen-awesome-css/doxygen-awesome.css)
if(NOT EXISTS ${theme})
    set(theme "")
endif()

set(filter ${CMAKE_CURRENT_LIST_DIR}/docs)
list(JOIN headers "\" \"" headers)
list(JOIN guides "\" \"" guides)
file(WRITE ${OUTPUT}/Doxyfile "
PROJECT_NAME = redlatch
PROJECT_NUMBER = ${version}
OUTPUT_DIRECTORY = \"${OUTPUT}\"
INPUT = \"${OUTPUT}/pages.dox\" \"${root}/README.md\" \"${guides}\" \"${headers}\"
USE_MDFILE_AS_MAINPAGE = \"${root}/README.md\"
FILTER_PATTERNS = \"*.hpp=awk -v self='${filter}.awk' -f '${filter}.awk'\" \"*.md=sed -E -f '${filter}.sed'\"
STRIP_FROM_PATH = \"${root}\"
STRIP_FROM_INC_PATH = \"${root}/include\"
EXAMPLE_PATH = \"${root}/examples\"
HTML_EXTRA_STYLESHEET = \"${theme}\"
GENERATE_LATEX = NO
GENERATE_TAGFILE = \"${OUTPUT}/redlatch.tag\"
GENERATE_TREEVIEW = YES
ENABLE_PREPROCESSING = NO
HAVE_DOT = NO
INLINE_INHERITED_MEMB = YES
JAVADOC_AUTOBRIEF = YES
SHOW_INCLUDE_FILES = NO
SORT_MEMBER_DOCS = NO
SOURCE_TOOLTIPS = NO
VERBATIM_HEADERS = NO
QUIET = YES
WARN_AS_ERROR = FAIL_ON_WARNINGS
")
file(REMOVE_RECURSE ${OUTPUT}/html)
find_program(doxygen NAMES doxygen NO_CACHE)
execute_process(COMMAND ${doxygen} ${OUTPUT}/Doxyfile WORKING_DIRECTORY ${OUTPUT} RESULT_VARIABLE status)
if(NOT status EQUAL 0)
    message(FATAL_ERROR "The reference is not complete: see the messages above.")
endif()

# The module exports every public name of redlatch.hpp.
file(READ ${OUTPUT}/redlatch.tag index)
file(STRINGS ${root}/include/redlatch/redlatch.cppm names REGEX "^using redlatch::")
foreach(name IN LISTS names)
    string(REGEX REPLACE "using redlatch::([A-Za-z_]+).*" "\\1" name "${name}")
    if(NOT index MATCHES ">(redlatch::)?${name}<")
        message(SEND_ERROR "The reference lacks redlatch::${name}: add its header to the list in cmake/docs.cmake")
    endif()
endforeach()

# The links of README and guides lead somewhere.
file(GLOB pages ${OUTPUT}/html/index.html ${OUTPUT}/html/md_*.html)
foreach(page IN LISTS pages)
    file(READ ${page} text)
    string(REGEX MATCHALL "href=\"[^\":#]+[\"#]" links "${text}")
    foreach(link IN LISTS links)
        string(REGEX REPLACE "href=.([^\"#]+)." "\\1" link "${link}")
        if(NOT EXISTS ${OUTPUT}/html/${link})
            message(SEND_ERROR "${page} leads to ${link}, which is not there")
        endif()
    endforeach()
endforeach()
message(NOTICE "${OUTPUT}/html/index.html")
