# SPDX-License-Identifier: MIT
# Succeeds if COMPILER refuses SOURCE for the reason that SOURCE names. The reason alone is not enough, because a
# warning can contain it, too.
file(STRINGS ${SOURCE} expected REGEX "^// expect: " LIMIT_COUNT 1)
string(REGEX REPLACE "^// expect: " "" expected "${expected}")
if(expected STREQUAL "")
    message(FATAL_ERROR "${SOURCE} has no line `// expect: <regex>`")
endif()
list(TRANSFORM INCLUDE_DIRS PREPEND -I)
execute_process(COMMAND ${COMPILER} -std=c++20 -fsyntax-only ${INCLUDE_DIRS} ${SOURCE}
    OUTPUT_VARIABLE said ERROR_VARIABLE said RESULT_VARIABLE status)
if(status EQUAL 0)
    message(FATAL_ERROR "it compiles, and must not")
endif()
if(NOT said MATCHES "${expected}")
    message(FATAL_ERROR "it does not compile, but not because of\n    ${expected}\nThe compiler says\n${said}")
endif()
