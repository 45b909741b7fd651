# SPDX-License-Identifier: MIT
# Writes single_include/redlatch/redlatch.hpp, and separately tls.hpp, which needs OpenSSL, testing.hpp, which needs Lua,
# and asio.hpp, which needs Asio: cmake -P cmake/amalgamate.cmake
# With -DCHECK=ON it writes nothing, and fails if a file is out of date.
#
# Follows the "redlatch/..." includes from redlatch.hpp, and then from tls.hpp, testing.hpp and asio.hpp, each header once, followed by its definitions
# (*.ipp). Standard includes move to the top. The headers in redis/ and net/ are optional: their includes are inside `#if __has_include(...)` and are expanded
# there, together with their standard includes. The other headers of ours that they need are written before the condition, so
# that they exist even if the condition is false.
cmake_minimum_required(VERSION 3.25)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
set(include_dir ${root}/include)
set(single_dir ${root}/single_include/redlatch)

# Splits <text> at its first #if..., #endif or #include line: the text before, the line itself, the text after. Uses strings
# instead of lists, because C++ has many semicolons and brackets.
function(next_directive text before line after)
    string(REGEX MATCH "(^|\n)[ \t]*#[ \t]*(if|endif|include)[^\n]*" match "${text}")
    if(match STREQUAL "")
        set(${before} "${text}" PARENT_SCOPE)
        set(${line} "" PARENT_SCOPE)
        set(${after} "" PARENT_SCOPE)
        return()
    endif()
    string(FIND "${text}" "${match}" begin)
    string(LENGTH "${match}" length)
    math(EXPR end "${begin} + ${length}")
    string(SUBSTRING "${text}" 0 ${begin} head)
    string(SUBSTRING "${text}" ${end} -1 tail)
    set(${before} "${head}" PARENT_SCOPE)
    set(${line} "${match}" PARENT_SCOPE)
    set(${after} "${tail}" PARENT_SCOPE)
endfunction()

# Updates <counter>, the number of open conditions, after <line>.
function(track_depth line counter)
    set(open ${${counter}})
    if(line MATCHES "#[ \t]*if")
        math(EXPR open "${open} + 1")
    elseif(line MATCHES "#[ \t]*endif")
        math(EXPR open "${open} - 1")
    endif()
    set(${counter} ${open} PARENT_SCOPE)
endfunction()

# Reads <header> without its include of its definitions, which <out>_definitions names; and definitions without the include
# of their header.
function(read_header header out)
    if(NOT EXISTS ${include_dir}/${header})
        message(FATAL_ERROR "${header} is included, but there is no such header")
    endif()
    file(READ ${include_dir}/${header} text)
    string(REGEX REPLACE "^// SPDX[^\n]*\n" "" text "${text}")
    string(REGEX REPLACE "(^|\n)#pragma once[^\n]*" "" text "${text}")
    string(REGEX REPLACE "\\.[hi]pp$" "" stem "${header}")
    set(definitions "")
    if(text MATCHES "#ifndef REDLATCH_COMPILED\n#include \"${stem}.ipp\"\n#endif\n")
        string(REPLACE "${CMAKE_MATCH_0}" "" text "${text}")
        set(definitions ${stem}.ipp)
    elseif(header MATCHES "\\.ipp$")
        string(REPLACE "\n#include \"${stem}.hpp\"" "" text "${text}")
    endif()
    set(${out} "${text}" PARENT_SCOPE)
    set(${out}_definitions "${definitions}" PARENT_SCOPE)
endfunction()

function(put text)
    set_property(GLOBAL APPEND_STRING PROPERTY body "${text}")
endfunction()

# Expands the includes of <header>. Of headers in redis/ and net/ it expands only their own needs.
function(expand_needs header)
    read_header(${header} rest)
    while(NOT rest STREQUAL "")
        next_directive("${rest}" before line rest)
        if(line MATCHES "[\"<](redlatch/[^\">]+)[\">]")
            set(needed ${CMAKE_MATCH_1})
            if(needed MATCHES "^redlatch/(redis|net)/")
                expand_needs(${needed})
            else()
                expand(${needed})
            endif()
        endif()
    endwhile()
    if(rest_definitions)
        expand_needs(${rest_definitions})
    endif()
endfunction()

