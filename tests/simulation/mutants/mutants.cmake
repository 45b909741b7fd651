# SPDX-License-Identifier: MIT
# mutate(name file from to): bugs that show only at certain moments, or after certain losses.

# A release frees the lock and notifies no waiter.
mutate(release_without_publish scripts/rlock.hpp
    "    redis.call('del', lock)\n    return redis.call(publish, channel, '0')"
    "    redis.call('del', lock)\n    return 1")

# A message between the try and the subscription is lost.
mutate(no_second_try_once_subscribed wait/waiting_room.hpp
    "subscription_.confirmed();\n        notify();"
    "subscription_.confirmed();")

# Waiters of other processes are not notified that the next holder's lease is shorter.
mutate(silent_hand_over scripts/rlock.hpp
    "if left > tonumber(lease) then redis.pcall(publish, channel, '0') end"
    "")

# Validity is counted from the reply, not from the request.
mutate(validity_from_the_reply lock/acquire_attempt.hpp
    "is_script() ? sent_->as_of_now() : asked_time_->as_of_now()"
    "is_script() ? Clock::now() : Clock::now()")

# All holds of a thread have the same number, and a late release ends the next one.
mutate(numbers_used_again lock/lock_core.hpp
    "Claim claim{owner, number, count, lease_of(lease, settings)};"
    "Claim claim{owner, count == 1 ? owner.number : number, count, lease_of(lease, settings)};")

