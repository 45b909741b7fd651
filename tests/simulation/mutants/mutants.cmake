# SPDX-License-Identifier: MIT
# mutate(name file from to): bugs that show only at certain moments, after certain losses.

# Frees the lock and tells nobody.
mutate(release_without_publish scripts/rlock.hpp
    "    redis.call('del', lock)\n    return redis.call(publish, channel, '0')"
    "    redis.call('del', lock)\n    return 1")

# What was published between the try and the subscription is lost.
mutate(no_second_try_once_subscribed lock/lock_state.hpp
    "subscribed_ = true;\n        expect_anything();\n        tell_representative();"
    "subscribed_ = true;")

# Who waits elsewhere is not told that the heir's lease is shorter.
mutate(silent_hand_over scripts/rlock.hpp
    "if left > tonumber(lease) then redis.pcall(publish, channel, '0') end"
    "")

# Validity is counted from the reply, not from the request.
mutate(validity_from_the_reply lock/lease_manager.hpp
    "const SendTime sent;\n                Reply reply = send(std::as_const(claim), deadline);"
    "Reply reply = send(std::as_const(claim), deadline);\n                const SendTime sent;")

# All holds of a thread have one number, and a late release ends the next one.
mutate(numbers_used_again lock/lease_manager.hpp
    "Claim claim{owner, number, count, lease_of(lease)};"
    "Claim claim{owner, count == 1 ? owner : number, count, lease_of(lease)};")

# An acquire of unknown outcome is forgotten.
mutate(unknown_acquire_left_behind lock/lease_manager.hpp
    "if (asked.unsettled != 0 && !waiting) take_back(lock, asked, claim.lease);"
    "")

# A request that is sent again is carried out again.
mutate(marks_forgotten scripts/request_marks.hpp
    "if not mark then return nil, false end"
    "if mark or not mark then return nil, false end")

# The watchdog goes on after unlock().
mutate(watchdog_outlives_unlock lock/lease_manager.hpp
    "            finish(hold);\n            return leaving;"
    "            return leaving;")

# The counter starts at one again after a restart that lost it.
mutate(tokens_without_the_time scripts/fenced_lock.hpp
    "math.max(last + 1, now[1] * 1000000 + now[2])"
    "last + 1")
