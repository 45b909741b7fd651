// SPDX-License-Identifier: MIT
//
// The command redlatch: runs programs under locks, and shows who holds what. `redlatch --help` describes it, and so does
// the manual page redlatch.1 beside this file.

#include "arguments.hpp"
#include "grip.hpp"
#include "run.hpp"
#include "survey.hpp"

#include <redlatch/redlatch.hpp>

#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

namespace {

int dispatch(const tool::Arguments& arguments) {
    switch (arguments.command) {
        case tool::Command::help: std::cout << tool::help_text; return 0;
        case tool::Command::version: std::cout << "redlatch " + redlatch::version() + "\n"; return 0;
        case tool::Command::run:
        case tool::Command::attempt:
        case tool::Command::lead: return tool::run(arguments);
        case tool::Command::list: return tool::list(arguments);
        case tool::Command::who: return tool::who(arguments);
        case tool::Command::unlock: return tool::unlock(arguments);
        case tool::Command::top: return tool::top(arguments);
    }
    return tool::codes::failed;
}

}  // namespace

int main(int argc, char** argv) {
    const char* url = std::getenv("REDLATCH_URL");
    try {
        return dispatch(tool::parse(std::vector<std::string>(argv + 1, argv + argc), url ? url : ""));
    } catch (const tool::UsageError& error) {
        std::cerr << "redlatch: " << error.what() << "\nredlatch --help shows what there is\n";
        return tool::codes::usage;
    } catch (const redlatch::Error& error) {
        std::cerr << "redlatch: " << error.what() << "\n";
        return tool::code_of(error.code());
    } catch (const std::exception& error) {
        std::cerr << "redlatch: " << error.what() << "\n";
        return tool::codes::failed;
    }
}
