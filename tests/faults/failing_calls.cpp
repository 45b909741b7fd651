// SPDX-License-Identifier: MIT
#include "faults/failing_calls.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <string_view>
#include <utility>

namespace redlatch::fault {

namespace {

std::atomic<const char*> failing{nullptr};
std::atomic<int> skipped{0};
std::atomic<int> left{0};
std::atomic<int> has_struck{0};
int number = 0;
std::string name;
std::function<void()> before_write;

// Returns whether this call is to fail. Compares names, as there are few.
bool fails(const char* function) {
    const char* const wanted = failing;
    if (!wanted || std::string_view{wanted} != function) return false;
    if (skipped.fetch_sub(1) > 0) return false;
    if (left.fetch_sub(1) <= 0) return false;
    ++has_struck;
    errno = number;
    return true;
}

template <class Function>
Function* real(Function*, const char* function) {
    return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, function));
}

}  // namespace

FailingCalls::FailingCalls(std::string function, int error, int skip, int times) {
    name = std::move(function);
    number = error;
    skipped = skip;
    left = times;
    has_struck = 0;
    failing = name.c_str();
}

FailingCalls::~FailingCalls() { failing = nullptr; }

int FailingCalls::struck() const { return has_struck; }

BeforeWrite::BeforeWrite(std::function<void()> happens) { before_write = std::move(happens); }
BeforeWrite::~BeforeWrite() { before_write = nullptr; }

}  // namespace redlatch::fault

using redlatch::fault::fails;
using redlatch::fault::real;

extern "C" {

int socket(int domain, int type, int protocol) noexcept {
    static auto* const next = real(&::socket, "socket");
    return fails("socket") ? -1 : next(domain, type, protocol);
}

int connect(int fd, const sockaddr* address, socklen_t size) {
    static auto* const next = real(&::connect, "connect");
    return fails("connect") ? -1 : next(fd, address, size);
}

ssize_t send(int fd, const void* bytes, size_t size, int flags) {
    static auto* const next = real(&::send, "send");
    return fails("send") ? -1 : next(fd, bytes, size, flags);
}

ssize_t recv(int fd, void* bytes, size_t size, int flags) {
    static auto* const next = real(&::recv, "recv");
    return fails("recv") ? -1 : next(fd, bytes, size, flags);
}

int poll(pollfd* fds, nfds_t count, int timeout) {
    static auto* const next = real(&::poll, "poll");
    return fails("poll") ? -1 : next(fds, count, timeout);
}

int fcntl(int fd, int command, ...) {
    static auto* const next = real(&::fcntl, "fcntl");
    va_list arguments;
    va_start(arguments, command);
    void* const argument = va_arg(arguments, void*);
    va_end(arguments);
    return fails("fcntl") ? -1 : next(fd, command, argument);
}

int setsockopt(int fd, int level, int option, const void* value, socklen_t size) noexcept {
    static auto* const next = real(&::setsockopt, "setsockopt");
    return fails("setsockopt") ? -1 : next(fd, level, option, value, size);
}

int getsockopt(int fd, int level, int option, void* value, socklen_t* size) noexcept {
    static auto* const next = real(&::getsockopt, "getsockopt");
    return fails("getsockopt") ? -1 : next(fd, level, option, value, size);
}

int shutdown(int fd, int how) noexcept {
    static auto* const next = real(&::shutdown, "shutdown");
    return fails("shutdown") ? -1 : next(fd, how);
}

ssize_t write(int fd, const void* bytes, size_t size) {
    static auto* const next = real(&::write, "write");
    if (redlatch::fault::before_write) redlatch::fault::before_write();
    return fails("write") ? -1 : next(fd, bytes, size);
}

int pipe2(int* fds, int flags) noexcept {
    static auto* const next = real(&::pipe2, "pipe2");
    return fails("pipe2") ? -1 : next(fds, flags);
}

int getaddrinfo(const char* host, const char* service, const addrinfo* hints, addrinfo** found) {
    static auto* const next = real(&::getaddrinfo, "getaddrinfo");
    return fails("getaddrinfo") ? errno : next(host, service, hints, found);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*work)(void*), void* argument) noexcept {
    static auto* const next = real(&::pthread_create, "pthread_create");
    return fails("pthread_create") ? errno : next(thread, attributes, work, argument);
}
}
