// SPDX-License-Identifier: MIT
// redlatch_contest global
// local <plugin> <plugin>: returns 0 if threads in two plugins exclude each other by a lock of one client.
#include <dlfcn.h>
#include <unistd.h>

#include <iostream>
#include <string_view>
#include <thread>

#include "plugin.hpp"
#include "support/redis_server.hpp"

namespace {

template <class Function>
Function* function_of(void* library, const char* name) {
    return reinterpret_cast<Function*>(::dlsym(library, name));
}

void* loaded(const char* path, int scope) {
    void* const library = ::dlopen(path, RTLD_NOW | scope);
    if (library) return library;
    std::cerr << ::dlerror() << '\n';
    ::_exit(2);
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 4) return 2;
    const int scope = std::string_view(arguments[1]) == "local" ? RTLD_LOCAL : RTLD_GLOBAL;
    void* const one = loaded(arguments[2], scope);
    void* const two = loaded(arguments[3], scope);
    constexpr int rounds = 1'000;
    redlatch::test::RedisServer server;
    Contest contest;
    void* const client = function_of<MakeClientFunction>(one, "make_client")(server.url().c_str());
    std::thread first(function_of<ContendFunction>(one, "contend"), client, rounds, std::ref(contest));
    std::thread second(function_of<ContendFunction>(two, "contend"), client, rounds, std::ref(contest));
    first.join();
    second.join();
    function_of<DeleteClientFunction>(two, "delete_client")(client);
    if (contest.overlaps == 0 && contest.rounds == 2 * rounds) return 0;
    std::cerr << contest.overlaps << " overlaps in " << contest.rounds << " rounds\n";
    return 1;
}
