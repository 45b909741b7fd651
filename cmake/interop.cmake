# SPDX-License-Identifier: MIT
# Checks that C++ programs and an unchanged Java Redisson share their locks: cmake -P cmake/interop.cmake [-- FairLock]
# Gets Redisson through Maven, runs it and redlatch side by side on private servers, and prints a table. The table is run on
# single servers, and on a cluster with sharded and with classic pub/sub.
#   -- FairLock        selects rows
#   -DREDISSON=4.6.0   uses another version than that of the pom
#   -DSOAK=60          lets four processes of each language contend for every kind of lock, for 60 seconds each
#   -DSERVERS=single   uses only one of single, sharded and classic
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/setup.cmake)
redlatch_setup(compiler make pkg-config hiredis redis jdk maven)

cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
set(build ${root}/build/interop)
set(java ${root}/tests/interop/java)
find_program(mvn NAMES mvn NO_CACHE REQUIRED)
find_program(javac NAMES javac NO_CACHE REQUIRED)
find_program(java_command NAMES java NO_CACHE REQUIRED)

# Each version has its own folder of jars, so only the first run needs Maven.
file(READ ${java}/pom.xml pom)
if(NOT pom MATCHES "<redisson.version>([^<]+)<")
    message(FATAL_ERROR "${java}/pom.xml does not say which Redisson to take")
endif()
set(wanted ${CMAKE_MATCH_1})
if(REDISSON)
    set(wanted ${REDISSON})
endif()
function(get_jars version folder out)
    if(NOT EXISTS ${folder}/complete)
        execute_process(
            COMMAND ${mvn} -q -B -f ${java}/pom.xml -Dredisson.version=${version} -DoutputDirectory=${folder}
                dependency:copy-dependencies
            RESULT_VARIABLE status)
        if(NOT status EQUAL 0)
            set(${out} FALSE PARENT_SCOPE)
            return()
        endif()
        file(TOUCH ${folder}/complete)
    endif()
    set(${out} TRUE PARENT_SCOPE)
endfunction()
set(jars ${build}/redisson-${wanted})
get_jars(${wanted} ${jars} found)
if(NOT found AND NOT REDISSON)
    message(NOTICE "There is no Redisson ${wanted} to be had; trying the newest 4.x.")
    set(jars ${build}/redisson-4)
    get_jars("[4.0,5.0)" ${jars} found)
endif()
if(NOT found)
    message(FATAL_ERROR "Maven could not get Redisson.")
endif()

set(classes ${build}/classes)
file(REMOVE_RECURSE ${classes})
execute_process(COMMAND ${javac} -Xlint:all -Werror -d ${classes} -cp "${jars}/*" ${java}/Agent.java
    RESULT_VARIABLE status)
if(NOT status EQUAL 0)
    message(FATAL_ERROR "The Java agent could not be compiled.")
endif()
redlatch_build(built ${build} STDERR TARGETS redlatch_interop OPTIONS
    -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_CXX_FLAGS_DEBUG=-O0 -g1" -DREDLATCH_BUILD_INTEROP=ON
    -DREDLATCH_BUILD_TESTS=OFF -DREDLATCH_BUILD_EXAMPLES=OFF -DREDLATCH_BUILD_BENCH=OFF)
if(NOT built)
    message(FATAL_ERROR "The C++ half could not be built.")
endif()

redlatch_script_arguments(words)
list(JOIN words " " words)
execute_process(COMMAND ${build}/bin/redlatch_interop ${java_command} "${classes}:${jars}/*" "${words}" "0${SOAK}" ${SERVERS}
    WORKING_DIRECTORY ${build} RESULT_VARIABLE status)
if(NOT status EQUAL 0)
    message(FATAL_ERROR "redlatch and Redisson differ; what the agents printed is in ${build}/redlatch_interop.log")
endif()
