# SPDX-License-Identifier: MIT
# Runs BENCH with --svg, for an instant. Checks that the drawing is well-formed, needs nothing from elsewhere, and has a bar
# for each ratio that was printed and a panel for each of the SCENARIOS.
# SVG=file and LINES=file check a drawing and the JSON lines of its run, without a run.
cmake_minimum_required(VERSION 3.25)

if(BENCH)
    set(SVG ${WORK}/drawing.svg)
    set(LINES ${WORK}/drawing.json)
    file(REMOVE ${SVG})
    execute_process(COMMAND ${BENCH} --scenario ${SCENARIOS} --link unix --seconds 0.1 --svg ${SVG}
        OUTPUT_FILE ${LINES} COMMAND_ERROR_IS_FATAL ANY)
endif()
file(READ ${SVG} svg)
file(STRINGS ${LINES} lines)

# Fails unless the text has <number> matches of the regular expression.
function(expect_matches number regex)
    string(REGEX MATCHALL "${regex}" found "${svg}")
    list(LENGTH found count)
    if(NOT count EQUAL number)
        message(SEND_ERROR "${SVG}: ${count} instead of ${number} matches of ${regex}")
    endif()
endfunction()

# CMake's lists have a meaning for these.
string(REGEX REPLACE "[][\\;]" " " svg "${svg}")

# --- well-formed ---------------------------------------------------------------------------------------------------

set(text "([^<>&]|&(amp|lt|gt|quot);)*")
set(attribute "[ \n]+[a-zA-Z][a-zA-Z0-9:-]*=\"([^<>&\"]|&(amp|lt|gt|quot);)*\"")
string(REGEX MATCHALL "<[^>]*>" tags "${svg}")
set(open "")
set(elements 0)
foreach(tag IN LISTS tags)
    if(tag MATCHES "^</([a-z]+)>$")
        set(closed ${CMAKE_MATCH_1})
        list(POP_BACK open opened)
        if(NOT opened STREQUAL closed)
            message(FATAL_ERROR "${SVG}: </${closed}> ends <${opened}>")
        endif()
        continue()
    endif()
    if(NOT tag MATCHES "^<[a-z]+(${attribute})*[ \n]*/?>$")
        message(FATAL_ERROR "${SVG}: ${tag} is not a tag")
    endif()
    if(NOT open)
        math(EXPR elements "${elements} + 1")
    endif()
    if(NOT tag MATCHES "/>$")
        string(REGEX REPLACE "^<([a-z]+).*$" "\\1" name "${tag}")
        list(APPEND open ${name})
    endif()
endforeach()
if(open OR NOT elements EQUAL 1)
    message(FATAL_ERROR "${SVG}: ${elements} outermost elements, and these have no end: ${open}")
endif()
string(REGEX REPLACE "<[^>]*>" "" between "${svg}")
if(NOT between MATCHES "^${text}$")
    message(FATAL_ERROR "${SVG}: a bare <, > or & in the text")
endif()
expect_matches(1 "^<svg xmlns=\"http://www.w3.org/2000/svg\" ")

# --- self-contained ------------------------------------------------------------------------------------------------

expect_matches(0 "<script|href|url *\\(|@import|@font-face")
expect_matches(1 "prefers-color-scheme: dark")

# --- what was printed ----------------------------------------------------------------------------------------------

set(ratios 0)
set(printed "")
foreach(line IN LISTS lines)
    string(JSON scenario GET "${line}" scenario)
    list(APPEND printed ${scenario})
    string(JSON unit GET "${line}" unit)
    if(NOT unit STREQUAL "ratio")
        continue()
    endif()
    math(EXPR ratios "${ratios} + 1")
    string(JSON subject GET "${line}" subject)
    string(JSON metric GET "${line}" metric)
    # As it is written there: string(JSON) changes the digits of a number.
    string(REGEX REPLACE "^.*\"value\":([^,}]+).*$" "\\1" value "${line}")
    string(FIND "${svg}" "<title>${scenario} ${subject} ${metric} ${value}</title></rect>" found)
    if(found EQUAL -1)
        message(SEND_ERROR "${SVG} has no bar for ${line}")
    endif()
endforeach()
if(ratios EQUAL 0)
    message(FATAL_ERROR "${LINES} has no ratio")
endif()
list(REMOVE_DUPLICATES printed)
list(LENGTH printed panels)
expect_matches(${ratios} "<rect class=\"bar ")
expect_matches(${panels} "<g class=\"panel\">")
