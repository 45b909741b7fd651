# SPDX-License-Identifier: MIT
# Checks the includes below include/redlatch. Each folder is a layer. A layer may include itself and:
#   quorum                  lock and what is below it
#   around                  lock, semaphore and what is below them: what stands on both
#   lock, semaphore         wait and what is below it
#   wait                    session and what is below it: how callers wait for their turn
#   session                 protocol, scripts, transport, base
#   protocol                scripts, transport, base: calls and replies as values, no I/O
#   redis                   net, transport, base: connections to servers; only the public headers include it
#   net                     transport, base
#   scripts, transport      base
#   testing                 transport, base: a server inside the process; only testing.hpp includes it
# The public headers are beside the folders and may include all of them. All folders except scripts may also include the
# vocabulary: error.hpp, inspection.hpp and options.hpp.
# Only redis, net and testing may include third-party headers, and asio.hpp those of Asio. Include cycles are errors.
# All declarations must be in the inline namespace REDLATCH_ABI, which names the version (major and minor). A header that
# names it must include base/config.hpp, which defines it, directly or not.
# Tests that also run on the single header include the public headers, and the others through tests/support.
cmake_minimum_required(VERSION 3.25)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
set(include_dir ${root}/include)

set(below_base base vocabulary)
set(below_vocabulary base transport)
set(below_transport transport base vocabulary)
set(below_scripts scripts base)
set(below_protocol protocol scripts transport base vocabulary)
set(below_session session ${below_protocol})
set(below_wait wait ${below_session})
set(below_semaphore semaphore ${below_wait})
set(below_lock lock ${below_wait})
set(below_quorum quorum ${below_lock})
set(below_around around semaphore ${below_lock})
set(below_net net transport base vocabulary)
set(below_redis redis ${below_net})
set(below_testing testing ${below_transport})
set(below_public public vocabulary quorum around semaphore redis net testing ${below_lock})
set(vocabulary redlatch/error.hpp redlatch/inspection.hpp redlatch/options.hpp)

# Standard headers have no suffix. POSIX and Linux headers are those in these folders and with these names.
set(system_folders "(sys|netinet|arpa|net|linux)/[a-z_]+")
set(system_names "errno|fcntl|netdb|poll|pthread|signal|time|unistd")
set(system_headers "^([a-z_]+|${system_folders}\\.h|(${system_names})\\.h)$")

function(layer_of header out)
    if(header MATCHES "^redlatch/([a-z_]+)/")
        set(${out} ${CMAKE_MATCH_1} PARENT_SCOPE)
    elseif(header IN_LIST vocabulary)
        set(${out} vocabulary PARENT_SCOPE)
    else()
        set(${out} public PARENT_SCOPE)
    endif()
endfunction()

function(complain text)
    set_property(GLOBAL APPEND PROPERTY complaints "${text}")
endfunction()

file(STRINGS ${include_dir}/redlatch/base/version.hpp lines REGEX "version_(major|minor) = ")
string(REGEX REPLACE "^.*version_major = ([0-9]+).*version_minor = ([0-9]+).*$" "v\\1_\\2" version "${lines}")
file(STRINGS ${include_dir}/redlatch/base/config.hpp lines REGEX "define REDLATCH_ABI ")
if(NOT "${lines}" STREQUAL "#define REDLATCH_ABI ${version}_compiled;#define REDLATCH_ABI ${version}")
    complain("base/config.hpp: the inline namespaces are not ${version} and ${version}_compiled: ${lines}")
endif()

