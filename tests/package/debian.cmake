# SPDX-License-Identifier: MIT
# Builds the Debian package in BUILD, which is emptied first, checks it, and unpacks it in BUILD/root.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${BUILD})
execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND ${CMAKE_COMMAND} -S ${ROOT} -B ${BUILD}/build -G ${GENERATOR}
    -DCMAKE_CXX_COMPILER=${COMPILER}
    -DREDLATCH_BUILD_TESTS=OFF -DREDLATCH_BUILD_EXAMPLES=OFF -DREDLATCH_BUILD_BENCH=OFF)
execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND ${CPACK} --config ${BUILD}/build/CPackConfig.cmake -B ${BUILD})
set(package ${BUILD}/libredlatch-dev_${VERSION}_all.deb)

foreach(expected IN ITEMS "Package=libredlatch-dev" "Version=${VERSION}" "Architecture=all" "Section=libdevel"
        "Depends=libhiredis-dev (>= 0.14.1)")
    string(REGEX MATCH "^[^=]+" field "${expected}")
    execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND ${DPKG_DEB} --field ${package} ${field}
        OUTPUT_VARIABLE said OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(NOT "${field}=${said}" STREQUAL expected)
        message(FATAL_ERROR "${field} is '${said}', not as in '${expected}'")
    endif()
endforeach()

execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND ${DPKG_DEB} --extract ${package} ${BUILD}/root)
foreach(file IN ITEMS doc/libredlatch-dev/copyright doc/redlatch/LICENSE doc/redlatch/CHANGELOG.md pkgconfig/redlatch.pc
        cmake/redlatch/redlatchConfig.cmake redlatch/single_include/redlatch/redlatch.hpp
        redlatch/single_include/redlatch/tls.hpp)
    if(NOT EXISTS ${BUILD}/root/usr/share/${file})
        message(FATAL_ERROR "the package has no usr/share/${file}")
    endif()
endforeach()
file(GLOB_RECURSE wanted RELATIVE ${ROOT}/include ${ROOT}/include/*pp ${ROOT}/include/*.cppm)
file(GLOB_RECURSE headers RELATIVE ${BUILD}/root/usr/include ${BUILD}/root/usr/include/*)
if(NOT headers STREQUAL wanted)
    message(FATAL_ERROR "the package has the headers ${headers} instead of ${wanted}")
endif()
# Nothing but headers and texts, and nothing outside of these folders.
file(GLOB_RECURSE others RELATIVE ${BUILD}/root ${BUILD}/root/*)
list(FILTER others EXCLUDE REGEX "^usr/(include/redlatch|share/(cmake/redlatch|doc|pkgconfig|redlatch))/")
if(others)
    message(FATAL_ERROR "the package has more than it should: ${others}")
endif()