function(expand header)
    get_property(seen GLOBAL PROPERTY seen)
    if(header IN_LIST seen)
        return()
    endif()
    # Definitions follow their header, also if another header's definitions need them first.
    string(REGEX REPLACE "\\.ipp$" ".hpp" declared_in "${header}")
    if(NOT declared_in IN_LIST seen AND NOT declared_in STREQUAL header AND EXISTS ${include_dir}/${declared_in})
        expand(${declared_in})
        return()
    endif()
    set_property(GLOBAL APPEND PROPERTY seen ${header})
    read_header(${header} text)

    # First its includes, then the header itself without those lines.
    set(rest "${text}")
    set(depth 0)
    while(NOT rest STREQUAL "")
        next_directive("${rest}" before line rest)
        track_depth("${line}" depth)
        if(line MATCHES "[\"<](redlatch/[^\">]+)[\">]")
            if(depth EQUAL 0)
                expand(${CMAKE_MATCH_1})
            else()
                expand_needs(${CMAKE_MATCH_1})
            endif()
        endif()
    endwhile()

    string(REGEX REPLACE "(^|\n)[ \t]*#[ \t]*include[^\n]*" "" rest "${text}")
    string(STRIP "${rest}" rest)
    if(rest STREQUAL "") # it has only includes
        return()
    endif()
    put("\n\n// ${header}\n")
    set(rest "${text}")
    set(depth 0)
    while(NOT rest STREQUAL "")
        next_directive("${rest}" before line rest)
        track_depth("${line}" depth)
        put("${before}")
        if(line MATCHES "[\"<](redlatch/[^\">]+)[\">]")
            if(depth GREATER 0)
                expand(${CMAKE_MATCH_1})
            endif()
        elseif(depth EQUAL 0 AND NOT header MATCHES "/(redis|net)/" AND line MATCHES "include[ \t]*(<[^>]+>)")
            set_property(GLOBAL APPEND PROPERTY standard ${CMAKE_MATCH_1})
        else()
            put("${line}")
        endif()
    endwhile()
    if(text_definitions)
        expand(${text_definitions})
    endif()
endfunction()

# Writes or checks the file <name>: the comment <about>, then <includes>, then the text put since the last file.
function(finish name about includes)
    get_property(standard GLOBAL PROPERTY standard)
    list(SORT standard)
    list(REMOVE_DUPLICATES standard)
    list(TRANSFORM standard PREPEND "#include ")
    list(JOIN standard "\n" standard)
    get_property(body GLOBAL PROPERTY body)
    set_property(GLOBAL PROPERTY standard "")
    set_property(GLOBAL PROPERTY body "")

    set(text "// SPDX-License-Identifier: MIT
// ${about} Do not edit it.
#pragma once

${includes}${standard}
${body}
")
    string(REGEX REPLACE "\n\n\n+" "\n\n" text "${text}")
    string(REGEX REPLACE "\n+$" "\n" text "${text}")

    set(single ${single_dir}/${name})
    if(NOT CHECK)
        file(WRITE ${single} "${text}")
        return()
    endif()
    set(present "")
    if(EXISTS ${single})
        file(READ ${single} present)
    endif()
    if(NOT present STREQUAL text)
        message(FATAL_ERROR "single_include/redlatch/${name} is stale. Run: cmake -P cmake/amalgamate.cmake")
    endif()
endfunction()

expand(redlatch/redlatch.hpp)
finish(redlatch.hpp "All of redlatch in one file, written by cmake/amalgamate.cmake from include/redlatch." "")
expand(redlatch/tls.hpp)
finish(tls.hpp "What TLS needs besides, written by cmake/amalgamate.cmake from include/redlatch."
    "#include \"redlatch/redlatch.hpp\"\n\n")
expand(redlatch/testing.hpp)
finish(testing.hpp "A server for unit tests, written by cmake/amalgamate.cmake from include/redlatch."
    "#include \"redlatch/redlatch.hpp\"\n\n")
expand(redlatch/asio.hpp)
finish(asio.hpp "What Asio needs besides, written by cmake/amalgamate.cmake from include/redlatch."
    "#include \"redlatch/redlatch.hpp\"\n\n")

# An unreachable header would silently be missing from the single file.
get_property(seen GLOBAL PROPERTY seen)
file(GLOB_RECURSE headers RELATIVE ${include_dir} ${include_dir}/*.hpp ${include_dir}/*.ipp)
list(REMOVE_ITEM headers ${seen} redlatch/src.hpp)
if(headers)
    list(JOIN headers ", " headers)
    message(FATAL_ERROR "redlatch.hpp does not lead to ${headers}")
endif()
