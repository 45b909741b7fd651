# SPDX-License-Identifier: MIT
# mutate(name file from to tests): bugs of other libraries, and of our own drafts.

# A resent reentry counts twice, and one unlock() too few frees nothing.
mutate(counts_twice_on_resend scripts/rlock.hpp
    "if current ~= count then redis.call('hincrby', lock, owner, count - current) end\nlocal left"
    "redis.call('hincrby', lock, owner, 1)\nlocal left"
    "integration/(rlock_wire|fault_lost)")

# Takes the lock whoever holds it: SET without NX.
mutate(takes_it_from_others scripts/rlock.hpp
    "if redis.call('exists', lock) == 0 then"
    "if redis.call('hexists', lock, owner) == 0 then"
    "integration/(rlock_wire|rlock_waiting)")

# Frees the lock and tells nobody.
mutate(release_without_publish scripts/rlock.hpp
    "return redis.call(publish, channel, '0')\n)lua\"};\n\ninline constexpr Script rlock_hand_over"
    "return 1\n)lua\"};\n\ninline constexpr Script rlock_hand_over"
    "integration/(rlock_wire|rlock_waiting)")

# A delayed copy of a release ends the next hold.
mutate(release_ignores_its_mark scripts/rlock.hpp
    "if redis.call('exists', latch) == 1 then return 0 end"
    ""
    "integration/(rlock_wire|fault_lost)")

# Reentry with a short lease cuts a longer one.
mutate(reentry_shortens_the_lease scripts/rlock.hpp
    "if left < tonumber(lease) then redis.call('pexpire', lock, lease) end\nreturn nil"
    "redis.call('pexpire', lock, lease)\nreturn nil"
    "integration/(rlock_lease|rlock_wire)")

# A renewal creates the key that somebody deleted.
mutate(renewal_creates_the_key scripts/rlock.hpp
    "renewed[i] = redis.pcall('hexists', lock, ARGV[i + 1])"
    "renewed[i] = 1 redis.call('hset', lock, ARGV[i + 1], 1)"
    "integration/rlock_watchdog")

# What was published between the try and the subscription is lost.
mutate(no_second_try_once_subscribed client/lock_state.hpp
    "subscribed_ = true;\n        expect_anything();\n        tell_representative();"
    "subscribed_ = true;"
    "unit/rlock|integration/(rlock_waiting|fault_network|fault_server)")

# A message that comes during a try is forgotten.
mutate(message_during_a_try_forgotten client/wait_line.hpp
    "asked_ = generation;"
    "asked_ = generation_; static_cast<void>(generation);"
    "unit/(rlock|wait_line)")

# Validity is counted from the reply, not from the request.
mutate(validity_from_the_reply client/lock_state.hpp
    "asked.sent = Clock::now();\n            Reply reply = wire_.acquire(request.owner, count, lease, deadline);"
    "Reply reply = wire_.acquire(request.owner, count, lease, deadline);\n            asked.sent = Clock::now();"
    "unit/rlock|integration/fault_lost")

# The watchdog goes on although the server says that the hold is gone.
mutate(renewal_refusal_ignored client/lock_state.hpp
    "case Renewed::refused: lose(*hold, \"the server says that it is not held any more\"); break;"
    "case Renewed::refused: hold->renewed(sent, timeout); break;"
    "unit/rlock|integration/rlock_watchdog")

# The watchdog goes on after unlock().
mutate(watchdog_outlives_unlock client/lock_state.hpp
    "holds_.finish(held);\n        handoffs_ = 0;"
    "handoffs_ = 0;"
    "unit/rlock|integration/(rlock_watchdog|rlock_interface)")

# An acquire of unknown outcome is forgotten, and locks its own thread's successors out.
mutate(unknown_acquire_left_behind client/lock_state.hpp
    "if (asked.unknown) take_back(lock, request.owner, now + lease);"
    ""
    "unit/rlock|integration/fault_lost")

# A release whose reply was lost is reported as a lost hold.
mutate(resent_release_is_a_loss client/lock_state.hpp
    "answer.kind == ReleaseAnswer::Kind::not_held && !resent"
    "answer.kind == ReleaseAnswer::Kind::not_held"
    "unit/rlock|integration/fault_lost")

# One process keeps the lock to itself.
mutate(no_limit_to_local_hand_overs client/lock_state.hpp
    "handoffs_ < runtime_.options().local_handoff_limit"
    "handoffs_ < ~0u"
    "unit/rlock|integration/rlock_waiting")

# A message that came before the release's answer is awaited once more, and the next real one is taken for it.
mutate(own_message_awaited_twice client/lock_state.hpp
    "line_.empty() && messages == messages_)"
    "line_.empty())"
    "integration/rlock_waiting")

# The watching thread leaves, and nobody receives for the others.
mutate(watcher_leaves_in_silence client/runtime.hpp
    "if (subscriptions_.has_several_keen()) transport_.wake();"
    ""
    "integration/rlock_waiting")

# Nesting draws a new token, and the outer section's writes are refused.
mutate(reentry_draws_a_token scripts/fenced_lock.hpp
    "return {1, tonumber(redis.call('get', counter) or '0')}\n)lua"
    "return {1, redis.call('incr', counter)}\n)lua"
    "integration/fenced")

# After a loss of data the tokens begin anew.
mutate(tokens_begin_anew scripts/fenced_lock.hpp
    "math.max(tonumber(redis.call('get', counter) or '0') + 1, now[1] * 1000000 + now[2])"
    "tonumber(redis.call('get', counter) or '0') + 1"
    "integration/fenced")

# A copy of an earlier request, delayed on the way, is carried out.
mutate(late_copies_carried_out scripts/request_marks.hpp
    "if tonumber(last) < tonumber(request) then"
    "if last ~= request then"
    "integration.(semaphore|count_down)")

# Who wants many starves.
mutate(small_requests_overtake scripts/semaphore.hpp
    "if taken + wanted > available then break end\n    taken = taken + wanted"
    "if taken + wanted <= available then taken = taken + wanted end"
    "integration.semaphore")

# A release is refused when memory is full.
mutate(release_does_not_write_first scripts/semaphore.hpp
    "redis.call('pexpire', marks, ttl)\nlocal total"
    "local total"
    "integration.semaphore")

# Permits that nobody knows to be taken.
mutate(unknown_permits_left_behind client/synchronizer_state.hpp
    "if (unknown)\n"
    "if (unknown && wants.empty())\n"
    "unit|integration.semaphore")

# Permits for a thread that left while they were asked for.
mutate(unclaimed_permits_left_behind client/synchronizer_state.hpp
    "if (wants[i].served) unclaimed.push_back(wants[i]);"
    ""
    "unit.semaphore")

# Waiters of a latch wait for the next count, too.
mutate(next_count_keeps_waiters client/count_down_latch_wire.hpp
    "want.served = open || (want.round && !round.empty() && *want.round != round);"
    "want.served = open;"
    "unit.count_down|integration.count_down")

# A permit is asked for again by the id that is being taken back.
mutate(permit_ids_used_again client/synchronizer_state.hpp
    "wants.back().renew();"
    ";"
    "unit.permit")

# A process with waiters sleeps although a lease has ended.
mutate(next_expiry_ignored client/permit_wire.hpp
    "return over_in < 0 ? Milliseconds::max() : Milliseconds(over_in + 1);"
    "return Milliseconds::max();"
    "unit.permit|integration.permit")