file(GLOB_RECURSE headers RELATIVE ${include_dir} ${include_dir}/*.hpp ${include_dir}/*.ipp)
foreach(header IN LISTS headers)
    file(READ ${include_dir}/${header} text)
    string(REGEX MATCHALL "\nnamespace redlatch[^\n]*\n[^\n]*" begins "${text}")
    foreach(begin IN LISTS begins)
        if(NOT begin STREQUAL "\nnamespace redlatch {\ninline namespace REDLATCH_ABI {")
            complain("${header}: not in the inline namespace REDLATCH_ABI: ${begin}")
        endif()
    endforeach()
    string(REGEX MATCH "inline namespace REDLATCH_ABI" in_namespace_${header} "${text}")
    layer_of(${header} layer)
    if(NOT DEFINED below_${layer})
        complain("${header}: there is no layer '${layer}'")
        continue()
    endif()
    file(STRINGS ${include_dir}/${header} lines REGEX "^[ \t]*#[ \t]*include")
    foreach(line IN LISTS lines)
        string(REGEX REPLACE "^[^\"<]*[\"<]([^\">]+)[\">].*$" "\\1" target "${line}")
        string(REGEX REPLACE "\\.hpp$" ".ipp" definitions "${header}")
        if(target STREQUAL definitions) # at the end of the header, so the definitions may include it
            continue()
        endif()
        if(target MATCHES "^redlatch/")
            layer_of(${target} target_layer)
            if(NOT EXISTS ${include_dir}/${target})
                complain("${header}: there is no ${target}")
            elseif(NOT target_layer IN_LIST below_${layer})
                complain("${header}: ${layer} must not include ${target}")
            elseif(target_layer STREQUAL "testing" AND NOT "${layer};${header}" MATCHES
                    "^(testing;|public;redlatch/testing.hpp$)")
                complain("${header}: only redlatch/testing.hpp includes ${target}")
            endif()
            list(APPEND includes_of_${header} ${target})
        elseif(line MATCHES "\"")
            complain("${header}: write \"redlatch/...\" instead of \"${target}\"")
        elseif(NOT target MATCHES "${system_headers}" AND NOT layer MATCHES "^(redis|net|testing)$"
            AND NOT (header STREQUAL "redlatch/asio.hpp" AND target MATCHES "^(asio|boost/asio|boost/system)[/.]"))
            complain("${header}: <${target}> belongs in redis/ or net/")
        endif()
    endforeach()
endforeach()

# Walks down from <header>. A header that is already on the path means a cycle. Afterwards it is known of each header
# whether it includes base/config.hpp.
function(walk header way)
    get_property(done GLOBAL PROPERTY done)
    if(header IN_LIST way)
        list(JOIN way " -> " way)
        complain("a cycle: ${way} -> ${header}")
    elseif(NOT header IN_LIST done)
        list(APPEND way ${header})
        foreach(target IN LISTS includes_of_${header})
            walk(${target} "${way}")
            get_property(configured GLOBAL PROPERTY configured)
            if(target STREQUAL "redlatch/base/config.hpp" OR target IN_LIST configured)
                set_property(GLOBAL APPEND PROPERTY configured ${header})
            endif()
        endforeach()
        get_property(configured GLOBAL PROPERTY configured)
        if(in_namespace_${header} AND NOT header IN_LIST configured)
            complain("${header}: REDLATCH_ABI is not defined, because redlatch/base/config.hpp is not included")
        endif()
        set_property(GLOBAL APPEND PROPERTY done ${header})
    endif()
endfunction()
foreach(header IN LISTS headers)
    walk(${header} "")
endforeach()

# The single headers are public ones, so a test that includes another header does not compile with them.
foreach(kind unit integration faults stress)
    file(GLOB_RECURSE tests RELATIVE ${root} ${root}/tests/${kind}/*.cpp ${root}/tests/${kind}/*.hpp)
    foreach(test IN LISTS tests)
        file(STRINGS ${root}/${test} lines REGEX "^#include <redlatch/[a-z_]+/")
        foreach(line IN LISTS lines)
            complain("${test}: reach it through tests/support: ${line}")
        endforeach()
    endforeach()
endforeach()

get_property(complaints GLOBAL PROPERTY complaints)
if(complaints)
    list(JOIN complaints "\n  " complaints)
    message(FATAL_ERROR "The layers are not kept:\n  ${complaints}")
endif()
