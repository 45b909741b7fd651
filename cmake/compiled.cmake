# SPDX-License-Identifier: MIT
# Adds the target redlatch::compiled: the library compiled once, in the build of the program that links to it, so with the
# flags of that program. It is built only if something links to it.
function(redlatch_add_compiled)
    set(source ${CMAKE_CURRENT_BINARY_DIR}/redlatch_compiled.cpp)
    file(CONFIGURE OUTPUT ${source} CONTENT "#include <redlatch/src.hpp>\n")
    add_library(redlatch_compiled STATIC EXCLUDE_FROM_ALL ${source})
    add_library(redlatch::compiled ALIAS redlatch_compiled)
    set_target_properties(redlatch_compiled PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_compile_definitions(redlatch_compiled PUBLIC REDLATCH_COMPILED)
    target_link_libraries(redlatch_compiled PUBLIC redlatch::redlatch)
endfunction()
