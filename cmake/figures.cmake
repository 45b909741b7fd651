# SPDX-License-Identifier: MIT
# Prints figures about the shape of the library: cmake -P cmake/figures.cmake
# Each line is a name and a value. Compare the figures before a change with those after it.
#   -DROOT=dir   describes another checkout
# The comments below define the figures. The last two need g++, hiredis, gdb and a Redis server. If one of these is
# missing, they are `unknown`.
cmake_minimum_required(VERSION 3.25)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
if(ROOT)
    cmake_path(ABSOLUTE_PATH ROOT BASE_DIRECTORY ${CMAKE_SOURCE_DIR} NORMALIZE OUTPUT_VARIABLE root)
endif()
set(include_dir ${root}/include)
set(figures "")

macro(print name value)
    string(APPEND figures "${name} ${value}\n")
endmacro()

function(count_lines file out)
    file(READ ${file} text)
    string(REGEX REPLACE "[^\n]+" "" text "${text}")
    string(LENGTH "${text}" count)
    set(${out} ${count} PARENT_SCOPE)
endfunction()

# Reads a file without the characters that have a meaning in CMake's lists.
function(read_text file out)
    file(READ ${file} text)
    string(REGEX REPLACE "[][\\]" " " text "${text}")
    string(REPLACE ";" "%" text "${text}")
    set(${out} "${text}" PARENT_SCOPE)
endfunction()

# --- sizes ---------------------------------------------------------------------------------------------------------

