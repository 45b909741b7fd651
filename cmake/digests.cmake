# SPDX-License-Identifier: MIT
# Writes the SHA-1 digests of the scripts into include/redlatch/scripts: cmake -P cmake/digests.cmake
# A compiler needs seconds to compute them, and would do so for each source file that includes the library. So each script
# that a call names has a line `digested<scripts::name>` below its text. This script computes them by the same function of
# the library, in a program of its own.
# -DCHECK=ON changes nothing, and fails if a digest is wrong or missing.
cmake_minimum_required(VERSION 3.25)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
set(work ${root}/build/digests)
find_program(compiler NAMES c++ g++ clang++ clang++-14 NO_CACHE REQUIRED)

# The scripts that calls name.
file(GLOB_RECURSE users ${root}/include/redlatch/*.[hi]pp)
set(names "")
foreach(user IN LISTS users)
    file(READ ${user} text)
    string(REGEX MATCHALL "digested<scripts::[a-z_]+>" found "${text}")
    list(APPEND names ${found})
endforeach()
list(REMOVE_DUPLICATES names)
list(TRANSFORM names REPLACE "digested<scripts::(.*)>" "\\1")
list(SORT names)

file(GLOB headers ${root}/include/redlatch/scripts/*.hpp)
set(program "#include <cstdio>\n\n#include <redlatch/testing/sha1.hpp>\n")
foreach(header IN LISTS headers)
    string(APPEND program "#include \"${header}\"\n")
endforeach()
string(APPEND program [[
using namespace redlatch::detail;

static void print(const char* name, std::string_view text) {
    const auto digest = sha1_hex(text);
    std::printf("%s=%.*s\n", name, static_cast<int>(digest.size()), digest.data());
}

int main() {
]])
foreach(name IN LISTS names)
    string(APPEND program "    print(\"${name}\", scripts::${name}.join());\n")
endforeach()
file(WRITE ${work}/digests.cpp "${program}}\n")
execute_process(COMMAND ${compiler} -std=c++20 -I${root}/include ${work}/digests.cpp -o ${work}/digests
    COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${work}/digests OUTPUT_VARIABLE digests COMMAND_ERROR_IS_FATAL ANY)

set(stale "")
foreach(header IN LISTS headers)
    cmake_path(GET header FILENAME file)
    # CMake's lists have a meaning for semicolons and brackets, so the text stays one string.
    file(READ ${header} text)
    string(REGEX REPLACE "\n// The digests, written by cmake/digests.cmake\\.\n.*\n(}  // namespace detail\n}  // namespace [A-Za-z0-9_]+\n)" "\n\\1" bare "${text}")
    set(lines "")
    foreach(name IN LISTS names)
        # The text that a call names is in namespace scripts, not in scripts::parts: the last one of that name.
        if(bare MATCHES "inline constexpr ScriptText ${name}[ {=]")
            if(NOT "\n${digests}" MATCHES "\n${name}=([0-9a-f]+)")
                message(FATAL_ERROR "no digest of ${name}")
            endif()
            string(APPEND lines
                "template <>\ninline constexpr Script digested<scripts::${name}>{scripts::${name},\n    \"${CMAKE_MATCH_1}\"};\n")
        endif()
    endforeach()
    if(NOT lines)
        continue()
    endif()
    string(REGEX REPLACE "\n(}  // namespace detail\n}  // namespace [A-Za-z0-9_]+\n)"
        "\n// The digests, written by cmake/digests.cmake.\n// clang-format off\n${lines}// clang-format on\n\n\\1" wanted "${bare}")
    if(NOT wanted STREQUAL text)
        list(APPEND stale ${file})
        if(NOT CHECK)
            file(WRITE ${header} "${wanted}")
        endif()
    endif()
endforeach()
if(stale AND CHECK)
    list(JOIN stale ", " stale)
    message(FATAL_ERROR "Run cmake -P cmake/digests.cmake: the digests of these are not those of their scripts: ${stale}")
elseif(stale)
    list(JOIN stale ", " stale)
    message(STATUS "written: ${stale}")
endif()