# An acquire of unknown outcome is forgotten.
mutate(unknown_acquire_left_behind lock/acquires.hpp
    "if (asked.unsettled != 0 && !kept) undo(lock, asked, attempt.claim.lease);"
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

# A late acquire takes the lock for a whole lease, or permits for ever, or lowers a later count.
mutate(late_acquire_takes_effect scripts/rlock.hpp
    "if now > tonumber(wanted_until) then return late(now) end\nif redis.call('exists', lock) == 0 then"
    "if redis.call('exists', lock) == 0 then")
mutate(late_fair_acquire_takes_effect scripts/fair_lock.hpp
    "if now > tonumber(ARGV[7]) then return late(now) end\n"
    "")
mutate(late_read_takes_effect scripts/read_write_lock.hpp
    "if now > tonumber(ARGV[6]) then return late(now) end\n"
    "")
mutate(late_permits_are_taken scripts/semaphore.hpp
    "if now > wanted_until then return late(now) end\nlocal available = count_in"
    "local available = count_in")
mutate(late_semaphore_is_set_up scripts/semaphore.hpp
    "if now > wanted_until then return late(now) end\nlocal ends = wanted_until + margin\nif redis.call('get', semaphore)"
    "local ends = wanted_until + margin\nif redis.call('get', semaphore)")
mutate(late_release_adds_permits scripts/semaphore.hpp
    "if now > wanted_until then return late(now) end\nlocal ends = wanted_until + margin\nlocal available = redis.call('get', semaphore)\nif only"
    "local ends = wanted_until + margin\nlocal available = redis.call('get', semaphore)\nif only")
mutate(late_count_is_set scripts/count_down_latch.hpp
    "if now > wanted_until then return late(now) end\nlocal ends = wanted_until + margin\nif redis.call('get', latch)"
    "local ends = wanted_until + margin\nif redis.call('get', latch)")
mutate(late_count_down_counts scripts/count_down_latch.hpp
    "if now > wanted_until then return late(now) end\nlocal ends = wanted_until + margin\nlocal text"
    "local ends = wanted_until + margin\nlocal text")

# A late acquire that was still wanted is not released again.
mutate(late_acquire_not_released_again lock/outbox.hpp
    "if (item.unsettled < server_now) continue;"
    "if (item.unsettled >= 0) continue;")

# A late plain command of a Mutex holds for a whole lease.
mutate(late_mutex_holds_for_a_lease protocol/mutex.hpp
    "if (form == NativeCommands::Set::until)"
    "if (form == NativeCommands::Set::until && claim.lease_end == 0)")

# --- operations ---------------------------------------------------------------------------------------------------------

# An operation completes inside the call that cancels it.
mutate(completion_inline session/under_way.hpp
    "        }\n        post_completion();\n    }\n\n    void post_completion"
    "        }\n        run();\n        end();\n    }\n\n    void post_completion")

# What an operation acquires after it was given up stays held: nobody releases it.
mutate(given_up_and_kept session/running.hpp
    "static_cast<void>(work_.result(this->host_));"
    "new auto(work_.result(this->host_));")

# A coroutine that is destroyed does not cancel its operation.
mutate(destroyed_and_not_cancelled session/operation.hpp
    "if (running_->forsake()) running_->abandon();"
    "running_->forsake();")

# Cancelling does not tell the task, which goes on waiting.
mutate(cancel_forgets_the_task session/under_way.hpp
    "        cancel();\n        stop_.request_stop();"
    "        cancel();")

# The destructor of a hold waits for the server.
mutate(hold_destructor_waits lock/hold.ipp
    "level_.keeper->release_later(level_.hold());"
    "static_cast<void>(level_.keeper->release(level_.owner));")

# An operation completes on the thread that renews and receives.
mutate(completion_on_the_background_thread session/under_way.hpp
    "            parts_ = 1;\n            post_completion();\n        } else {"
    "            parts_ = 1;\n            run();\n            end();\n        } else {")

# Both the one who gives up and the task decide.
mutate(grant_delivered_twice session/under_way.hpp
    "        if (decide(State::ended)) {\n            error_ = std::move(error);"
    "        if (true) {\n            error_ = std::move(error);")

# A wake-up that comes before its coroutine has fallen asleep is lost.
mutate(early_wake_up_lost session/continuations.ipp
    "            sleeper.woken_ = true;\n"
    "")

# A reply that comes after its deadline resumes nobody, and neither does the deadline.
mutate(deadline_of_a_posted_call_forgotten session/awaiting.hpp
    "return posted->sleep(*by_, coroutine, deadline_);"
    "return posted->sleep(*by_, coroutine, never);")

# A MultiLock that is destroyed while an operation begins completes it without a hold and without an error.
mutate(destroyed_lock_says_nothing quorum/quorum_acquire.hpp
    "if (request.stop.stop_requested()) co_return in_vain(under_way.has_value());"
    "if (request.stop.stop_requested()) co_return false;")

# The end of a phase wakes nobody.
mutate(barrier_ends_in_silence scripts/barrier.hpp
    "{'zremrangebyscore', arrivals, '1', '0'}, {publish, channel, whole(phase + 1)}}"
    "{'zremrangebyscore', arrivals, '1', '0'}}")

# A late copy of an arrival counts in a later phase.
mutate(late_arrival_counts scripts/barrier.hpp
    "if now > wanted_until then return late(now) end\nlocal ends = wanted_until + margin\nif state.born and"
    "local ends = wanted_until + margin\nif state.born and")

# An arrival that is taken back too late has counted, but its caller arrives again.
mutate(withdrawn_in_vain barrier.ipp
    "return !withdraw(std::move(arrival));"
    "withdraw(std::move(arrival));\n        return false;")

# A waiter registers after it has released the lock.
mutate(registered_after_the_release condition_variable.ipp
    "    detail::enter_condition(handle_.settings(), condition, id);\n"
    "    lock.unlock();\n    detail::enter_condition(handle_.settings(), condition, id);\n    lock.lock();\n")

# A waiter that gives up keeps the notification that another one needs.
mutate(notification_is_kept scripts/condition_variable.hpp
    "local passes_on = place < 0 and gives_up"
    "local passes_on = false")

# Who has lost the lock writes the record all the same.
mutate(record_by_anyone scripts/holder_record.hpp
    "if redis.call('hexists', lock, owner) == 0 then return 0 end"
    "")

# Who gets the lock does the work, even if it was done between the look and the acquire.
mutate(no_second_look around/recorded_work.hpp
    "if (done) return {std::move(done)};"
    "")

# A leader goes by lost() alone, which a process that was suspended learns late.
mutate(leads_beyond_its_lease leader_election.hpp
    "return Clock::now() < valid_until() && !lost().stop_requested();"
    "return !lost().stop_requested();")
