// SPDX-License-Identifier: MIT
// redlatch_plugins global
// local <plugin> <plugin>: returns 0 if both plugins share the state of the process.
#include "plugin.hpp"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <iostream>
#include <string_view>
#include <system_error>
#include <thread>

namespace {

int failures = 0;

void check(bool holds, const char* what) {
    if (holds) return;
    std::cerr << "not so: " << what << '\n';
    ++failures;
}

struct Plugin {
    Plugin(const char* path, int scope) : library(::dlopen(path, RTLD_NOW | scope)) {
        if (!library) {
            std::cerr << ::dlerror() << '\n';
            ::_exit(2);
        }
        look = reinterpret_cast<LookFunction*>(::dlsym(library, "look"));
        fail = reinterpret_cast<ThrowFunction*>(::dlsym(library, "fail"));
    }

    void* library;
    LookFunction* look;
    ThrowFunction* fail;
};

std::error_code code_of(ThrowFunction* fail) {
    try {
        fail();
    } catch (const std::system_error& error) {
        return error.code();
    }
    return {};
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 4) return 2;
    const int scope = std::string_view(arguments[1]) == "local" ? RTLD_LOCAL : RTLD_GLOBAL;
    const Plugin one(arguments[2], scope);
    const Plugin two(arguments[3], scope);
    const View mine = one.look();
    View theirs{};
    std::thread([&] { theirs = two.look(); }).join();
    check(mine.thread != theirs.thread, "two threads have two numbers, whichever plugin asks");
    check(two.look().thread == mine.thread, "a thread has one number, whichever plugin asks");
    check(mine.category == theirs.category, "there is one category of errors");
    check(mine.generation == theirs.generation, "there is one mark of the process");
    check(code_of(one.fail) == code_of(two.fail), "equal codes are equal");
    if (const pid_t child = ::fork(); child == 0) {
        check(two.look().generation != mine.generation, "a child has another mark");
        check(one.look().generation == two.look().generation, "a child has one mark");
        ::_exit(failures);
    } else {
        int status = -1;
        check(::waitpid(child, &status, 0) == child && WIFEXITED(status), "the child ends");
        failures += WEXITSTATUS(status);
    }
    return failures == 0 ? 0 : 1;
}
