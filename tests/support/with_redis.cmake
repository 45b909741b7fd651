# SPDX-License-Identifier: MIT
# Runs PROGRAM with REDLATCH_URL set to a private redis-server on a unix socket in a temporary directory. Removes both
# afterwards, whatever the result. Fails if the program fails.
execute_process(COMMAND mktemp -d OUTPUT_VARIABLE dir OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
set(socket ${dir}/redis.sock)
execute_process(COMMAND redis-server --daemonize yes --port 0 --unixsocket ${socket} --dir ${dir} --save ""
    --logfile ${dir}/log --pidfile ${dir}/pid OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
# The daemon answers a moment after its parent process has ended.
foreach(try RANGE 100)
    execute_process(COMMAND redis-cli -s ${socket} ping OUTPUT_QUIET ERROR_QUIET RESULT_VARIABLE status)
    if(status EQUAL 0)
        break()
    endif()
    execute_process(COMMAND ${CMAKE_COMMAND} -E sleep 0.05)
endforeach()

set(ENV{REDLATCH_URL} unix://${socket})
execute_process(COMMAND ${PROGRAM} TIMEOUT 60 RESULT_VARIABLE status)

execute_process(COMMAND redis-cli -s ${socket} shutdown nosave OUTPUT_QUIET)
file(REMOVE_RECURSE ${dir})
if(NOT status EQUAL 0)
    message(FATAL_ERROR "${PROGRAM} ended with ${status}")
endif()
