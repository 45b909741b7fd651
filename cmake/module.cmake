# SPDX-License-Identifier: MIT
# Adds the target redlatch::module, for programs that say `import redlatch;`. It is built in the build of the program that
# links to it, because a compiled module fits one compiler with one set of flags.
function(redlatch_add_module)
    if(CMAKE_VERSION VERSION_LESS 3.28)
        message(FATAL_ERROR "redlatch::module needs CMake 3.28 or later; this is ${CMAKE_VERSION}")
    endif()
    get_target_property(include_dir redlatch::redlatch HEADER_DIRS)
    add_library(redlatch_module STATIC EXCLUDE_FROM_ALL)
    add_library(redlatch::module ALIAS redlatch_module)
    target_sources(redlatch_module PUBLIC
        FILE_SET CXX_MODULES BASE_DIRS ${include_dir} FILES ${include_dir}/redlatch/redlatch.cppm)
    target_link_libraries(redlatch_module PUBLIC redlatch::redlatch)
endfunction()