file(GLOB_RECURSE headers RELATIVE ${include_dir} ${include_dir}/*.hpp ${include_dir}/*.ipp)
list(LENGTH headers count)
if(count EQUAL 0)
    message(FATAL_ERROR "${include_dir} has no headers")
endif()
set(sizes "")
set(folders "")
set(lines 0)
set(above_350 0)
set(above_450 0)
foreach(header IN LISTS headers)
    count_lines(${include_dir}/${header} size)
    list(APPEND sizes "${size} ${header}")
    math(EXPR lines "${lines} + ${size}")
    foreach(limit IN ITEMS 350 450)
        if(size GREATER limit)
            math(EXPR above_${limit} "${above_${limit}} + 1")
        endif()
    endforeach()
    cmake_path(GET header PARENT_PATH folder)
    if(NOT folder IN_LIST folders)
        list(APPEND folders ${folder})
        set(lines_of_${folder} 0)
    endif()
    math(EXPR lines_of_${folder} "${lines_of_${folder}} + ${size}")
endforeach()
list(SORT sizes COMPARE NATURAL)
# The p-th percentile is the size that p% of the headers do not exceed.
foreach(percentile IN ITEMS 50 90 100)
    math(EXPR index "(${count} * ${percentile} + 99) / 100 - 1")
    list(GET sizes ${index} p${percentile})
endforeach()
string(REGEX REPLACE " .*" "" p50 "${p50}")
string(REGEX REPLACE " .*" "" p90 "${p90}")
set(largest_folder_lines 0)
foreach(folder IN LISTS folders)
    if(lines_of_${folder} GREATER largest_folder_lines)
        set(largest_folder ${folder})
        set(largest_folder_lines ${lines_of_${folder}})
    endif()
endforeach()
math(EXPR share "(${largest_folder_lines} * 100 + ${lines} / 2) / ${lines}")
print(headers ${count})
print(lines ${lines})
print(lines_median ${p50})
print(lines_p90 ${p90})
print(lines_largest "${p100}")
print(headers_above_350_lines ${above_350})
print(headers_above_450_lines ${above_450})
print(largest_folder_share "${share}% ${largest_folder}")

# --- includes ------------------------------------------------------------------------------------------------------

foreach(header IN LISTS headers)
    file(STRINGS ${include_dir}/${header} targets REGEX "^[ \t]*#[ \t]*include[ \t]*\"redlatch/")
    list(TRANSFORM targets REPLACE "^[^\"]*\"([^\"]+)\".*$" "\\1")
    if(header MATCHES "\\.ipp$") # its header includes it at the end
        string(REGEX REPLACE "\\.ipp$" ".hpp" declarations ${header})
        list(REMOVE_ITEM targets ${declarations})
    endif()
    set(includes_of_${header} ${targets})
endforeach()

# Sets <out> to the header and all headers of ours that it includes, directly or not.
function(closure header out)
    set(found ${header})
    set(to_visit ${header})
    while(to_visit)
        list(POP_FRONT to_visit next)
        foreach(target IN LISTS includes_of_${next})
            if(NOT target IN_LIST found)
                list(APPEND found ${target})
                list(APPEND to_visit ${target})
            endif()
        endforeach()
    endwhile()
    set(${out} ${found} PARENT_SCOPE)
endfunction()

# The depth is the number of headers in the longest chain from redlatch.hpp. Each round takes away the headers whose own
# includes are all gone, which are the ends of chains.
closure(redlatch/redlatch.hpp left)
set(depth 0)
while(left)
    set(next "")
    foreach(header IN LISTS left)
        foreach(target IN LISTS includes_of_${header})
            if(target IN_LIST left)
                list(APPEND next ${header})
                break()
            endif()
        endforeach()
    endforeach()
    if(next STREQUAL left)
        set(depth "unknown (the includes form a cycle)")
        break()
    endif()
    set(left ${next})
    math(EXPR depth "${depth} + 1")
endwhile()
print(include_depth "${depth}")

closure(redlatch/rlock.hpp pulled_in)
list(LENGTH pulled_in pulled_in)
math(EXPR pulled_in "${pulled_in} - 1")
print(headers_in_rlock ${pulled_in})

file(GLOB singles RELATIVE ${root}/single_include ${root}/single_include/redlatch/*.hpp)
foreach(single IN LISTS singles)
    count_lines(${root}/single_include/${single} size)
    print("lines_single_include/${single}" ${size})
endforeach()

# --- types and loops -----------------------------------------------------------------------------------------------

# These figures rely on the layout by clang-format: nothing at namespace scope is indented, and a block ends at the
# indentation of its head.
#
# A class template on the transport is defined at namespace scope and has a parameter T. T means the transport, but not
# in base/ (once core/).
#
# A public type is a name that class, struct, enum or using declares at namespace scope, in namespace redlatch and in no
# namespace `detail`.
#
# A wait loop checks the stop token of a request. Only a thread that waits for its turn has a request. The value names
# the headers of the loops.
set(on_transport 0)
set(public_types "")
set(wait_loops "")
set(parameter_t "template <([^\n]*, )?(class|typename|Transport) T( = [A-Za-z_]+)?[,>][^\n]*\n(requires[^\n]*\n)?")
foreach(header IN LISTS headers)
    read_text(${include_dir}/${header} text)

    if(NOT header MATCHES "^redlatch/(base|core)/")
        string(REGEX MATCHALL "\n${parameter_t}(class|struct) [^{%]*{" found "${text}")
        list(LENGTH found found)
        math(EXPR on_transport "${on_transport} + ${found}")
    endif()

    set(scope "")
    set(scope_or_type "(inline )?namespace [^\n]*{|}  // namespace|(class|struct|enum|using) [^\n]*")
    string(REGEX MATCHALL "\n(${scope_or_type})" found "${text}")
    foreach(line IN LISTS found)
        if(line MATCHES "namespace ([a-z0-9_:]+) {")
            list(APPEND scope ${CMAKE_MATCH_1})
        elseif(line MATCHES "}  // namespace")
            list(POP_BACK scope)
        elseif(scope MATCHES "^redlatch" AND NOT scope MATCHES "detail" AND
               line MATCHES "^\n(class|struct|enum|using) (class |struct )?(  [^ ]+  )?([A-Za-z_]+)( [:{=f]|%|<|$)")
            list(APPEND public_types ${CMAKE_MATCH_4})
        endif()
    endforeach()

    if(text MATCHES "request\\.stop\\.stop_requested\\(\\)")
        string(REPLACE "\n" ";" text_lines "${text}")
        set(loops "")  # the indentations of the loops around the line, the innermost last
        foreach(line IN LISTS text_lines)
            string(REGEX REPLACE "[^ ].*$" "" indentation "${line}")
            string(LENGTH "${indentation}" indentation)
            while(loops AND line MATCHES "[^ ]")
                list(GET loops -1 innermost)
                if(indentation GREATER innermost)
                    break()
                endif()
                list(POP_BACK loops)
            endwhile()
            if(line MATCHES "^ *(for|while|do) ")
                list(APPEND loops ${indentation})
            endif()
            if(loops AND line MATCHES "request\\.stop\\.stop_requested\\(\\)")
                list(APPEND wait_loops ${header})
            endif()
        endforeach()
    endif()
endforeach()
list(REMOVE_DUPLICATES public_types)
list(LENGTH public_types public_types_count)
list(LENGTH wait_loops wait_loops_count)
list(JOIN wait_loops " " wait_loops)
print(class_templates_on_transport ${on_transport})
print(public_types ${public_types_count})
print(wait_loops "${wait_loops_count} ${wait_loops}")

# --- from lock() to send() -----------------------------------------------------------------------------------------

# Sets <out> to gdb's backtrace of ::send() in the second lock() of an RLock that nobody else wants. On failure <out> is
# empty, and <out>_REASON holds the reason.
function(backtrace_of_send out)
    set(${out} "" PARENT_SCOPE)
    set(server "$ENV{REDLATCH_REDIS_SERVER}")
    if(NOT server)
        unset(server)
        find_program(server NAMES redis-server NO_CACHE)
    endif()
    find_program(gdb NAMES gdb NO_CACHE)
    find_program(compiler NAMES g++ NO_CACHE)
    foreach(tool IN ITEMS gdb server compiler)
        if(NOT ${tool})
            set(${out}_REASON "no ${tool}" PARENT_SCOPE)
            return()
        endif()
    endforeach()

    # The path of a socket must be short.
    execute_process(COMMAND mktemp -d OUTPUT_VARIABLE work OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    file(WRITE ${work}/lock.cpp [[
#include <redlatch/rlock.hpp>

void next_lock() {}

int main(int, char** arguments) {
    redlatch::Client redis{arguments[1]};
    redlatch::RLock lock{redis, "figures"};
    lock.lock();
    lock.unlock();
    next_lock();
    lock.lock();
    lock.unlock();
}
]])
    file(WRITE ${work}/commands [[
set width 0
set height 0
set breakpoint pending on
set disable-randomization off
set print frame-arguments none
set print entry-values no
break next_lock
run
break send thread 1
break sendto thread 1
continue
backtrace
kill
]])
    execute_process(
        COMMAND ${compiler} -std=c++20 -O0 -g1 -I${include_dir} ${work}/lock.cpp -o ${work}/lock -lhiredis -pthread
        RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
    if(failed)
        set(${out}_REASON "a program with one RLock does not compile" PARENT_SCOPE)
    else()
        execute_process(
            COMMAND ${server} --port 0 --unixsocket ${work}/socket --dir ${work} --pidfile ${work}/pid --save ""
                --daemonize yes --logfile ${work}/log
            OUTPUT_QUIET ERROR_QUIET)
        foreach(attempt RANGE 50)
            if(EXISTS ${work}/pid)
                break()
            endif()
            execute_process(COMMAND sleep 0.1)
        endforeach()
        set(said "")
        if(EXISTS ${work}/pid)
            execute_process(COMMAND ${gdb} -nx -batch -x ${work}/commands --args ${work}/lock unix://${work}/socket
                TIMEOUT 30 OUTPUT_VARIABLE said ERROR_QUIET)
            file(STRINGS ${work}/pid pid)
            execute_process(COMMAND sh -c "kill \"$0\"" ${pid} ERROR_QUIET)
        endif()
        if(said MATCHES "\n(#0 .*[^\n]*main \\([^\n]*)")
            set(${out} "${CMAKE_MATCH_1}" PARENT_SCOPE)
        else()
            set(${out}_REASON "no server or no backtrace" PARENT_SCOPE)
        endif()
    endif()
    file(REMOVE_RECURSE ${work})
endfunction()

# A frame counts if its code is in a header of ours: gdb prints no namespace for a lambda. A file is re-entered if it
# appears again after another header of ours.
backtrace_of_send(backtrace)
if(backtrace)
    string(REGEX MATCHALL " at [^ \n]*/include/redlatch/[^ :\n]+" places "${backtrace}")
    list(LENGTH places frames)
    set(seen "")
    set(reentered "")
    set(last "")
    foreach(place IN LISTS places)
        string(REGEX REPLACE "^.*/include/" "" file "${place}")
        if(NOT file STREQUAL last AND file IN_LIST seen)
            list(APPEND reentered ${file})
        endif()
        list(APPEND seen ${file})
        set(last ${file})
    endforeach()
    list(REMOVE_DUPLICATES reentered)
    list(LENGTH reentered count)
    list(JOIN reentered " " reentered)
    print(frames_to_send ${frames})
    print(files_reentered "${count} ${reentered}")
else()
    print(frames_to_send "unknown (${backtrace_REASON})")
    print(files_reentered "unknown (${backtrace_REASON})")
endif()

string(STRIP "${figures}" figures)
string(REGEX REPLACE " +\n" "\n" figures "${figures}")
execute_process(COMMAND ${CMAKE_COMMAND} -E echo "${figures}")
