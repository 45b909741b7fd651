// SPDX-License-Identifier: MIT
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <hiredis/hiredis.h>

#include <iostream>
#include <string_view>

#include "process.hpp"

// The standard library counts the references to an exception in code that ThreadSanitizer does not see. It takes the end
// of the last one for a race with the reads of another thread, which has dropped its reference. The destructor of a
// standard exception is such code as well: the report does not name the function that calls it.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
    return "race:std::__exception_ptr::exception_ptr::_M_release\n"
           "race:std::runtime_error::~runtime_error\n"
           "race:std::logic_error::~logic_error\n";
}

int main(int argc, char** argv) {
    if (argc == 2 && std::string_view{argv[1]} == "--hiredis") {  // prints the version that the tests are built with
        std::cout << HIREDIS_MAJOR << '.' << HIREDIS_MINOR << '.' << HIREDIS_PATCH << '\n';
        return 0;
    }
    return redlatch::test::role_main(argc, argv, [](int count, char** values) {
        return doctest::Context{count, values}.run();
    });
}
