# SPDX-License-Identifier: MIT
# mutate(name file from to): bugs that show only at certain moments, or after certain losses.

# A release frees the lock and notifies no waiter.
mutate(release_without_publish scripts/rlock.hpp
    "    redis.call('del', lock)\n    return redis.call(publish, channel, '0')"
    "    redis.call('del', lock)\n    return 1")

# A message between the try and the subscription is lost.
mutate(no_second_try_once_subscribed wait/waiting_room.hpp
    "subscribed_ = true;\n        notify();"
    "subscribed_ = true;")

# Waiters of other processes are not notified that the next holder's lease is shorter.
mutate(silent_hand_over scripts/rlock.hpp
    "if left > tonumber(lease) then redis.pcall(publish, channel, '0') end"
    "")

# Validity is counted from the reply, not from the request.
mutate(validity_from_the_reply lock/acquire_attempt.hpp
    "asked.sent = sent_.as_of_now();"
    "asked.sent = Clock::now();")

# All holds of a thread have the same number, and a late release ends the next one.
mutate(numbers_used_again lock/lock_core.hpp
    "Claim claim{owner, number, count, lease_of(lease)};"
    "Claim claim{owner, count == 1 ? owner : number, count, lease_of(lease)};")

# An acquire of unknown outcome is forgotten.
mutate(unknown_acquire_left_behind lock/acquires.hpp
    "if (asked.unsettled != 0 && !waiting) undo(lock, asked, claim.lease);"
    "")

# A resent request is executed again.
mutate(marks_forgotten scripts/request_marks.hpp
    "if not mark then return nil, false end"
    "if mark or not mark then return nil, false end")

# The watchdog continues after unlock().
mutate(watchdog_outlives_unlock lock/releases.hpp
    "            leases_.finish(hold);\n            return leaving;"
    "            return leaving;")

# The counter restarts at one after a restart that lost it.
mutate(tokens_without_the_time scripts/fenced_lock.hpp
    "math.max(last + 1, now[1] * 1000000 + now[2])"
    "last + 1")
