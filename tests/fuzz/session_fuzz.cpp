// SPDX-License-Identifier: MIT
// Sends any bytes as the replies of a hostile server, through the public interface. No call crashes, exceeds its
// deadline for long, throws anything but Error, or reports a hold that was not granted.
//
// The first byte chooses the primitive. The rest is a script for the server: the reply to each command, on any
// connection. After the end of the script the server replies 0 to every command.
#include <redlatch/redlatch.hpp>

#include <array>
#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "fuzz/expect.hpp"
#include "support/scripted_server.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace std::chrono_literals;
using test::CommandWords;
using test::ScriptedReply;

namespace {

// The server's side of one run. `mutex_` guards all members, because the server has its own thread.
class Script {
public:
    void begin(std::string_view bytes) {
        const std::lock_guard lock(mutex_);
        left_ = bytes;
        said_.clear();
    }

    ScriptedReply answer(const CommandWords& command) {
        const std::lock_guard lock(mutex_);
        ScriptedReply reply = left_.empty() ? ScriptedReply{number(0)} : next(command);
        said_ += reply.bytes;
        return reply;
    }

    bool has_said(std::string_view bytes) {
        const std::lock_guard lock(mutex_);
        return said_.find(bytes) != std::string::npos;
    }

private:
    unsigned byte() {
        if (left_.empty()) return 0;
        const auto taken = static_cast<unsigned char>(left_.front());
        left_.remove_prefix(1);
        return taken;
    }

    std::string number(std::int64_t value) { return ":" + std::to_string(value) + "\r\n"; }

    std::string text(std::string_view words) {
        return "$" + std::to_string(words.size()) + "\r\n" + std::string(words) + "\r\n";
    }

    std::string raw() {
        const std::size_t size = std::min<std::size_t>(byte(), left_.size());
        const std::string bytes(left_.substr(0, size));
        left_.remove_prefix(size);
        return bytes;
    }

    std::int64_t large() {
        std::uint64_t value = 0;
        for (int i = 0; i < 8; ++i) value = value << 8 | byte();
        return static_cast<std::int64_t>(value);
    }

    std::string simple() {
        switch (byte() % 5) {
            case 0: return "$-1\r\n";
            case 1: return number(static_cast<std::int64_t>(byte()) - 3);
            case 2: return number(large());
            case 3: return text(raw());
            default: return number(1);
        }
    }

    std::string several() {
        const unsigned size = byte() % 5;
        std::string bytes = "*" + std::to_string(size) + "\r\n";
        for (unsigned i = 0; i < size; ++i) bytes += simple();
        return bytes;
    }

    // A valid confirmation, followed by a message.
    static std::string confirm(const CommandWords& command, const std::string& payload) {
        const std::string channel = command.size() > 1 ? command[1] : "";
        const auto frame = [&](const std::string& what, const std::string& last) {
            return "*3\r\n$" + std::to_string(what.size()) + "\r\n" + what + "\r\n$" + std::to_string(channel.size()) +
                   "\r\n" + channel + "\r\n" + last;
        };
        return frame("subscribe", ":1\r\n") +
               frame("message", "$" + std::to_string(payload.size()) + "\r\n" + payload + "\r\n");
    }

    ScriptedReply next(const CommandWords& command) {
        static constexpr std::array<const char*, 8> errors{"-NOSCRIPT no\r\n",
                                                           "-LOADING wait\r\n",
                                                           "-OOM no\r\n",
                                                           "-WRONGTYPE no\r\n",
                                                           "-READONLY no\r\n",
                                                           "-MOVED 1 host:1\r\n",
                                                           "-ERR max number of clients\r\n",
                                                           "-\r\n"};
        ScriptedReply reply;
        switch (byte() % 12) {
            case 0: reply.bytes = "$-1\r\n"; break;
            case 1: reply.bytes = simple(); break;
            case 2: reply.bytes = several(); break;
            case 3: reply.bytes = raw(); break;
            case 4: reply.bytes = errors[byte() % errors.size()]; break;
            case 5: reply.close = true; break;
            case 6: break;
            case 7: reply.bytes = confirm(command, raw()); break;
            case 8: reply.bytes = simple() + simple(); break;
            case 9:
                reply.bytes = several();
                reply.piece = 1 + byte() % 8;
                reply.pause = 1ms;
                break;
            case 10:
                reply.bytes = simple();
                reply.close = true;
                break;
            default: reply.bytes = number(0); break;
        }
        return reply;
    }

