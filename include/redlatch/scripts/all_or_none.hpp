// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/scripts/script.hpp"

// Access rights may allow some commands of a script and refuse others in its middle. Redis does not roll back: what was
// written before a refusal stays. So commands that may be refused come first, or are undone.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts::parts {

// Precedes the scripts that use it.
inline constexpr ScriptText all_or_none{R"lua(
-- Makes all changes or, if one is refused (access rights may allow some and not others), none. Each change may carry
-- the command that undoes it, and one that removes what is left after that. Returns nil, or the error.
local function all_or_none(changes)
    for i = 1, #changes do
        local reply = redis.pcall(unpack(changes[i]))
        if type(reply) == 'table' and reply.err then
            for k = i - 1, 1, -1 do
                if changes[k].undo then redis.pcall(unpack(changes[k].undo)) end
                if changes[k].tidy then redis.pcall(unpack(changes[k].tidy)) end
            end
            return reply
        end
    end
end
)lua"};

}  // namespace scripts::parts
}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
