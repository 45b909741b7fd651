// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/quoted.hpp"

#include <string>
#include <string_view>
#include <system_error>

namespace redlatch {
inline namespace REDLATCH_ABI {

// Tells why an operation failed. The values are grouped by what a caller can do about them.
enum class errc {
    invalid_argument = 1,  // rejected before anything was sent; fix the call
    not_owner,             // the caller never acquired what it tries to release
    would_deadlock,        // the caller would wait for itself indefinitely
    unknown_permit,        // there is no such permit, or its lease has expired
    hold_lost,             // the hold ended before its unlock: expired, key deleted, or force-released
    unreachable,           // no server able to do it replied in time (none replied at all, or the server is loading or
                           // is only a replica); the outcome may be unknown
    overloaded,            // the server refuses for now: out of memory, busy, too few replicas, too many clients
    rejected,              // refused for good: credentials, access rights, a script error, a certificate of either side
    wrong_type,            // the key belongs to another kind of object
    protocol_error,        // the reply has an unexpected shape; a malformed one also closes the connection
    unsupported,           // recognised, but not possible with this build
    not_replicated,        // fewer replicas than required confirmed it; what was acquired is released
    cancelled,             // it was cancelled before it succeeded; what is acquired all the same is released
    function_failed,       // a function that was to run under the lock threw an exception that has no error code
    not_on_disk,           // the server did not confirm it on its disk in time; what was acquired is released
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

template <>
struct std::is_error_code_enum<redlatch::errc> : std::true_type {};

namespace redlatch {
inline namespace REDLATCH_ABI {

// Returns the category of all errc, named "redlatch". Exported, so that all shared objects of a process use one category:
// codes of different categories never compare equal.
[[gnu::visibility("default")]] inline const std::error_category& error_category() noexcept {
    class Category final : public std::error_category {
        const char* name() const noexcept override { return "redlatch"; }

        std::string message(int value) const override {
            switch (static_cast<errc>(value)) {
                case errc::invalid_argument: return "invalid argument";
                case errc::not_owner: return "the caller does not hold the lock";
                case errc::would_deadlock: return "the caller would wait for itself";
                case errc::unknown_permit: return "no such permit, or its lease has expired";
                case errc::hold_lost: return "the hold ended before its release";
                case errc::unreachable: return "the server did not confirm the command in time";
                case errc::overloaded: return "the server cannot execute the command now";
                case errc::rejected: return "the server or this client rejected it for good";
                case errc::wrong_type: return "the key belongs to another kind of object";
                case errc::protocol_error: return "the server sent an unexpected reply";
                case errc::unsupported: return "not supported by this build";
                case errc::not_replicated: return "too few replicas confirmed the command";
                case errc::cancelled: return "the operation was cancelled";
                case errc::function_failed: return "the function that ran under the lock threw an exception";
                case errc::not_on_disk: return "the server did not confirm the command on its disk";
            }
            return "unknown error";
        }

        // Lets portable code compare with std::errc.
        std::error_condition default_error_condition(int value) const noexcept override {
            switch (static_cast<errc>(value)) {
                case errc::invalid_argument: return std::errc::invalid_argument;
                case errc::not_owner: return std::errc::operation_not_permitted;
                case errc::would_deadlock: return std::errc::resource_deadlock_would_occur;
                case errc::unsupported: return std::errc::not_supported;
                case errc::cancelled: return std::errc::operation_canceled;
                case errc::protocol_error: return std::errc::protocol_error;
                default: return {value, *this};
            }
        }
    };
    static const Category category;
    return category;
}

// Returns the code in the category of the library. So a std::error_code can be compared with an errc.
inline std::error_code make_error_code(errc code) noexcept { return {static_cast<int>(code), error_category()}; }

// Reports a failed operation. what() reads "<name>: <what happened>; <what to try>: <category text>". It never contains
// a password. Foreign text in it is escaped and shortened.
class [[gnu::visibility("default")]] Error : public std::system_error {
public:
    // Makes the error of the primitive with this name; an empty name stands for the client.
    Error(errc code, std::string_view name, const std::string& what_happened)
        : std::system_error(make_error_code(code),
                            name.empty() ? what_happened : detail::escaped(name) + ": " + what_happened),
          name_(name) {}

    // Returns the name of the primitive, or an empty string if the error belongs to the client.
    const std::string& name() const noexcept { return name_; }

private:
    std::string name_;
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch
