# SPDX-License-Identifier: MIT
# Compiles several test sources as one. That takes half the time, because what they have in common is instantiated once.
set(REDLATCH_TEST_BATCH 1 CACHE STRING "How many test sources are compiled as one")

# Replaces the sources in the list <name> of the program <program> by files that include REDLATCH_TEST_BATCH of them each.
# Each source is in a namespace of its own, so everything that sources include comes before the first of them. A source
# that defines something for the whole program, or a macro, is still compiled alone.
function(batch_sources name program)
    if(REDLATCH_TEST_BATCH LESS 2)
        return()
    endif()
    set(alone "")
    set(together "")
    foreach(source IN LISTS ${name})
        file(STRINGS ${source} fixed REGEX "^(#define|extern|int main|namespace [a-z]|template <>|void[*] operator new)")
        if(fixed)
            list(APPEND alone ${source})
        else()
            list(APPEND together ${source})
        endif()
    endforeach()
    set(${name} ${alone})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${together}) # for a new include

    list(LENGTH together left)
    set(number 0)
    while(left)
        list(SUBLIST together 0 ${REDLATCH_TEST_BATCH} batch)
        list(REMOVE_ITEM together ${batch})
        list(LENGTH together left)
        math(EXPR number "${number} + 1")

        set(includes "")
        set(bodies "")
        foreach(source IN LISTS batch)
            file(STRINGS ${source} lines REGEX "^#include ")
            list(APPEND includes ${lines})
            cmake_path(GET source STEM stem)
            string(APPEND bodies "namespace ${stem}_source {\n#include \"${source}\"\n}\n")
        endforeach()
        list(REMOVE_DUPLICATES includes)
        foreach(renaming IN ITEMS integration/lock/lock_kinds.hpp support/any_server.hpp) # see any_server.hpp: it is the last
            if("#include \"${renaming}\"" IN_LIST includes)
                list(REMOVE_ITEM includes "#include \"${renaming}\"")
                list(APPEND includes "#include \"${renaming}\"")
            endif()
        endforeach()
        list(JOIN includes "\n" head)
        set(file ${CMAKE_CURRENT_BINARY_DIR}/batches/${program}_${number}.cpp)
        file(CONFIGURE OUTPUT ${file} CONTENT "${head}\n\n${bodies}")
        # g++ takes what is in an included file for shared.
        set_source_files_properties(${file} PROPERTIES
            COMPILE_OPTIONS "$<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>")
        list(APPEND ${name} ${file})
    endwhile()
    set(${name} ${${name}} PARENT_SCOPE)
endfunction()
