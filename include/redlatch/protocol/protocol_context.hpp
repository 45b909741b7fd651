// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/options.hpp"
#include "redlatch/protocol/native_commands.hpp"

#include <string>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// What the protocols of all primitives need to know of their client. The client outlives them.
struct ProtocolContext {
    const std::string& uuid;
    const ClientOptions& options;
    NativeCommands& native;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
