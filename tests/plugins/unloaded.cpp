// SPDX-License-Identifier: MIT
// redlatch_unloaded <plugin>: returns 0 if a shared object can be closed while its name look-up still runs.
#include <dlfcn.h>
#include <netdb.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <thread>

#include "plugin.hpp"

namespace {

std::atomic<bool> resolver_answers{false};
std::atomic<bool> resolver_asked{false};
int failures = 0;

void check(bool holds, const char* what) {
    if (holds) return;
    std::cerr << "not so: " << what << '\n';
    ++failures;
}

template <class Predicate>
bool eventually(Predicate predicate) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!predicate()) {
        if (std::chrono::steady_clock::now() >= end) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
}

std::ptrdiff_t threads() {
    namespace fs = std::filesystem;
    return std::distance(fs::directory_iterator("/proc/self/task"), fs::directory_iterator());
}

// Loads the plugin, looks up the name, and unloads it.
int look_up_and_unload(const char* path, const char* host, int milliseconds) {
    void* const library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        std::cerr << ::dlerror() << '\n';
        ::_exit(2);
    }
    const int error = reinterpret_cast<LookUpFunction*>(::dlsym(library, "look_up"))(host, milliseconds);
    ::dlclose(library);
    return error;
}

bool is_loaded(const char* path) {
    void* const library = ::dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (library) ::dlclose(library);
    return library != nullptr;
}

}  // namespace

// Replaces the system's function: reports that there is no such host, for slow names only when the test allows it.
extern "C" int getaddrinfo(const char* host, const char* service, const addrinfo* hints, addrinfo** found) {
    const bool numeric = hints && (hints->ai_flags & AI_NUMERICHOST) != 0;
    if (host && !numeric && std::strstr(host, ".invalid")) {
        resolver_asked = true;
        while (std::strstr(host, ".slow.") && !resolver_answers)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return EAI_NONAME;
    }
    using Function = int(const char*, const char*, const addrinfo*, addrinfo**);
    static auto* const next = reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, "getaddrinfo"));
    return next(host, service, hints, found);
}

int main(int count, char** arguments) {
    if (count != 2) return 2;
    const char* const plugin = arguments[1];
    const std::ptrdiff_t before = threads();
    check(look_up_and_unload(plugin, "redis.invalid", 20'000) == EAI_NONAME, "there is no such host");
    check(resolver_asked, "the resolver was asked");
    check(eventually([&] { return threads() == before; }), "a look-up that has ended leaves no thread");
    check(!is_loaded(plugin), "a look-up that has ended keeps nothing loaded");
    check(look_up_and_unload(plugin, "redis.slow.invalid", 50) == EAI_AGAIN, "the resolver is slow");
    resolver_answers = true;
    check(eventually([&] { return threads() == before; }), "the thread of the look-up ends");
    return failures == 0 ? 0 : 1;
}
