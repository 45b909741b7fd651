// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"

// What other threads do with a CommandConnection. Its mutex guards both.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// What the reader does, the one thread that receives replies for all.
enum class Reader {
    none,
    reading,
    delivering,  // it is waking several threads, and will write for them
};

// What the driver does, the background thread: it calls drive(), then duty(), then it sleeps.
enum class Driver {
    away,
    awake,     // since drive(): it will call duty() before it sleeps
    watching,  // since duty(): it may be asleep, but replies on this connection wake it
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