    std::mutex mutex_;
    std::string_view left_;
    std::string said_;
};

Script script;

ClientOptions impatient() {
    ClientOptions options;
    options.watchdog_timeout = 30ms;
    options.command_timeout = 4ms;
    options.unreachable_timeout = 8ms;
    return options;
}

// Every call ends in time, and any exception is an Error whose message is printable.
template <class Call>
void attempt(Call call) {
    const auto begun = std::chrono::steady_clock::now();
    try {
        call();
    } catch (const Error& error) {
        expect_printable(error.what());
    }
    // Generous, because the machine may be busy.
    expect(std::chrono::steady_clock::now() - begun < 10s, "a call goes on long after its deadline");
}

void expect_grant(bool taken, std::string_view words) {
    if (taken) expect(script.has_said(words), "held without a grant");
}

template <class L>
void use_lock(L& lock, std::string_view grant) {
    attempt([&] { expect_grant(lock.try_lock(), grant); });
    attempt([&] { expect_grant(lock.try_lock_for(3ms), grant); });
    attempt([&] { expect_grant(lock.try_lock_for(2ms, Lease{5ms}), grant); });
    attempt([&] { static_cast<void>(lock.is_locked()); });
    attempt([&] { static_cast<void>(lock.hold_count()); });
    attempt([&] { static_cast<void>(lock.remaining_lease()); });
    attempt([&] { static_cast<void>(lock.lost().stop_requested()); });
    attempt([&] { lock.unlock(); });
    attempt([&] { static_cast<void>(lock.force_unlock()); });
    attempt([&] { lock.unlock(); });
}

template <class C>
void use(C& client, unsigned which) {
    // Nil has two forms on the wire, which both end like this.
    constexpr std::string_view nil = "-1\r\n";
    switch (which % 8) {
        case 0: {
            RLock lock{client, "lock"};
            return use_lock(lock, nil);
        }
        case 1: {
            FairLock lock{client, "lock"};
            return use_lock(lock, nil);
        }
        case 2: {
            FencedLock lock{client, "lock"};
            use_lock(lock, ":1\r\n");
            return attempt([&] {
                const auto token = lock.try_lock_and_get_token();
                if (token) expect(*token > 0 && script.has_said(std::to_string(*token) + "\r\n"), "an own token");
            });
        }
        case 3: {
            ReadWriteLock lock{client, "lock"};
            use_lock(lock.read_lock(), nil);
            return use_lock(lock.write_lock(), nil);
        }
        case 4: {
            SpinLock lock{client, "lock"};
            return use_lock(lock, nil);
        }
        case 5: {
            Semaphore semaphore{client, "semaphore"};
            attempt([&] { static_cast<void>(semaphore.try_set_permits(3)); });
            attempt([&] { expect_grant(semaphore.try_acquire(2), "2\r\n"); });
            attempt([&] { expect_grant(semaphore.try_acquire_for(3ms), "1\r\n"); });
            attempt([&] { static_cast<void>(semaphore.available_permits()); });
            attempt([&] { static_cast<void>(semaphore.drain_permits()); });
            return attempt([&] { semaphore.release(); });
        }
        case 6: {
            PermitExpirableSemaphore semaphore{client, "permits"};
            attempt([&] { static_cast<void>(semaphore.try_set_permits(3)); });
            attempt([&] { expect_grant(semaphore.try_acquire().has_value(), "1\r\n"); });
            attempt([&] { expect_grant(semaphore.try_acquire_for(3ms, Lease{5ms}).has_value(), "1\r\n"); });
            attempt([&] { static_cast<void>(semaphore.available_permits()); });
            attempt([&] { static_cast<void>(semaphore.remaining_lease(PermitId::random())); });
            return attempt([&] { static_cast<void>(semaphore.try_release(PermitId::random())); });
        }
        default: {
            CountDownLatch latch{client, "latch"};
            attempt([&] { static_cast<void>(latch.try_set_count(2)); });
            attempt([&] { static_cast<void>(latch.try_wait()); });
            attempt([&] { static_cast<void>(latch.wait_for(3ms)); });
            attempt([&] { latch.count_down(); });
            attempt([&] { static_cast<void>(latch.count()); });
            return attempt([&] { static_cast<void>(latch.reset()); });
        }
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    static test::ScriptedServer server{[](const CommandWords& command) { return script.answer(command); }};
    script.begin({reinterpret_cast<const char*>(data) + 1, size - 1});
    {
        Client client{server.url(), impatient()};
        use(client, data[0]);
    }
    server.close_all();
    script.begin({});  // the bytes are valid only until this function returns
    return 0;
}
