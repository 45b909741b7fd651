# SPDX-License-Identifier: MIT
# mutate(name file from to tests): bugs of other libraries, and of our own drafts.

# A resent reentry counts twice, and one unlock() too few leaves the lock held.
mutate(counts_twice_on_resend scripts/hold_levels.hpp
    "if current ~= count then redis.call('hincrby', lock, owner, count - current) end\n    if left"
    "redis.call('hincrby', lock, owner, 1)\n    if left"
    "integration/rlock_protocol|faults/lost")

# An acquire takes the lock from its holder: SET without NX.
mutate(takes_it_from_others scripts/rlock.hpp
    "if redis.call('exists', lock) == 0 then"
    "if redis.call('hexists', lock, owner) == 0 then"
    "integration/(rlock_protocol|rlock_waiting)")

# A release frees the lock and notifies no waiter.
mutate(release_without_publish scripts/rlock.hpp
    "    redis.call('del', lock)\n    return redis.call(publish, channel, '0')"
    "    redis.call('del', lock)\n    return 1"
    "integration/(rlock_protocol|rlock_waiting)")

# All holds of a thread have the same number, and a late release ends the next one.
mutate(numbers_used_again lock/lock_core.hpp
    "Claim claim{owner, number, count, lease_of(lease, settings)};"
    "Claim claim{owner, count == 1 ? owner.number : number, count, lease_of(lease, settings)};"
    "unit/rlock|faults/late_locks")

# An Owner is the thread with the same number.
mutate(owner_is_a_thread base/ids.hpp
    "OwnerNumber(owner.number(), Sort::program)"
    "OwnerNumber(owner.number(), Sort::thread)"
    "(unit|integration)/owner")

# A caller that waits for its Owner does not notice that another caller of it has acquired the lock.
mutate(owner_waits_for_itself lock/acquires.hpp
    "return owner.is_of_program() && leases_.live_hold(owner);"
    "static_cast<void>(owner); return false;"
    "unit/owner")

# It notices that only when something else wakes it.
mutate(owner_sleeps_on lock/leases.hpp
    "if (owner.is_of_program()) core_.task.acquired_for(owner);"
    ""
    "(unit|integration)/owner")

# An unlock() that another one of its Owner overtakes reports a loss.
mutate(overtaken_unlock_is_a_loss lock/releases.hpp
    "if (!hold || hold->id != leaving.hold || !hold->live()) return {};"
    "if (!hold || hold->id != leaving.hold || !hold->live()) return errc::hold_lost;"
    "unit/owner")

# A waiter takes the number of a hold while a command that names it is in flight.
mutate(fair_number_in_flight lock/server_queue.hpp
    " && hold.changing == 0;"
    ";"
    "unit/owner")

# A writer that becomes a reader queues up behind the readers that wait for it.
mutate(writer_behind_its_readers lock/local_queue.hpp
    "request.one_try || me.writer != 0 ||"
    "request.one_try ||"
    "integration/owner")

# A reader sleeps although another caller of its Owner has become the writer.
mutate(reader_of_the_writer_sleeps session/key_holds.hpp
    "timers_->schedule(*readers_, Clock::now());"
    "static_cast<void>(timers_);"
    "unit/owner")

# Reentry with a short lease cuts a longer one.
mutate(reentry_shortens_the_lease scripts/hold_levels.hpp
    "    if left >= tonumber(lease) then return nil end\n"
    ""
    "integration/(rlock_lease|rlock_protocol)")

# A renewal creates a key that was deleted.
mutate(renewal_creates_the_key scripts/rlock.hpp
    "renewed[i] = redis.pcall('hexists', lock, ARGV[i + 2])"
    "renewed[i] = 1 redis.call('hset', lock, ARGV[i + 2], 1)"
    "integration/rlock_watchdog")

# A hand-over that runs out of memory counts as on its way indefinitely.
mutate(hand_over_on_its_way_for_ever lock/releases.hpp
    "if (!core_.kind.shared) core_.releasing = false;"
    "if (!core_.kind.shared && std::uncaught_exceptions() == 0) core_.releasing = false;"
    "unit/rlock_waiting")

# A release that runs out of memory counts as delivered.
mutate(release_without_memory_delivered lock/releases.hpp
    "last.reply = Reply::of(Reply::Kind::not_sent, std::string());"
    "last.reply = Reply::of(std::int64_t{0});"
    "unit/rlock_release")

# The reply to a renewal is applied to a later hold of its thread.
mutate(renewal_answers_for_the_next_hold lock/leases.hpp
    "if (hold && hold->live() && hold->id == renewal.hold) {"
    "if (hold && hold->live()) {"
    "unit/rlock_watchdog")

# The levels of a lost hold are forgotten, so a later unlock() does not report the loss.
mutate(lost_levels_forgotten lock/leases.hpp
    "core_.session.lost_levels().add(core_.kind.name, core_.key(), hold.owner, hold.count, hold.facts());"
    ""
    "unit/rlock_release|integration/rlock_watchdog")

# A message between the try and the subscription is lost.
mutate(no_second_try_once_subscribed wait/waiting_room.hpp
    "subscription_.confirmed();\n        notify();"
    "subscription_.confirmed();"
    "unit/rlock|integration/rlock_waiting|faults/(network|server)")

# A message that arrives during a try is lost.
mutate(message_during_a_try_forgotten wait/wait_queue.hpp
    "asked_ = generation;"
    "asked_ = generation_; static_cast<void>(generation);"
    "unit/(rlock|wait_queue)")

# Validity is counted from the reply, not from the request.
mutate(validity_from_the_reply lock/acquire_attempt.hpp
    "is_script() ? sent_->as_of_now() : asked_time_->as_of_now()"
    "is_script() ? Clock::now() : Clock::now()"
    "unit/rlock|faults/lost")

# The watchdog continues although the server reports that the hold is gone.
mutate(renewal_refusal_ignored lock/leases.hpp
    "case Renewed::refused: lose_at_server(*hold); break;"
    "case Renewed::refused: hold->renewed(sent, timeout); break;"
    "unit/rlock|integration/rlock_watchdog")

# The watchdog continues after unlock().
mutate(watchdog_outlives_unlock lock/releases.hpp
    "            leases_.finish(hold);\n            return leaving;"
    "            return leaving;"
    "unit/rlock|integration/(rlock_watchdog|rlock_interface)")

# An acquire of unknown outcome is forgotten, and blocks all others.
mutate(unknown_acquire_left_behind lock/acquires.hpp
    "if (asked.unsettled != 0 && !kept) undo(lock, asked, attempt.claim.lease);"
    ""
    "unit/rlock|faults/l")

# A hold taken by a late copy of an acquire is not released again.
mutate(late_acquire_not_released_again lock/outbox.hpp
    "if (item.unsettled < server_now) continue;"
    "if (item.unsettled >= 0) continue;"
    "unit/outbox|faults/late_locks")

# A release whose reply was lost is reported as a lost hold.
mutate(resent_release_is_a_loss lock/releases.hpp
    "answer.kind == ReleaseAnswer::Kind::not_held && !resent"
    "answer.kind == ReleaseAnswer::Kind::not_held"
    "unit/rlock|faults/lost")

# One process hands the lock over to itself without limit.
mutate(no_limit_to_local_hand_overs lock/local_hand_over.hpp
    "handoffs_ < hold.settings.local_handoff_limit"
    "handoffs_ < ~0u"
    "unit/rlock|integration/rlock_waiting")

# Late copies of an acquire and of its hand-over leave a hold that nobody has.
mutate(successor_is_settled lock/local_hand_over.hpp
    "if (!handed.unknown || handed.leaving.unsettled == 0) return 0;"
    "if (handed.unknown || handed.leaving.unsettled == 0) return 0;"
    "unit/rlock_waiting")

# The successor's number is released before the copy of the hand-over can no longer arrive.
mutate(successor_is_settled_with_the_acquire lock/local_hand_over.hpp
    "return std::max(handed.leaving.unsettled, handed.claim.until);"
    "return handed.leaving.unsettled;"
    "unit/rlock_waiting")

# A message that arrived before the reply to the release is still expected, and the next one is mistaken for it.
mutate(own_message_awaited_twice lock/local_queue.hpp
    "room_.queue.empty() && messages == messages_)"
    "room_.queue.empty())"
    "integration/rlock_waiting")

# The watching thread leaves, and no thread receives messages for the others.
mutate(watcher_leaves_in_silence session/background.hpp
    "if (watched && subscriptions_.active() + tracked_.count() > 1) transport_.wake();"
    ""
    "integration/rlock_waiting")

# A waiter polls although the server will tell it when the key changes.
mutate(poll_beside_the_news lock/local_queue.hpp
    "watch_.is_armed() ? watch_.try_again() : me.ask_again)"
    "me.ask_again)"
    "integration/key_watch")

# A writer that asks beside the place, which was told to look, asks again and again.
mutate(look_is_never_over lock/local_queue.hpp
    "        if (room_.queue.is_front(me)) place_.asks_elsewhere();\n"
    ""
    "unit/read_write_lock")

# The poll of a watched key that finds the lock taken is followed by the next at once.
mutate(net_poll_without_end lock/watched_key.hpp
    "        if (is_armed() && Clock::now() >= try_again_) disarm();\n"
    ""
    "integration/silence")

# Callers that want one permit take turns with others that cannot want less.
mutate(turns_for_one_permit semaphore/request_queue.hpp
    "want.amount() <= 1 || (want.amount() <= seen_ && now - seen_at_ <= lately)"
    "want.amount() <= seen_ && now - seen_at_ <= lately"
    "unit/request_queue")

# A lock that was released before the key was read stays unnoticed.
mutate(key_gone_before_the_read lock/watched_key.hpp
    "if (is_free(reply)) return true;"
    "if (is_free(reply)) return false;"
    "integration/key_watch")

# The connection that reads the watched keys is lost, and nobody hears of it.
mutate(reader_lost_in_silence redis/key_tracker.hpp
    "        news.disconnected();\n        ended_ = ended;"
    "        ended_ = ended;"
    "integration/key_watch")

# The connection that gets the news is lost, and nobody hears of it.
mutate(news_lost_in_silence redis/key_tracker.hpp
    "        void disconnected() override { listener.invalidated({}); }\n"
    "        void disconnected() override {}\n"
    "integration/key_watch")

# What the server refuses is asked again with each try.
mutate(tracking_refusal_is_forgotten session/tracked_keys.hpp
    "        if (refuses_tracking(reply)) {\n            possible_ = false;"
    "        if (refuses_tracking(reply)) {"
    "unit/tracked_keys")

# News that may concern every key concerns none.
mutate(news_of_all_keys_is_dropped session/tracked_keys.hpp
    "key.empty() ? std::pair(listeners_.begin(), listeners_.end())"
    "key.empty() ? std::pair(listeners_.end(), listeners_.end())"
    "unit/tracked_keys")

# A polling waiter sleeps for the lease that another thread of the process learned.
mutate(try_stops_the_spinning lock/local_queue.hpp
    "watch_.is_armed() ? watch_.try_again() : me.ask_again)"
    "watch_.is_armed() ? watch_.try_again() : never)"
    "integration/(spin_lock|std_interface)")

# A refused subscription also fails waiters that poll.
mutate(refusal_ends_the_spinning wait/waiting_room.hpp
    "[](const Member& m) { return m.listens; }"
    "[](const Member&) { return true; }"
    "integration/spin_lock")

# A reentry draws a new token, and the writes of the outer section are refused.
mutate(reentry_draws_a_token scripts/fenced_lock.hpp
    "local token = last_token(counter)\nif not token then return no_token() end\nreturn enter_again"
    "local token = redis.call('incr', counter)\nif not token then return no_token() end\nreturn enter_again"
    "integration/fenced")

# A late hand-over gives the lock to a number that no thread uses.
mutate(late_hand_over_succeeds scripts/rlock.hpp
    "local count = redis.call('hget', lock, owner)\nif not count then return nil end"
    "local count = '1'"
    "integration/rlock_protocol|faults/late_locks")

mutate(late_hand_over_of_a_fenced_lock_succeeds scripts/fenced_lock.hpp
    "local count = redis.call('hget', lock, owner)\nif not count then return nil end"
    "local count = '1'"
    "integration/fenced_lock")

mutate(late_hand_over_of_a_mutex_succeeds scripts/mutex.hpp
    "if current ~= value then return nil end\n"
    ""
    "faults/late_locks")

# An acquire takes effect however late it arrives.
mutate(late_acquire_takes_effect scripts/rlock.hpp
    "if now > tonumber(wanted_until) then return late(now) end\nif redis.call('exists', lock) == 0 then"
    "if redis.call('exists', lock) == 0 then"
    "integration/rlock_protocol|faults/late_locks")

mutate(late_fenced_acquire_takes_effect scripts/fenced_lock.hpp
    "if now > tonumber(wanted_until) then return late(now) end\nif redis.call('exists', lock) == 0 then"
    "if redis.call('exists', lock) == 0 then"
    "integration/fenced_lock")

mutate(late_fair_acquire_takes_effect scripts/fair_lock.hpp
    "if now > tonumber(ARGV[7]) then return late(now) end\n"
    ""
    "faults/late_locks")

mutate(late_read_acquire_takes_effect scripts/read_write_lock.hpp
    "if now > tonumber(ARGV[6]) then return late(now) end\n"
    ""
    "faults/late_locks")

mutate(late_write_acquire_takes_effect scripts/read_write_lock.hpp
    "if now > tonumber(ARGV[7]) then return late(now) end\n"
    ""
    "faults/late_locks")

# A late copy of a mutex's plain command holds longer than the first lease would have lasted.
mutate(late_plain_command_has_its_own_lease protocol/mutex.hpp
    "\"PXAT\", claim.lease_end}"
    "\"PXAT\", claim.lease_end + claim.lease.count()}"
    "faults/late_locks")

# A late force_unlock() ends the hold of whoever holds the lock by then.
mutate(late_forced_release_ends_any_hold scripts/giving_back.hpp
    "release(ARGV[i], '0'"
    "release(redis.call('hkeys', KEYS[1])[redis.call('hlen', KEYS[1])] or ARGV[i], '0'"
    "faults/late_locks")

mutate(late_forced_release_of_a_fair_lock_ends_any_hold scripts/fair_lock.hpp
    "if redis.call('hexists', lock, owner) == 1 then table.insert(changes, {'del', lock}) end"
    "if redis.call('exists', lock) == 1 then table.insert(changes, {'del', lock}) end"
    "faults/late_locks")

mutate(late_forced_release_of_a_mutex_ends_any_hold scripts/mutex.hpp
    "if current == ARGV[i] then redis.call('del', KEYS[1]) end"
    "if current then redis.call('del', KEYS[1]) end"
    "faults/late_locks")

# A renewal prolongs a hold after its sender has given it up.
mutate(late_renewal_prolongs scripts/rlock.hpp
    "if now > tonumber(wanted_until) then return late(now) end\nlocal renewed"
    "local renewed"
    "faults/late_locks")

# A refresh keeps the place of a waiter whose process has given it up.
mutate(late_refresh_keeps_the_place scripts/fair_lock.hpp
    "if now > tonumber(wanted_until) then return late(now) end\nlocal free"
    "local free"
    "faults/late_locks")

# After a loss of data the tokens start again from the beginning.
mutate(tokens_begin_anew scripts/fenced_lock.hpp
    "math.max(last + 1, now[1] * 1000000 + now[2])"
    "last + 1"
    "integration/fenced")

# A waiter that asks again enters the queue again.
mutate(fair_queues_up_twice scripts/fair_lock.hpp
    "local queued = head and redis.call('zscore', timeouts, owner)"
    "local queued = false"
    "integration/fair_lock")

# A free lock goes to any caller.
mutate(fair_lets_others_pass scripts/fair_lock.hpp
    "if free and (not head or head == owner) then"
    "if free then"
    "integration/fair_lock")

# Waiters behind the first of a free lock are answered to ask again at once, and spin.
mutate(fair_spins_behind_a_free_lock scripts/fair_lock.hpp
    "if free then return rest end"
    "if free then return 0 end"
    "integration/fair_lock")

# Dead waiters block the queue indefinitely.
mutate(fair_serves_the_dead scripts/fair_lock.hpp
    "if tonumber(ends) > now then return"
    "if true then return"
    "integration/fair_lock")

# A waiter that leaves does not wake the next one.
mutate(fair_keeps_the_turn scripts/fair_lock.hpp
    "if free then hand_on(first_alive()) else tell_next() end\nreturn now"
    "return now"
    "integration/fair_lock_script")

# The slot of a live waiter expires.
mutate(fair_refreshes_nobody lock/server_queue.hpp
    "if (ticket.is_waiting()) waiters.push_back(id);"
    "static_cast<void>(id);"
    "unit/fair_lock|integration/fair_lock_test")

# A waiter does not notice that it has lost its slot.
mutate(fair_lost_place_unnoticed lock/server_queue.hpp
    "reply.elements[i].integer != 0) continue;"
    "true) continue;"
    "unit/fair_lock")

# A waiter that gives up leaves its slot in the queue.
mutate(fair_stays_in_the_queue lock/server_queue.hpp
    "tickets_.erase(me.id);\n        undo_acquire(lock, request, me);"
    "tickets_.erase(me.id);"
    "unit/fair_lock|integration/fair_lock_test")

# The places of our waiters do not outlast the turn of a Redisson waiter before them.
mutate(fair_forgets_foreign_patience scripts/fair_lock.hpp
    "(foreign_before[waiter] or 0) * foreign_patience"
    "0"
    "integration/fair_lock_script")

# A message that arrives during a try is lost.
mutate(fair_message_during_a_try_forgotten lock/server_queue.hpp
    "if (answered) ticket.room.queue.asked(generation, me.ask_again);"
    "static_cast<void>(generation);\n        if (answered) ticket.room.queue.asked(ticket.room.queue.generation(), me.ask_again);"
    "unit/fair_lock")

# The last in the queue is served first.
mutate(fair_serves_the_last_first scripts/fair_lock.hpp
    "{'rpush', queue, owner, undo"
    "{'lpush', queue, owner, undo"
    "integration/fair_lock_order")

# A dead waiter delays the others by a whole lease.
mutate(fair_slot_of_a_whole_lease protocol/fair_lock.hpp
    "context.options.watchdog_timeout / 6"
    "context.options.watchdog_timeout"
    "unit/lock_protocols")

# The time of a waiter of a fair lock is the default, whatever the option says.
mutate(fair_waiter_timeout_ignored protocol/fair_lock.hpp
    "context.options.fair_waiter_timeout.value_or("
    "std::optional<Milliseconds>().value_or("
    "unit/lock_protocols|integration/fair_lock_test")

# A try_lock() that failed stays in the queue.
mutate(fair_try_lock_queues_up protocol/fair_lock.hpp
    "claim.queues ? slot_ : Milliseconds(0)"
    "slot_"
    "integration/std_interface")

# --- read-write lock --------------------------------------------------------------------------------------------------

# A reader enters while a writer holds the lock.
mutate(reader_beside_a_writer scripts/read_write_lock.hpp
    "elseif redis.call('hexists', lock, writer) == 0 then"
    "elseif false then"
    "integration/read_write")

# A writer enters while readers hold the lock.
mutate(writer_beside_readers scripts/read_write_lock.hpp
    "    if left ~= -2 then\n        if mark_ttl ~= '0' then"
    "    if false then\n        if mark_ttl ~= '0' then"
    "integration/read_write")

# A message that arrives before the reader listens reaches only the writer, which listens to the same channel.
mutate(no_second_try_on_a_warm_channel wait/waiting_room.hpp
    "if (subscription_.listen()) queue.notify();"
    "static_cast<void>(subscription_.listen());"
    "unit/read_write_lock")

# Readers exclude each other.
mutate(readers_exclude_readers scripts/read_write_lock.hpp
    "    if mode ~= 'write' then\n        if redis.call('exists', mark) == 1"
    "    if not mode then\n        if redis.call('exists', mark) == 1"
    "integration/std_interface")

# The field of a dead reader blocks writers after its lease.
mutate(dead_reader_blocks scripts/read_write_lock.hpp
    "if left == -2 then redis.call('hdel', lock, owner) end"
    "if left == -2 then left = 30000 end"
    "integration/read_write")

# A writer that continues as a reader does not notify others that they may join it.
mutate(downgrade_wakes_nobody scripts/read_write_release.hpp
    "    local answer = redis.call(publish, channel, '1')"
    "    local answer = 0"
    "integration/read_write_lock")

# A reader waits for itself.
mutate(upgrade_waits_for_ever read_write_lock.ipp
    "if (readers_.state().valid_until(request.owner) > now && state().valid_until(request.owner) <= now)"
    "if (false)"
    "integration/read_write")

# A stream of readers starves the writer that was promised precedence.
mutate(no_precedence scripts/read_write_lock.hpp
    "        if redis.call('exists', mark) == 1 then"
    "        if false then"
    "integration/read_write")

# The renewal ignores that the readers' leases have keys of their own.
mutate(read_leases_not_renewed scripts/read_write_lock.hpp
    "if left ~= -2 and left < lease then redis.call('pexpire', timeout, lease) end"
    ""
    "integration/read_write")

# The watchdog of one reader shortens the lease of another.
mutate(read_renewal_shortens_the_lease scripts/read_write_lock.hpp
    "if renewed[i] == 1 and redis.call('pttl', lock) < lease then"
    "if renewed[i] == 1 then"
    "integration/read_write_lock")

# Releasing a level ends its longer lease, although the holder relies on it.
mutate(level_takes_its_lease_along scripts/read_write_release.hpp
    "for i = count + 1, tonumber(current) do\n            lease"
    "for i = count + 1, tonumber(count) do\n            lease"
    "integration/read_write_lock")

# A writer that gave up blocks readers.
mutate(mark_left_behind lock/deliveries.hpp
    "core_.session.post(*call, [](const Reply&) {});"
    ""
    "unit/read_write_lock|integration/read_write_lock")

# A reader waits behind another reader of its process.
mutate(readers_stand_in_line lock/local_queue.hpp
    "return core_.kind.shared ? Instant{} : core_.holds.held_until();"
    "return core_.holds.held_until();"
    "unit/read_write_lock")

# A write hold whose lease is over stays on the server for as long as its owner reads.
mutate(ended_write_hold_stays protocol/read_write_lock.hpp
    ".outlives_lease = true}"
    ".outlives_lease = false}"
    "unit/read_write_lock|integration/read_write_lock")

# --- semaphores and latch ---------------------------------------------------------------------------------------------

# Texts that Lua takes for numbers, such as 'nan' and '0x10', count as permits.
mutate(counts_what_is_no_count scripts/exact_count.hpp
    "if text ~= '0' and not string.find(text, '^-?[1-9]%d*$') then return nil end"
    "if not tonumber(text) then return nil end"
    "integration/bad_inputs")

# Numbers that Lua rounds are accepted as counts and tokens.
mutate(counts_beyond_exactness scripts/exact_count.hpp
    "if math.abs(number) < 9007199254740992 then return number end"
    "if number then return number end"
    "integration/bad_inputs")

# A resent acquire takes permits twice.
mutate(semaphore_takes_twice scripts/semaphore.hpp
    "if before then return before end\nnow = time_in_ms()\nif now > wanted_until then return late(now) end\nlocal available = count_in"
    "now = time_in_ms()\nlocal available = count_in"
    "integration/semaphore")

# A resent release gives permits twice.
mutate(semaphore_gives_twice scripts/semaphore.hpp
    "if before then return before end\npublish, now = ARGV[7], time_in_ms()\nif now > wanted_until then return late(now) end\nlocal ends = wanted_until + margin\nlocal available = redis.call('get', semaphore)\nif only_existing"
    "publish, now = ARGV[7], time_in_ms()\nlocal ends = wanted_until + margin\nlocal available = redis.call('get', semaphore)\nif only_existing"
    "integration/semaphore")

# More permits are granted than there are.
mutate(semaphore_takes_too_many scripts/semaphore.hpp
    "if taken + wanted <= available then"
    "if taken + wanted <= available + 1 then"
    "integration/semaphore")

# A release is not published.
mutate(semaphore_release_without_publish scripts/semaphore.hpp
    "if total > 0 and permits > 0 then add_news"
    "if false then add_news"
    "integration/semaphore")

# The permits of an acquire of unknown outcome are not given back.
mutate(semaphore_gives_nothing_back scripts/semaphore.hpp
    "table.insert(changes, {'incrby', semaphore, whole(taken)})"
    ""
    "integration/semaphore")

# A permit whose lease is over never becomes available again.
mutate(permits_never_come_back scripts/permit_expirable_semaphore.hpp
    "put_back(changes, semaphore, leases, available, over)\n"
    "\n"
    "integration/permit")

# A resent count-down counts twice.
mutate(latch_counts_twice scripts/count_down_latch.hpp
    "if before then return {before} end"
    ""
    "integration/count_down")

# The end of the count is not published.
mutate(latch_end_without_publish scripts/count_down_latch.hpp
    "table.insert(changes, {publish, channel, '0'})"
    ""
    "integration/count_down")

# A delayed copy of an earlier request is executed.
mutate(late_copies_carried_out scripts/request_marks.hpp
    "if tonumber(last) < tonumber(request) then"
    "if last ~= request then"
    "integration.(semaphore|count_down)")

# A command that arrives when it is no longer wanted is executed, although its mark may have expired.
mutate(late_acquire_takes scripts/semaphore.hpp
    "if now > wanted_until then return late(now) end\nlocal available = count_in"
    "local available = count_in"
    "faults/late_synchronizers")

mutate(late_count_down_counts scripts/count_down_latch.hpp
    "if now > wanted_until then return late(now) end\nlocal ends = wanted_until + margin\nlocal text"
    "local ends = wanted_until + margin\nlocal text"
    "faults/late_synchronizers")

mutate(late_add_adds scripts/semaphore.hpp
    "if now > wanted_until then return late(now) end\nlocal ends = wanted_until + margin\nlocal available = redis.call('get', semaphore)\nif only_existing"
    "local ends = wanted_until + margin\nlocal available = redis.call('get', semaphore)\nif only_existing"
    "faults/late_synchronizers")

mutate(late_acquire_takes_leased_permits scripts/permit_expirable_semaphore.hpp
    "if now > wanted_until then return late(now) end\nlocal ends = wanted_until + margin\nlocal present"
    "local ends = wanted_until + margin\nlocal present"
    "faults/late_synchronizers")

# A take-back that leaves the mark of its acquire gives the permits back once more when a copy of it arrives.
mutate(take_back_leaves_the_mark scripts/semaphore.hpp
    "mark(marks, lane, request, 0, taken)"
    "mark(marks, lane, request, whole(taken), taken)"
    "faults/late_synchronizers")

# A take-back that writes no mark lets a copy of its acquire take permits afterwards.
mutate(take_back_writes_no_mark scripts/permit_expirable_semaphore.hpp
    "elseif not before and now <= wanted_until then"
    "elseif not before and now <= 0 then"
    "faults/late_synchronizers")

# A request that may have been executed, without any way to find out, is sent again.
mutate(unknowable_is_sent_again semaphore/idempotent_sender.hpp
    "if (request_id.may_be_done && read_late(reply).value_or(0) > marks_.mark_end(request_id)) {"
    "if (false && read_late(reply).value_or(0) > marks_.mark_end(request_id)) {"
    "faults/late_synchronizers")

# A missing right leaves half of a change behind.
mutate(half_a_change_stays scripts/all_or_none.hpp
    "if changes[k].undo then redis.pcall(unpack(changes[k].undo)) end"
    ""
    "faults/access_rights")

# Without PEXPIRE an acquire leaves a hash without a lease, and the lock can never be acquired again.
mutate(hash_without_a_lease scripts/hold_levels.hpp
    "    redis.call('del', lock)\n    return limited"
    "    return limited"
    "faults/access_rights")

# Without PEXPIRE a failed hand-over leaves the hold with both owners.
mutate(two_owners_without_pexpire scripts/hold_levels.hpp
    "{'hincrby', lock, successor, '1', undo = {'hdel', lock, successor}}"
    "{'hincrby', lock, successor, '1'}"
    "faults/access_rights")

# In its last millisecond PEXPIRE deletes the hash, and HINCRBY creates it without a lease.
mutate(written_after_its_lease scripts/hold_levels.hpp
    "local changes = {{'hdel', lock, ''}}"
    "local changes = {{'pexpire', lock, math.max(1, left, lease)}}"
    "faults/access_rights")

# Without ZREM a waiter acquires the lock although its reply is an error.
mutate(held_without_leaving_the_queue scripts/fair_lock.hpp
    "{{'hincrby', lock, owner, '1', undo = {'del', lock}}, {'pexpire', lock, lease}}"
    "{{'hincrby', lock, owner, '1'}, {'pexpire', lock, lease}}"
    "faults/access_rights")

# The marks of a client end while it gives permits back: the mark of that is never removed.
mutate(marks_without_an_end scripts/semaphore.hpp
    "mark(marks, lane, request, 0, taken), keep(marks, now, ends)}"
    "mark(marks, lane, request, 0, taken)}"
    "faults/access_rights")

# A hold that stays for its last millisecond ends before the next one in the queue is told of it.
mutate(nobody_told_of_an_ended_stay scripts/fair_lock.hpp
    "if type(left) ~= 'number' or left == -1 then return end"
    "if type(left) ~= 'number' or left <= 0 then return end"
    "faults/access_rights")

# Without PEXPIRE a writer that fails to continue as a reader loses its hold.
mutate(downgrade_loses_the_writer scripts/read_write_release.hpp
    "{'hdel', lock, writer, undo = {'hset', lock, writer, current}}"
    "{'hdel', lock, writer}"
    "faults/access_rights")

# Without DEL a release of one level leaves the lock its new lease.
mutate(refused_release_changes_the_lease scripts/read_write_release.hpp
    "local changes = {{'hdel', lock, '', tidy = earlier_lease(lock, left)}}"
    "local changes = {{'hdel', lock, ''}}"
    "faults/access_rights")

# There are more permits than Redisson can represent.
mutate(permits_beyond_an_int scripts/semaphore.hpp
    "if permits > 0 and total > most or permits < 0 and total < -most then return too_many() end"
    ""
    "integration/semaphore")

# The destructor of a Permit waits for the reply.
mutate(permit_waits_when_it_goes permit_expirable_semaphore.hpp
    "semaphore_->release_later(*id_);"
    "{ std::error_code ec; semaphore_->release(*id_, ec); }"
    "unit/permit_expirable")

# The copy of a Permit in a forked child releases the parent's.
mutate(permit_of_the_parent_released permit_expirable_semaphore.hpp
    "if (id_ && process_ == detail::this_process())"
    "if (id_)"
    "integration/client_fork")

# In a forked child permits are divided with the parent's mutex.
mutate(permits_split_by_the_parents_mutex semaphore/permits.ipp
    "keeper_->is_of_this_process() ? keeper_->split(ids) : keeper_;"
    "keeper_->split(ids);"
    "integration/client_fork")

# Operations, holds and permits do not count as users of a state.
mutate(state_goes_with_its_objects session/registry.hpp
    "            ++state.users_;\n"
    "            state.users_ += state.users_ == 0 ? 1 : 0;\n"
    "unit/registry|integration/(release_all|permits_test)")

# A look ends the wait of a caller that joined after it.
mutate(release_watch_tells_old_news lock/release_watch.hpp
    "if (waiter.number > last)"
    "if (waiter.number == 0)"
    "unit/release_watch")

# An object does not notice that a release by id goes on in the background.
mutate(release_left_to_the_background_is_silent permit_expirable_semaphore.ipp
    "if (failure == PermitState::Failure::left)"
    "if (false)"
    "unit/permit_expirable")

# A refused update_lease() leaves the permit as valid as the lease that it did not get.
mutate(refused_lease_counts semaphore/permit_leases.hpp
    "if (restores_validity) "
    "if (false) "
    "unit/permit_expirable")

# A request for more permits than there can ever be blocks all requests behind it.
mutate(big_request_blocks_for_good semaphore/request_queue.hpp
    "return !is_within_reach(want, now);"
    "return false;"
    "unit/request_queue|integration/semaphore")

# A request for many permits starves.
mutate(small_requests_overtake scripts/semaphore.hpp
    "if tonumber(ARGV[i]) > 0 then break end"
    ""
    "integration.semaphore")

# A release is refused when memory is full.
mutate(release_does_not_write_first scripts/semaphore.hpp
    "local changes = {keep(marks, now, ends), mark(marks, lane, request, 1), keep(marks, now, ends)}"
    "local changes = {mark(marks, lane, request, 1), keep(marks, now, ends)}"
    "integration.semaphore")

# The head of the queue waits for the end of the mark of a writer that does not queue, and has come and gone.
mutate(head_waits_for_a_mark scripts/read_write_queue.hpp
    "math.min(marked or 0, stand_in)"
    "(marked or 0)"
    "integration/read_write_grants")

# --- the queue of a semaphore ------------------------------------------------------------------------------------------

# A release tells nobody in the queue.
mutate(queue_is_not_told scripts/semaphore_queue.hpp
    "elseif want <= left then"
    "elseif false then"
    "integration/semaphore_queue")

# A release tells everybody.
mutate(everybody_is_told scripts/semaphore_queue.hpp
    "{publish, channel, (told and '0' or '') .. whole(total)}"
    "{publish, channel, whole(total)}"
    "integration/semaphore_queue")

# Those who know nothing of the queue hear nothing of a release that tells the queue.
mutate(others_hear_nothing scripts/semaphore_queue.hpp
    "if others > 0 then return false end"
    ""
    "integration/semaphore_queue")
mutate(listeners_at_replicas_hear_nothing scripts/semaphore_queue.hpp
    "string.find(info, 'connected_slaves:0', 1, true) ~= nil"
    "string.find(info, 'connected_slaves:', 1, true) ~= nil"
    "integration/semaphore_queue")

# A client listens to its own channel first: it counts as the listener that somebody else is.
mutate(own_channel_comes_first semaphore/synchronizer.hpp
    "room_.listen();\n        if (place_.listen()) room_.notify();\n    }"
    "if (place_.listen()) room_.notify();\n    }"
    "integration/semaphore_queue")

# A caller for whom there are too few permits tells everybody of them, itself included.
mutate(refused_caller_tells_everybody scripts/semaphore_queue.hpp
    "if not (done and is_enough or is_known) then"
    "if not (done and is_enough) then"
    "integration/semaphore_queue")

# Half of the queue is lost, and nobody notices.
mutate(half_a_queue_is_kept scripts/semaphore_queue.hpp
    "if queued ~= placed and queued ~= placed - redis.call('hexists', places, 'turn') then"
    "if false then"
    "integration/semaphore_queue")

# Nobody stands in for a client that is frozen.
mutate(nobody_stands_in scripts/semaphore_queue.hpp
    "elseif (granted or told > 0 and want <= total) and standing_in < 2 then"
    "elseif false then"
    "integration/semaphore_queue")

# A client that was told and has not asked stays the first.
mutate(silent_place_stays scripts/semaphore_queue.hpp
    " or (asks > 0 and asks < now - 2 * stand_in) then"
    " then"
    "integration/semaphore_queue")

# A client that is gone counts as told.
mutate(gone_client_counts_as_told scripts/semaphore_queue.hpp
    "if heard == 0 then drop(id) end\n    return heard ~= 0"
    "return true"
    "integration/semaphore_queue")

# A client that leaves the queue keeps for itself what it was told.
mutate(told_client_leaves_in_silence scripts/semaphore_queue.hpp
    "drop(id)\ntell_queue(count_in"
    "drop(id)\nlocal _ = (count_in"
    "integration/semaphore_queue")

# Who takes a part of the permits keeps for itself that there are more.
mutate(rest_is_not_told scripts/semaphore.hpp
    "tell_queue(left, is_known)\n"
    ""
    "integration/semaphore_queue")
mutate(rest_of_leased_permits_is_not_told scripts/permit_expirable_semaphore.hpp
    "tell_queue(left, is_known)\n"
    ""
    "integration/semaphore_queue")

# A caller that stays unserved beside another does not learn when the next lease ends.
mutate(unserved_caller_knows_no_end scripts/permit_expirable_semaphore.hpp
    "if least and first < never then answer[2]"
    "if least and taken == 0 and first < never then answer[2]"
    "integration/permit_expirable_semaphore")

# A client that may not use the keys of the queue sends a release of the background again and again.
mutate(background_insists_on_the_queue semaphore/request_deliveries.hpp
    "if (core_.sender.is_queue_refused(keys, reply)) return failed(number);"
    "static_cast<void>(keys);"
    "integration/semaphore_queue")

# A process that is served in part keeps its place before the others.
mutate(served_process_stays_first scripts/semaphore_queue.hpp
    "if is_new or is_served then"
    "if is_new then"
    "integration/semaphore_queue|faults/semaphore")

# A process that no longer waits keeps its place.
mutate(place_is_not_left semaphore/synchronizer.hpp
    "if (room_.queue.empty()) place_.leave(lock);"
    ""
    "integration/semaphore_queue")

# Clients in the queue ignore the releases of those that know nothing of it.
mutate(foreign_release_is_ignored protocol/semaphore_queue.hpp
    "return payload.size() > 1 && payload.front() == '0';"
    "return !payload.empty();"
    "integration/semaphore_queue")

# The representative sleeps on when it is told to ask.
mutate(told_client_sleeps_on semaphore/synchronizer.hpp
    "if (step.ask || now >= place_.ask_at()) return {NextStep::Kind::ask};"
    "if (step.ask) return {NextStep::Kind::ask};"
    "integration/semaphore_queue")

# A user without a right to the keys of the queue cannot wait.
mutate(semaphore_insists_on_its_queue semaphore/idempotent_sender.hpp
    "return queue_ && queue_->is_refused(keys, reply);"
    "return false;"
    "integration/semaphore_queue")

# Permits of unknown outcome stay taken, although no thread has them.
mutate(unknown_permits_left_behind semaphore/questions.hpp
    "if (unknown && !("
    "if (unknown && wants.empty() && !("
    "unit|integration.semaphore")

# Permits for a thread that left during the request are not given back.
mutate(unclaimed_permits_left_behind semaphore/synchronizer.hpp
    "unclaimed.push_back(std::move(wants[i]));"
    "{}"
    "unit.semaphore")

# Waiters of a latch wait for the next count, too.
mutate(next_count_keeps_waiters protocol/count_down_latch.hpp
    "want.served = open || (want.round && !round.empty() && *want.round != round);"
    "want.served = open;"
    "unit.count_down|integration.count_down")

# An acquire is repeated with the permit id that is being taken back.
mutate(permit_ids_used_again semaphore/synchronizer.hpp
    "wants.back().renew();"
    ";"
    "unit.permit")

# A process with waiters sleeps on although a lease has ended.
mutate(next_expiry_ignored protocol/permit_expirable_semaphore.hpp
    "over_in < 0 || over_in == Milliseconds::max().count() ? Milliseconds::max() : Milliseconds(over_in + 1)"
    "Milliseconds::max()"
    "unit.permit|integration.permit")

# The plain command is SET without NX.
mutate(mutex_takes_it_from_others protocol/mutex.hpp
    "{\"SET\", key_, text(claim.hold), \"NX\", \"PXAT\", claim.lease_end}"
    "{\"SET\", key_, text(claim.hold), \"PXAT\", claim.lease_end}"
    "integration/mutex")

# A release ends any hold.
mutate(mutex_release_compares_nothing scripts/mutex.hpp
    "if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end"
    ""
    "integration/mutex")

# All holds have the same value, and a late release ends a later hold.
mutate(mutex_value_is_the_owner protocol/lock_protocol.hpp
    "return {uuid_, hold};"
    "return {uuid_, hold * 0};"
    "unit/mutex|integration/mutex")

# A renewal extends a foreign hold, and the loss of our own goes unnoticed.
mutate(mutex_renewal_compares_nothing scripts/mutex.hpp
    "if current == ARGV[i + 2] then"
    "if current then"
    "integration/mutex")

# A resent acquire finds its own value, and waits for itself.
mutate(mutex_resend_is_refused scripts/mutex.hpp
    "if current ~= value then return left end"
    "if true then return left end"
    "integration/mutex")

# The first reply without a lock is final, and the type of the key is not checked.
mutate(mutex_refusal_is_not_looked_into protocol/mutex.hpp
    "if (reply.is_nil()) return acquire_by_script(claim);"
    "if (reply.is_nil()) return Call::command({\"PTTL\", key_});"
    "unit/mutex|integration/mutex")

# A server without a native compare-and-delete command executes no release.
mutate(mutex_needs_the_native_delete protocol/mutex.hpp
    "if (sent.script() || !reply.is_error() || classify(reply) != ReplyClass::refused) return std::nullopt;"
    "if (sent.script() || reply.answered()) return std::nullopt;"
    "unit/mutex|integration/mutex")

# A hand-over resurrects a hold that was lost.
mutate(mutex_hand_over_compares_nothing scripts/mutex.hpp
    "if current ~= value then return nil end"
    ""
    "integration/mutex")

# Two kinds of locks on one key mistake each other's holds for their own.
mutate(kinds_are_mixed lock/acquires.hpp
    "if (auto refusal = leases_.mixed_kinds()) throw *std::move(refusal);"
    ""
    "unit/rlock|integration/fair_lock_test")

# The holder of a plain mutex acquires it a second time.
mutate(mutex_is_reentrant lock/acquires.hpp
    "return core_.kind.reentrant && reentry == Reentry::allowed;"
    "return reentry == Reentry::allowed;"
    "unit/mutex|integration/mutex")

# The holder of a NonReentrantLock acquires it a second time.
mutate(non_reentrant_lock_is_reentrant lock/named_lock.ipp
    "request.reentry = reentry_;"
    "static_cast<void>(request);"
    "(unit/owner|integration/non_reentrant)")

# Its try_lock() throws, or its lock() fails in silence.
mutate(non_reentrant_try_throws lock/acquires.hpp
    "if (request.one_try && core_.kind.reentrant) co_return false;"
    ""
    "(unit/owner|integration/non_reentrant)")
mutate(non_reentrant_lock_is_silent lock/acquires.hpp
    "if (request.one_try && core_.kind.reentrant) co_return false;"
    "if (core_.kind.reentrant) co_return false;"
    "(unit/owner|integration/non_reentrant)")

# An object that holds it gets one more level.
mutate(non_reentrant_hold_nests lock/lock_api.hpp
    "facts_, request_.reentry}"
    "facts_}"
    "integration/(hold_test|non_reentrant)")

# As a member of a MultiLock it is reentrant.
mutate(non_reentrant_member_nests quorum/lock_member.hpp
    "LockAccess::reentry(lock_)"
    "Reentry::allowed"
    "integration/non_reentrant")

# The waiter that becomes the first in the queue is not notified of the new holder's lease.
mutate(fair_next_is_not_told scripts/fair_lock.hpp
    "if head and not refusal then tell_next() end"
    ""
    "integration/fair_lock")

# The process's own release does not wake a thread that asked before it and starts to wait after it.
mutate(own_release_is_no_news lock/local_queue.hpp
    "                room_.queue.notify();\n            }\n            // Who waits"
    "            }\n            // Who waits"
    "unit.rlock_waiting")

# The largest number of milliseconds is incremented, and overflows.
mutate(next_expiry_overflows protocol/permit_expirable_semaphore.hpp
    "over_in < 0 || over_in == Milliseconds::max().count()"
    "over_in < 0"
    "unit.fuzz_findings")

# --- faults -----------------------------------------------------------------------------------------------------------

# Half a command stays in the buffer when memory runs out, and corrupts all that follow.
mutate(half_a_command_is_sent redis/pipeline.hpp
    "to_write_.resize(before);\n            throw;"
    "throw;"
    "unit/pipeline|faults/(no_memory|failing)")

# Connections that are accepted and closed at once are opened again without back-off.
mutate(reconnects_in_a_storm redis/reconnect_policy.hpp
    "if (is_proven_) return;"
    "return;"
    "unit/reconnect_policy|faults/data_loss")

# A wake-up during a drain leaves a byte that is never read.
mutate(wake_up_left_in_the_pipe net/wake_pipe.hpp
    "if (::read(fds_[0], bytes.data(), bytes.size()) > 0) woken_.exchange(false);"
    "static_cast<void>(::read(fds_[0], bytes.data(), bytes.size()) > 0), woken_.exchange(false);"
    "faults/fail")

# A grant that was on its way for longer than its lease counts as a hold.
mutate(late_grant_believed lock/acquires.hpp
    "if (now >= redlatch::valid_until(asked.sent, lease) || leases_.live_hold(owner)) {"
    "if (leases_.live_hold(owner)) {"
    "faults/(client_ends|network)")

# A waiter that leaves the queue does not wake the next one.
mutate(leaving_waiter_wakes_nobody wait/waiting_room.hpp
    "} else if (was_front) {\n            wake_front();"
    "} else if (was_front) {"
    "integration/rlock_waiting")

# A write to a killed connection raises SIGPIPE and ends the program.
mutate(write_raises_a_signal net/socket.hpp
    "no_signal | MSG_DONTWAIT"
    "MSG_DONTWAIT"
    "faults/fail(ed|ing)_calls")

# A change of a latch that was given up takes effect after the reset that followed.
mutate(given_up_change_comes_late semaphore/changes.hpp
    "else if (request_id.may_be_done) {\n"
    "else if (request_id.may_be_done && !request_id.request) {\n"
    "(unit|integration)/count_down_latch")

# Two threads use one OpenSSL session at the same time.
mutate(tls_without_mutex net/openssl.hpp
    "const std::lock_guard lock(mutex_);\n        const detail::OpensslErrors errors;\n        // There"
    "const detail::OpensslErrors errors;\n        // There"
    "integration/tls_mutex")

# Any certificate of a trusted authority is accepted, whatever its host.
mutate(certificate_for_another_host net/openssl.hpp
    "X509_VERIFY_PARAM_set1_host(verify, wanted.data(), wanted.size()) == 1 &&"
    ""
    "integration/tls_refusal")

# Revoked certificates are accepted.
mutate(revoked_is_trusted net/openssl.hpp
    "X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL"
    "0"
    "integration/tls_refusal")

# Errors of the program in OpenSSL's queue are lost.
mutate(errors_of_the_program_lost net/openssl.hpp
    "i < count_; ++i)"
    "i < count_ && i > 16; ++i)"
    "integration/tls_test")

# Decrypted bytes that exceed the buffer wait for the next bytes from the network.
mutate(decrypted_is_left_behind redis/reply_receiver.hpp
    "std::array<char, TlsSession::full_room> bytes;"
    "std::array<char, 1024> bytes;"
    "integration/tls_test")

# A forked child ends the TLS session of its parent.
mutate(goodbye_of_a_child net/socket.hpp
    "static_cast<void>(tls_.release());"
    ""
    "integration/tls_client_fork")

# A command that is posted while a connection ends has no thread to complete it.
mutate(posted_and_stranded redis/command_connection.hpp
    "if (close_if_unused() && pipeline_.in_flight() > 0) call_driver(lock);"
    "close_if_unused();"
    "integration/command_connection")

# A failed connection is closed in order, and the kernel delivers its buffered commands later.
mutate(old_commands_come_late net/socket.hpp
    "if (std::exchange(failed_, false))\n            reset();\n        else if (tls_)"
    "failed_ = false;\n        if (tls_)"
    "integration/command_connection")

# A watching thread consumes the interrupt that was meant for the next one.
mutate(interrupt_taken_by_another redis/pubsub_connection.hpp
    "for (;;) {
            interrupts.begin_poll(at);
            const bool waits = interrupts.count() == seen &&"
    "for (bool first = true;;) {
            interrupts.begin_poll(at);
            const bool waits = (std::exchange(first, false) || interrupts.count() == seen) &&"
    "integration/pubsub_connection")

# A message wakes the serving thread beside the one that receives.
mutate(serving_thread_polls_on redis/pubsub_connection.hpp
    "        if (polled_) {
            const Instant soon"
    "        if (false) {
            const Instant soon"
    "integration/pubsub_connection")

# The thread that receives wakes the serving thread although that does not poll.
mutate(serving_thread_is_woken_in_vain redis/pubsub_connection.hpp
    "        const std::lock_guard serving(serving_);
        polled_ = false;"
    "        const std::lock_guard serving(serving_);"
    "integration/pubsub_connection")

# Of two threads at two connections one takes the interrupt of both.
mutate(one_pipe_for_two_connections net/wake_pipe.hpp
    "Place& place(At at) noexcept { return at == At::messages ? messages_ : invalidations_; }"
    "Place& place(At at) noexcept { return static_cast<void>(at), messages_; }"
    "unit/wake_pipe")

# A thread that polls is not woken.
mutate(poll_is_not_interrupted net/wake_pipe.hpp
    "if (place->is_polled) place->pipe.wake();"
    "if (!place->is_polled) place->pipe.wake();"
    "unit/wake_pipe")

# A thread that was turned away waits for a watcher that leaves without notice.
mutate(watcher_leaves_without_a_word redis/pubsub_connection.hpp
    "if (watcher_refused_.exchange(false)) wake_();"
    ""
    "integration/pubsub_connection")

# A thread that writes waits for a server that does not read, beyond its own deadline.
mutate(writes_beyond_its_deadline redis/command_connection.hpp
    "sent = socket().send_some(bytes);"
    "do sent = socket().send_some(bytes);\n            while (sent == Socket::Sent::some && socket().wait(POLLOUT, Clock::now() + timeout_));"
    "integration/command_connection|faults/server")

# The background thread waits for a connection that is not answered, and every renewal with it.
mutate(background_waits_to_connect net/side_work.hpp
    "return thread_.joinable();"
    "if (thread_.joinable()) thread_.join();\n        return true;"
    "integration/command_connection")

# A call fails because its own connection is refused, although another one is open.
mutate(late_connection_fails_a_call redis/standalone.hpp
    "return Clock::now() < deadline ? connected() : nullptr;"
    "static_cast<void>(deadline);\n        return nullptr;"
    "faults/refusal")

# Renewals wait for a connection that is refused, until the hold is lost.
mutate(renewals_wait_for_their_line redis/standalone.hpp
    "one.hand_over_to(*other);"
    "static_cast<void>(other);"
    "faults/refusal")

# The driver waits indefinitely for a mutex that it holds.
mutate(connection_is_handed_over_to_itself redis/command_connection.hpp
    "if (&other == this) return;"
    ""
    "integration/.*command_connection_test")

# Each connection waits out its back-off, although another one has shown that the server is back.
mutate(good_news_is_kept redis/standalone.hpp
    "bool has_ended_pause = subscriber_.try_again();"
    "bool has_ended_pause = false;"
    "faults/recovery")

# A thread that connects to a frozen master waits for the time-out, although another server is the master by now.
mutate(waits_for_the_old_master redis/reconnector.hpp
    "place_ = place;\n        abandon();"
    "place_ = place;"
    "faults/failover")

# The same for a node of a cluster.
mutate(waits_for_the_old_node redis/command_connection.hpp
    "reconnector_.abandon();"
    ""
    "faults/failover")

# A thread that connects while a node is turned away gets the reply to another command.
mutate(turned_away_but_open redis/command_connection.hpp
    "while (is_connected()) fail(lock"
    "fail(lock"
    "integration/command_connection")

# Commands that wait for replicas share a connection with others, which wait, too.
mutate(waits_for_replicas_on_shared_lines redis/standalone.hpp
    "replies = own.call_all(commands, deadline, &refused);"
    "replies = (static_cast<void>(own), connection()).call_all(commands, deadline, &refused);"
    "integration/replica_wait")

# The same in a cluster.
mutate(waits_for_replicas_on_the_line_of_the_node redis/cluster_node.hpp
    "if (!together) return shared.call_all"
    "if (!together || deadline != Instant{}) return shared.call_all"
    "integration/replica_wait")

# A call in a cluster fails because a further connection is refused, although its node has one.
mutate(late_connection_fails_a_call_in_a_cluster redis/cluster_node.hpp
    "return refused && shared.is_connected() ?"
    "return refused && false ?"
    "faults/cluster")

# A child that is forked while nodes leave the cluster finds some that have ended.
mutate(nodes_end_before_they_leave_the_list redis/slot_map.hpp
    "const std::unique_ptr<const Nodes> earlier(nodes_.exchange(nodes.release(), std::memory_order_acq_rel));"
    "delete nodes_.load();\n        nodes_.store(nodes.release());"
    "unit/slot_map")

# A plugin is unloaded during its look-up of a name, which then returns into unloaded code.
mutate(look_up_outlives_its_code net/resolver.hpp
    "keep_code_loaded();\n            thread_.detach();"
    "thread_.detach();"
    "plugins")

# Two shared objects that hide their symbols number the threads of a process each for itself, so two are one owner.
mutate(threads_numbered_twice base/ids.hpp
    "[[gnu::visibility(\"default\")]] inline std::uint64_t this_thread_number()"
    "inline std::uint64_t this_thread_number()"
    "plugins")

# --- locks over several servers ---------------------------------------------------------------------------------------

# Half of the servers suffice, so two halves hold the lock.
mutate(half_is_a_majority red_lock.ipp
    "members.size() / 2 + 1"
    "members.size() / 2"
    "integration/red_lock_test")

# A member that granted late keeps its part of a failed round.
mutate(late_grants_are_kept quorum/quorum_rounds.hpp
    "if (round->over) return round->hold != 0 && holds_.answered(lock, {owner, round->hold, member}, answer);"
    "if (round->over) return answer.kind == TryAnswer::Kind::held;"
    "integration/red_lock_fault")

# A member whose try came too late asks again for a lock that nobody wants any more.
mutate(late_tries_go_on lock/background_tries.hpp
    "if (!one->on_answer({TryAnswer::Kind::late})) return finish(*one);"
    "one->on_answer({TryAnswer::Kind::late});"
    "unit/acquire_attempt")

# The members of a failed round are not released.
mutate(some_are_kept_in_vain quorum/quorum_rounds.hpp
    "releases_.send(lock, request.owner, request.by, [&](std::size_t i) { return round->had(i); });"
    "QuorumReleases::Sent{};"
    "integration/multi_lock")

# Clocks are assumed to run at the same speed.
mutate(clocks_do_not_drift quorum/quorum_core.hpp
    "return rules.independent ? lease / 100 + Milliseconds(2) : Milliseconds(0);"
    "return Milliseconds(0);"
    "integration/red_lock_test")

# A server that has lost a hold votes for the next one.
mutate(young_servers_vote quorum/quorum_votes.hpp
    "if (!core_.rules.independent) return then(Instant::min(), std::nullopt);"
    "return then(Instant::min(), std::nullopt);"
    "integration/red_lock_restart")

# An unlock() leaves the servers beyond a majority blocked until the lease is over.
mutate(unlock_of_a_majority_only quorum/quorum_holds.hpp
    "end.of[i].leaving = share.levels > remaining ? 1 : 0;"
    "end.of[i].leaving = share.levels > remaining && i < core_.rules.needed ? 1 : 0;"
    "integration/red_lock_test")

# A part that is acquired again votes at once, however young its server.
mutate(adopted_without_a_look quorum/quorum_holds.hpp
    "share.votes_from = never;\n        ask_for_vote(lock, part);"
    "share.votes_from = Instant::min();"
    "integration/red_lock_restart")

# A missing reply counts as a vote.
mutate(silence_is_a_vote quorum/round.hpp
    "return p.kind == Kind::held && p.votes_from <= now;"
    "return p.kind == Kind::asked || (p.kind == Kind::held && p.votes_from <= now);"
    "unit/round")

# Members that have not answered yet count as dead when another one refuses.
mutate(asked_is_away quorum/round.hpp
    "(p.kind == Kind::asked && !p.awaited); });"
    "p.kind == Kind::asked; });"
    "unit/round")

# A member that others held meanwhile counts as held without interruption.
mutate(part_without_identity quorum/quorum_holds.hpp
    "part.hold == share.hold &&"
    ""
    "integration/multi_lock")

# A short lease over members with longer holds is ignored.
mutate(lease_of_the_members quorum/quorum_holds.hpp
    "return hold.watched() ? until : std::min(until, shares_.at(hold.owner).leases_end);"
    "static_cast<void>(hold); return until;"
    "integration/multi_lock")

# A thread that sleeps until a later loss is not woken for an earlier one.
mutate(earlier_loss_wakes_nobody session/losses.hpp
    "Timers timers{[this] { wake(); }, Timers::Of::loss};"
    "Timers timers{[] {}, Timers::Of::loss};"
    "unit/losses")

# No loss is reported before all that are due at that instant have been found.
mutate(first_is_told_with_the_last session/losses.hpp
    "while (expire_first_due(desk, now)) tell_all(desk);"
    "while (expire_first_due(desk, now)) {}"
    "unit/losses|faults/lost_in_time")

# Reporting many losses begins no earlier than reporting one.
mutate(telling_many_begins_late session/losses.hpp
    "desk_->lateness.notice() + all"
    "desk_->lateness.notice() + 0 * all"
    "unit/losses|faults/lost_in_time")

# A client that is destroyed during a hold does not report the loss.
mutate(end_of_client_is_silent session/registry.hpp
    "for (const auto& [_, state] : states_) state->abandon();"
    ""
    "unit/losses")

# A take-back that is refused half-way is taken for one that was carried out.
mutate(refused_take_back_marked scripts/request_marks.hpp
    "undo = {'hset', marks, lane, request .. ':' .. whole(before)}"
    "undo = nil"
    "faults/access_rights")

# A mark is undone with a right that may be missing.
mutate(mark_undone_by_del scripts/request_marks.hpp
    "local undo = {'hset', marks, lane, whole(request - 1) .. ':0'}"
    "local undo = {'del', marks}"
    "faults/access_rights|integration/count_down_latch_test")

# The thread that finds an event runs its handler, and waits for it.
mutate(handler_delays_losses session/events.hpp
    "            notifier_.notify([handler = options_.on_event,\n                              event = Event{kind, std::string(name), std::string(detail)}] { handler(event); });"
    "            options_.on_event(Event{kind, std::string(name), std::string(detail)});"
    "unit/rlock_watchdog")

# The records of holds whose lease ended without an unlock() stay.
mutate(expired_holds_kept lock/leases.hpp
    ": \"its lease expired\");\n        }\n        core_.holds.erase_lost();"
    ": \"its lease expired\");\n        }"
    "integration/process_state")

# The levels of lost holds are kept without a limit.
mutate(lost_levels_unlimited session/lost_levels.hpp
    "if (levels_.size() >= most) remove(levels_.find(order_.front()));"
    ""
    "unit/lost_levels")

# An expiry that failed for lack of memory is never repeated.
mutate(loss_forgotten_for_want_of_memory session/losses.hpp
    "desk.timers.schedule(*watched, now + again);"
    ""
    "unit/losses")

# The thread that reports losses is started only when there is a loss.
mutate(thread_for_losses_comes_late lock/acquires.hpp
    "session.start_losses();\n        session.start_background();"
    ""
    "faults/(failed|failing)_calls")

# A release is dropped because the password is wrong for a while.
mutate(denied_is_final transport/server_errors.hpp
    "return reply.is_error() && classify(reply) == ReplyClass::refused &&\n           !detail::is_denied(detail::error_code_word(reply.text), reply.text);"
    "return reply.is_error() && classify(reply) == ReplyClass::refused;"
    "unit/(server_errors|rlock_release)")

# A member whose release runs out of memory keeps its hold.
mutate(told_by_value quorum/lock_member.hpp
    "state().release_in_background(which, done, receiver);"
    "const auto copy = std::make_unique<std::function<void(std::error_code)>>(done);\n        state().release_in_background(which, *copy, receiver);"
    "faults/(no|failing)_memory")

# A child with the process id of its parent is taken for its parent.
mutate(fork_is_not_counted base/process.hpp
    "if (::madvise(page, size, MADV_WIPEONFORK) == 0)"
    "if (::madvise(page, size, MADV_NORMAL) == 0)"
    "integration/client_fork")

# A server whose clock jumps all the time gets the same command in a loop.
mutate(late_command_sent_in_a_loop session/retry.hpp
    "verdict == ReplyClass::late ||"
    ""
    "unit/rlock_acquire")

# A fair waiter takes the number of a hold for which a command may still be on its way.
mutate(unsettled_number_used_again lock/server_queue.hpp
    "if (settled && !resent && answer.kind"
    "if ((settled || !resent || true) && answer.kind"
    "unit/fair_lock")

# A slot that was never requested is given back, and reported as not delivered.
mutate(unasked_place_given_back lock/server_queue.hpp
    "if (error.code() != errc::unreachable || me.kept.unsettled != 0) undo_acquire"
    "undo_acquire"
    "unit/fair_lock")

# The time for which the machine was suspended is not noticed.
mutate(suspension_unseen base/suspended.hpp
    "detail::read_clock(CLOCK_BOOTTIME)"
    "detail::read_clock(CLOCK_MONOTONIC)"
    "unit/suspended")

# When several threads try at the same time, each releases its members.
mutate(nobody_goes_first quorum/round.hpp
    "return first != order.end() && parts_[*first].had;"
    "static_cast<void>(first); return false;"
    "unit/round|integration/multi_lock")

# A hold stays valid in valid_until() while the machine is suspended.
mutate(suspension_is_not_seen lock/hold_table.hpp
    "const Clock::duration grown = suspended_since(suspended);"
    "const Clock::duration grown{};"
    "integration/suspended")

# After a suspension nothing is reported before somebody looks at the hold.
mutate(resumption_is_not_noticed session/losses.hpp
    "desk.timers.hasten_all(now);"
    "static_cast<void>(now);"
    "integration/suspended")

# A lock over several goes on counting with the lease that it computed before a suspension.
mutate(quorum_ignores_a_suspension quorum/quorum_holds.hpp
    "shares.leases_end -= hold.check_suspension();"
    "static_cast<void>(hold.check_suspension());"
    "integration/suspended")

# A lost hold ignores that a copy of its acquire may still arrive.
mutate(loss_forgets_the_copy lock/leases.hpp
    "if (hold.unsettled != 0)\n            deliveries_.give_back_later("
    "if (false)\n            deliveries_.give_back_later("
    "unit/rlock_release")

# A wait shorter than a round trip is worse than one try: its first command has no time of its own.
mutate(short_wait_worse_than_none wait/patience.hpp
    "return first ? std::max(deadline, now + std::min(one_try(request.settings), honest_try)) : deadline;"
    "return static_cast<void>(first), deadline;"
    "faults/network")

# A renewal that was sent before a permit got its own lease prolongs that.
mutate(renewal_prolongs_the_new_lease permit_expirable_semaphore.ipp
    "leases.begin_change(id)"
    "leases.unwatch(std::span(&id, 1))"
    "faults/late_synchronizers")

# The object of a lost permit does not notice that.
mutate(permits_lost_in_silence semaphore/permit_records.hpp
    "if (permit.holder) report_loss(*permit.holder);"
    ""
    "integration/permits_lost")

# A permit with a lease of its own ends, and its object does not notice that.
mutate(limited_permits_not_recorded semaphore/permit_leases.hpp
    "if (!watched && !want.holder) return;"
    "if (!watched) return;"
    "integration/permits_lost")

# The end of a lease is reported only when something else looks at the permits.
mutate(end_of_permits_not_scheduled semaphore/synchronizer.hpp
    "core_.session.losses().timers().schedule(*this, lost_at);"
    "static_cast<void>(lost_at);"
    "integration/permits_lost")

# The thread that reports losses is not started for permits.
mutate(no_thread_for_lost_permits semaphore/permit_leases.hpp
    "void prepare() { core_.session.start_losses(); }"
    "void prepare() {}"
    "integration/permits_lost")

# A release forgets that a renewal is in flight, which may give the hold a longer lease.
mutate(release_forgets_a_renewal lock/releases.hpp
    "if (hold.renewing && hold.watched()) until"
    "if (hold.renewing && !hold.watched()) until"
    "faults/grants")

# The renewal of a grant that fails once is sent again when most of its short lease is over.
mutate(grant_renewed_again_too_late lock/hold_table.hpp
    "renewal_pause(watchdog_timeout, valid_until - now)"
    "renewal_pause(watchdog_timeout)"
    "unit/hold_table")

# Permits whose renewal was not sent are due again at once.
mutate(unsent_renewal_without_a_pause semaphore/permit_renewals.hpp
    "return renewal_pause(permit.lease, permit.valid_until - Clock::now());"
    "return Milliseconds(0);"
    "unit/permit_expirable")

# An object does not report the loss of a permit that it got by a split; the other one does.
mutate(split_permits_stay_with_the_other semaphore/permit_leases.hpp
    "if (among(permit.id)) permit.holder = to;"
    "static_cast<void>(permit), static_cast<void>(to);"
    "integration/permits_lost")

# A merge forgets the token of the object that was merged.
mutate(merged_token_forgotten semaphore/permit_leases.hpp
    "to->lost->merge(*std::move(lost));"
    "lost.reset();"
    "integration/permits_lost")

# An object that takes over a lost permit says nothing.
mutate(lost_permit_merged_in_silence semaphore/permit_leases.hpp
    "if (records_.has_lost(*to)) records_.report_loss(*to);"
    ""
    "integration/permits_lost")

# valid_until() of an object ignores what is lost.
mutate(lost_permits_are_valid semaphore/permit_leases.hpp
    "permit.lost ? Instant::min() : permit.valid_until"
    "permit.valid_until"
    "integration/permits_lost")

# Permits of an object that were given back are lost, too.
mutate(released_permits_are_lost semaphore/permit_leases.hpp
    "records_.erase_if([&](const PermitRecord& permit) { return permit.is_of(holder); });"
    "static_cast<void>(holder);"
    "integration/permits_lost")

# An object that has lost one permit does not give back the others.
mutate(other_permits_not_released permit_expirable_semaphore.ipp
    "        state_->leases().give_back_later(ids);\n        return errc::unknown_permit;"
    "        return errc::unknown_permit;"
    "integration/permits_lost")

# Its destructor does not, either.
mutate(other_permits_not_dropped permit_expirable_semaphore.ipp
    "state_->leases().give_back_later(std::move(ids));"
    "state_->leases().release_later(ids);"
    "integration/permits_lost|unit/permit_expirable")

# A release by id is unknown to the object of the permit.
mutate(release_by_id_unnoticed permit_expirable_semaphore.ipp
    "        if (released)\n            leases.lose(ids, PermitLeases::released_by_id);\n        else\n"
    "        if (!released)\n"
    "integration/permits_lost")

# A refused release by id ends the renewal of an object's permits.
mutate(refused_release_ends_renewals semaphore/permit_leases.hpp
    "permit->ask_at = std::min(permit->ask_at, was.ask_at);"
    ""
    "integration/permits_lost")

# The loss of many permits is reported no earlier than that of one.
mutate(telling_many_permits_begins_late semaphore/permit_leases.hpp
    "core_.session.losses().notice(records_.size())"
    "core_.session.losses().notice()"
    "unit/permit_expirable")

# The validity of permits counts from the reply to their renewal.
mutate(permits_valid_from_the_reply semaphore/permit_renewals.hpp
    "renewed_all(ids, renews, reply, sent);"
    "renewed_all(ids, renews, reply, SendTime());"
    "unit/permit_expirable")

# While update_lease() is in flight, the old lease counts.
mutate(lease_in_flight_ignored permit_expirable_semaphore.ipp
    "leases.change_lease(id, sent, lease, true);"
    ""
    "unit/permit_expirable")

# The new lease of a permit is unknown to its object.
mutate(new_lease_unnoticed permit_expirable_semaphore.ipp
    "leases.change_lease(id, sent, lease, false);"
    ""
    "integration/permits_lost")

# A suspension of the machine does not bring the end of permits nearer.
mutate(permits_outlive_a_suspension semaphore/permit_records.hpp
    "if (valid_until != never) valid_until -= by;"
    ""
    "integration/suspended")

# After a failover only the permits under the watchdog are verified.
mutate(limited_permits_not_verified semaphore/permit_leases.hpp
    "for (PermitRecord& permit : records_) permit.ask_at = Clock::now();"
    "for (PermitRecord& permit : records_)\n            if (permit.watched) permit.ask_at = Clock::now();"
    "in_memory/permits_lost")

# To verify a permit with a lease of its own prolongs that.
mutate(verifying_prolongs_permits semaphore/permit_records.hpp
    "PermitRenewal{false, Milliseconds(1), replication}"
    "PermitRenewal{false, Milliseconds(30000), replication}"
    "in_memory/permits_lost")

# A forked child asks the parent's state about its copies of permits.
mutate(child_asks_for_permits semaphore/permits.ipp
    "if (count_ == 0 || !keeper_->is_of_this_process()) return detail::requested_token();"
    "if (count_ == 0) return detail::requested_token();"
    "integration/client_fork")

# A forked child begins an operation of its parent.
mutate(child_begins_for_the_parent session/under_way.hpp
    "if (process_ != this_process())"
    "if (false)"
    "integration/client_fork")

# One try of several locks goes on although the servers have refused it.
mutate(several_locks_try_again quorum/quorum_acquire.hpp
    "(request.one_try && outcome.by_servers)"
    "false"
    "faults/refusal")

# A key without a lease is waited for.
mutate(key_without_a_lease_is_a_lock scripts/giving_back.hpp
    "return redis.error_reply('WRONGTYPE the key has no lease, so it is no lock') end"
    "return -1 end"
    "integration/(rlock_protocol|bad_inputs|fair_lock_script)")

# The server does not tell two kinds of lock on one key apart.
mutate(rlock_on_a_read_write_lock scripts/rlock.hpp
    "if redis.call('hexists', lock, 'mode') == 1 then"
    "if false then"
    "integration/rlock_protocol")
mutate(fenced_lock_on_a_read_write_lock scripts/fenced_lock.hpp
    "if redis.call('hexists', lock, 'mode') == 1 then"
    "if false then"
    "integration/rlock_protocol")
mutate(fair_lock_on_a_read_write_lock scripts/fair_lock.hpp
    "if not free and redis.call('hexists', lock, 'mode') == 1 then"
    "if false then"
    "integration/fair_lock_script")

# A try of one lock is repeated after a temporary refusal.
mutate(one_try_tries_again session/retry.hpp
    "if (limits_.one_try && verdict"
    "if (false && verdict"
    "faults/refusal|unit/rlock_acquire")

# The first round of a short wait gets no time of its own.
mutate(first_round_is_too_short quorum/quorum_acquire.hpp
    "std::exchange(me.asked, true) ? request.deadline : std::max(request.deadline, asked + Patience::honest_try);"
    "request.deadline;"
    "faults/network")

# A Mutex relies on an old reading of the server's clock.
mutate(old_reading_of_the_clock lock/acquire_attempt.hpp
    " && now->age <= good_for_plain"
    ""
    "faults/clocks")

# A hold of an object is not released by its destructor.
mutate(hold_is_dropped lock/hold.ipp
    "level_.keeper->release_later(level_.hold());"
    "static_cast<void>(level_.owner);"
    "integration/hold")

# Objects that have a hold of several locks go on after these.
mutate(hold_outlives_its_members quorum/quorum_state.hpp
    "while (release_level_later(owner)) continue;"
    "static_cast<void>(owner);"
    "integration/hold")

# inspect() lists waiters that are dead.
mutate(inspection_lists_the_dead scripts/inspection.hpp
    "if ends > now then\n        table.insert(waiting, waiter)"
    "if ends then\n        table.insert(waiting, waiter)"
    "integration/inspect")

# inspect() lists readers whose lease is over.
mutate(inspection_lists_expired_readers scripts/read_write_lock.hpp
    "if left ~= -2 and #holds < 3000 then"
    "if count and #holds < 3000 then"
    "integration/inspect")

# inspect() lists permits whose lease is over, in place of some that are held.
mutate(inspection_lists_expired_permits scripts/permit_expirable_semaphore.hpp
    "whole(over), whole(over + 999), 'withscores')"
    "'0', '999', 'withscores')"
    "integration/inspect")

# The reply to CLIENT SETNAME is taken for the reply to the first command.
mutate(name_answers_the_first_command redis/connection.hpp
    "if (!url.client_name.empty()) reader.skip_next();"
    ""
    "integration/client_name")

# A server that has no room for a connection is not heard, because its only reply is dropped.
mutate(refusal_dropped_with_the_name redis/reply_reader.hpp
    "std::exchange(skips_next_, false) && !precedes_close(out)"
    "std::exchange(skips_next_, false)"
    "unit/reply_reader|integration/client_name")

# The login in the URL is used in place of the one that a function returns.
mutate(login_by_a_function_ignored redis/connection.hpp
    "login = (*url.credentials)();"
    "static_cast<void>((*url.credentials)()), login.user = url.user;"
    "unit/connection_test|integration/credentials")

# A slow function for the login leaves the server no time to reply.
mutate(login_costs_the_time_of_the_server redis/connection.hpp
    "if (deadline != never) deadline += Clock::now() - asked;"
    "if (deadline != never) deadline += asked - asked;"
    "unit/connection_test")

# The caller's own thread waits for a function that blocks, beyond the caller's deadline.
mutate(login_on_the_thread_of_the_caller redis/reconnector.hpp
    "} else if (url_.credentials) {"
    "} else if (false) {"
    "unit/reconnector|integration/credentials")

# A call goes on with a login that the server has refused.
mutate(refused_login_tried_again redis/reconnector.hpp
    "if (has_failed && !policy_.is_unreachable()) return why_not();"
    ""
    "unit/reconnector")

# The watchdog renews a hundred holds by a command, whatever the option says.
mutate(renewal_batch_ignored session/session.hpp
    "counters_, options_.renewal_batch}"
    "counters_, 100}"
    "integration/rlock_budget")

# The same for permits.
mutate(renewal_batch_of_permits_ignored semaphore/permit_renewals.hpp
    "core_.session.options().renewal_batch, "
    "100, "
    "integration/permit_expirable")

# release_all() does not wait until the server has the holds back.
mutate(release_all_does_not_wait lock/releases.hpp
    "            round->begin(1);\n            core_.outbox.add({number}, unsettled, give_up, now, std::move(answered), hold.stays_until);"
    "            core_.outbox.add({number}, unsettled, give_up, now, {}, hold.stays_until);"
    "integration/release_all")

# A hold that release_all() gave back counts as held by its owner, who goes on.
mutate(release_all_tells_no_owner lock/releases.hpp
    "leases_.lose(hold, \"release_all() gave it back\");"
    "leases_.finish(hold); break;"
    "integration/release_all")

# A lock over several does not notice that release_all() took its members.
mutate(release_all_unnoticed_by_quorum session/losses.hpp
    "desk_->timers.hasten_all(Clock::now());\n        desk_->wake();"
    ""
    "integration/release_all")

# A hold that is lost counts as held for ever.
mutate(lost_holds_count_as_held lock/leases.hpp
    "        count_end(hold);\n        core_.key_holds->ended(hold.id);\n        hold.count = 0;"
    "        core_.key_holds->ended(hold.id);\n        hold.count = 0;"
    "integration/stats")

# A semaphore that expires leaves the permits of its owners behind.
mutate(permits_outlive_their_semaphore scripts/counter_upkeep.hpp
    "if leases then table.insert(changes, {'pexpire', leases, before_end(tonumber(ttl))}) end"
    ""
    "integration/upkeep")

# remove() leaves the permits of a semaphore that is gone already.
mutate(removal_overlooks_permits scripts/counter_upkeep.hpp
    "if not number and not (leases and redis.call('zcard', leases) > 0) then"
    "if not number then"
    "integration/upkeep")

# A reader whose lease is over counts as a holder.
mutate(expired_reader_holds protocol/read_write_lock.hpp
    "return {digested<scripts::read_hold_count>, {key_}, {field, tag_}};"
    "return Call::command({\"HGET\", key_, field});"
    "integration/held_by")

# A server that refuses to let the permits of a semaphore expire leaves the semaphore itself with an expiry.
mutate(half_an_expiry_stays scripts/counter_upkeep.hpp
    "undo = left >= 0 and {'pexpire', counter, whole(math.max(left, 1))} or {'set', counter, number}})"
    "undo = nil})"
    "faults/access_rights")

# The in-memory server: a key ends a millisecond early.
mutate(in_memory_key_ends_early testing/keyspace.hpp
    "value.expires >= 0 && value.expires < now_ms()"
    "value.expires >= 0 && value.expires <= now_ms()"
    "integration/in_memory|unit/in_memory")

# SET NX replaces a key.
mutate(in_memory_set_replaces testing/commands.hpp
    "if (only_new && existed) return nil_reply();"
    "if (only_new && existed && words.size() > 9) return nil_reply();"
    "integration/in_memory|unit/in_memory")

# A sorted set forgets digits, and so do numbers that scripts send.
mutate(in_memory_short_scores testing/keyspace.hpp
    "\"%.17g\", score"
    "\"%.6g\", score"
    "integration/in_memory")
mutate(in_memory_short_numbers testing/script_host.hpp
    "\"%.17g\", lua_tonumber"
    "\"%.14g\", lua_tonumber"
    "integration/in_memory")

# A jump of its clock wakes no waiter.
mutate(in_memory_silent_jump testing/in_memory_redis.hpp
    "            client.knows_time = false;\n            look_again(*connection, client);"
    "            client.knows_time = false;"
    "unit/in_memory")

# After a jump a Mutex is taken for no time.
mutate(in_memory_old_instants testing/in_memory_redis.hpp
    "if (client.knows_time || words[0] != \"SET\") return false;"
    "if (client.knows_time || words[0] != \"SETS\") return false;"
    "unit/in_memory")

# No reply is lost.
mutate(in_memory_loses_nothing testing/in_memory_redis.hpp
    "if (replies_to_drop_ == 0 ||"
    "if (replies_to_drop_ < 100 ||"
    "unit/in_memory")

# No message reaches a client.
mutate(in_memory_without_messages testing/in_memory_redis.hpp
    "client.channels.find(std::string(channel))"
    "client.channels.find(std::string(channel) + \"?\")"
    "unit/in_memory")

# A failover verifies no hold.
mutate(in_memory_failover_unseen testing/in_memory_redis.hpp
    "connection->add([](Listener& listener) { listener.on_failover(); });"
    ""
    "unit/in_memory")

# A posted command is completed by the thread that posts it.
mutate(in_memory_completes_inline testing/in_memory_redis.hpp
    "from.add(std::move(done), std::move(reply));"
    "done(std::move(reply));"
    "unit/in_memory")

# The server is too young to vote for a RedLock.
mutate(in_memory_too_young testing/in_memory_redis.hpp
    "std::chrono::hours(24)"
    "std::chrono::hours(0)"
    "unit/in_memory")

# --- operations ---------------------------------------------------------------------------------------------------------

# Cancelling does not tell the task, which goes on waiting.
mutate(cancel_forgets_the_task session/under_way.hpp
    "        cancel();\n        stop_.request_stop();"
    "        cancel();"
    "integration/async_lock")

# What a task gets after its operation was given up is kept.
mutate(given_up_and_kept session/running.hpp
    "static_cast<void>(work_.result(this->host_));"
    "new auto(work_.result(this->host_));"
    "integration/async_lock|stress/cancel_storm")

# Each waiter has what only a thread needs.
mutate(every_waiter_has_a_condition wait/wait_slot.hpp
    "explicit WaitSlot(WaitBy by) : by_(by) {}"
    "explicit WaitSlot(WaitBy by) : by_(by), thread_(std::make_unique<Thread>()) {}"
    "integration/async_crowd")

# A waiter that leaves cuts the queue.
mutate(leaving_cuts_the_queue wait/wait_queue.hpp
    "            behind->before = before;\n"
    "            static_cast<void>(before);\n"
    "unit/lock_queue")

# A waiter that loses its hold before it has left the queue stands in it twice.
mutate(stands_in_the_queue_twice wait/wait_queue.hpp
    "        leave(member);\n        insert(member, nullptr, front_);"
    "        insert(member, nullptr, front_);"
    "unit/lock_queue")

# Nobody learns that a task has ended that was started.
mutate(silent_end_of_a_task base/task.hpp
    "ended.listener->task_ended();"
    "static_cast<void>(ended.listener);"
    "unit/task")

# Jobs that are dropped keep what they have.
mutate(dropped_jobs_never_end session/notifier.ipp
    "    drop(dropped);"
    "    static_cast<void>(dropped);"
    "unit/notifier")
mutate(jobs_after_the_last_never_end session/notifier.ipp
    "drop(queue_->taken);"
    ""
    "unit/notifier")

# An alarm rings with another one that is close to it, before its own time.
mutate(alarm_before_its_time session/alarms.hpp
    "if (one.at_ > now) {"
    "if (false) {"
    "unit/alarms")

# After the last of a list of alarms has been stopped, the next one that is set gets lost.
mutate(alarm_behind_a_stopped_one session/alarms.ipp
    "(alarm.next ? alarm.next->before_ : span.last) = alarm.before_;"
    "if (alarm.next) alarm.next->before_ = alarm.before_;"
    "unit/alarms")

# The words that do not fit into the record of a posted command are lost.
mutate(long_words_forgotten session/call_words.hpp
    "many_.empty() ? few_.data() : many_.data()"
    "few_.data()"
    "unit/call_words")

# A coroutine that is destroyed does not cancel its operation.
mutate(destroyed_and_not_cancelled session/operation.hpp
    "if (running_->forsake()) running_->abandon();"
    "running_->forsake();"
    "integration/async_lock")

# The destructor of a hold waits for the server.
mutate(hold_destructor_waits lock/hold.ipp
    "level_.keeper->release_later(level_.hold());"
    "static_cast<void>(level_.keeper->release(level_.owner));"
    "unit/rlock_release")

# A coroutine whose executor drops the completion keeps what it got.
mutate(dropped_completion_keeps_the_hold session/running.hpp
    "if (this->forsake() && !this->error_) discard();"
    ""
    "integration/async_lock")

# Who keeps an operation keeps what its executor has dropped.
mutate(dropped_callback_is_kept session/running.hpp
    "        this->forget_completion();\n    }\n\n    void discard"
    "    }\n\n    void discard"
    "integration/async_lock")

# What a coroutine got that is destroyed is given back only when its executor has time.
mutate(abandoned_result_waits session/under_way.hpp
    "if (process_ == this_process() && state_ == State::ended) give_back();"
    ""
    "integration/async_lock")

# A cancelled async_run() keeps the lock until its executor has time.
mutate(cancelled_run_waits session/hop.ipp
    "    if (ticket) ticket->drop();"
    ""
    "integration/async_run")

# The result of a function whose lock was lost is destroyed on the thread that renews.
mutate(result_of_a_lost_run lock/run_under.hpp
    "        if (outcome.result) static_cast<void>(co_await Hop(context));\n"
    ""
    "integration/async_run")

# A leader that resigns where completions run waits for itself.
mutate(resigns_behind_itself leader_election.ipp
    "    detail::OperationAccess::running(releasing)->complete_at_once();\n"
    ""
    "integration/leader_election")

# A MultiLock that ends forgets those who ask for a token meanwhile.
mutate(late_token_of_a_multi_lock quorum/quorum_state.hpp
    "core_.closing.stop_requested() ? lost_token"
    "core_.closed ? lost_token"
    "integration/multi_lock_test")

# Work that is done, but could not be stored in time, is done again.
mutate(result_is_not_stored_for_long around/recorded_work.hpp
    "std::max(deadline_after(Clock::now(), handle.settings().unreachable_timeout), hold.valid_until())"
    "deadline_after(Clock::now(), handle.settings().unreachable_timeout)"
    "faults/done_once")

# async_close() ends a call that blocks.
mutate(close_ends_a_blocking_call session/under_way.ipp
    "if (!at_once_) on_end_"
    "on_end_"
    "unit/segmented_semaphore")

# Segments that have answered before the others are asked end the call.
mutate(early_answers_end_the_race segmented_semaphore.ipp
    "if (race->is_over()) break;"
    "if (race->is_decided() && i > 0) break;"
    "unit/segmented_semaphore")

# A call with a deadline waits for one silent segment after the other.
mutate(each_segment_has_its_time segmented_semaphore.ipp
    "if (asked > 0 && now >= std::min(end, began + detail::Patience::honest_try)) break;"
    ""
    "unit/segmented_semaphore")
mutate(first_segment_takes_all_time segmented_semaphore.ipp
    "now + (end - now) / 2"
    "end"
    "unit/segmented_semaphore")
mutate(failing_segment_ends_one_try segmented_semaphore.ipp
    "return won || (failure && !has_one_try);"
    "return won || failure;"
    "unit/segmented_semaphore")
mutate(late_segments_are_not_asked segmented_semaphore.ipp
    "    if (asked < segments() && !request.stop.stop_requested()) {"
    "    if (false) {"
    "unit/segmented_semaphore")
mutate(one_try_ignores_its_deadline wait/patience.hpp
    "return request.deadline > now ? std::min(end, request.deadline) : end;"
    "return end;"
    "unit/segmented_semaphore")

# Completions run on the thread that renews and receives.
mutate(callback_on_the_background_thread session/under_way.hpp
    "        if (at_once_) complete();\n        last_thread().notify(*this);"
    "        run();\n        end();"
    "integration/async_lock")

# A task that was suspended continues its caller on another thread than the one on which it ended.
mutate(task_continues_too_late base/task.hpp
    "        promise.caller = caller;\n        if (promise.continues)\n            *promise.continues = coroutine;\n        else\n            coroutine.resume();"
    "        if (promise.continues)\n            *promise.continues = coroutine;\n        else\n            coroutine.resume();\n        promise.caller = caller;"
    "unit/task")

# A hash without a lease counts as a lock that never ends.
mutate(waits_for_a_key_without_a_lease scripts/rlock.hpp
    "    if left == -1 then return no_lease() end\n"
    ""
    "integration/rlock_protocol")

# The holder of the read side of a ReadWriteLock acquires an RLock of that name.
mutate(reader_enters_an_rlock scripts/queue_acquire.hpp
    "if is_shared and redis.call('hexists', lock, 'mode') == 1 then"
    "if false then"
    "integration/(rlock_|read_write_lock|bad_inputs)")

# try_lock() goes on trying while the server refuses.
mutate(one_try_goes_on session/retry.hpp
    "if (limits_.one_try && verdict == ReplyClass::refused_now) return std::nullopt;"
    ""
    "faults/refusal|unit/executor")

# More permits than Redisson can read.
mutate(expirable_permits_beyond_an_int scripts/permit_expirable_semaphore.hpp
    "total + redis.call('zcard', leases) > most or"
    "false or"
    "integration/permit_expirable_semaphore")

# A lost hold stays on the server if an unanswered command had prolonged it.
mutate(prolonged_without_a_reply lock/leases.hpp
    "if (core_.kind.outlives_lease || hold.limited() || hold.may_last > hold.valid_until)"
    "if (core_.kind.outlives_lease)"
    "unit/rlock_(acquire|watchdog)")
mutate(lost_during_a_renewal lock/leases.hpp
    "outcome != Renewed::refused) {"
    "outcome == Renewed::yes) {"
    "unit/rlock_watchdog")
mutate(lost_during_a_reentry lock/acquires.hpp
    "            undo_reentry(lock, asked, lease);\n    }"
    "            return;\n    }"
    "unit/rlock_acquire")

# async_run() does not notice that the lock was lost.
mutate(runs_without_the_lock lock/run_under.hpp
    "    if (!in_time || released == errc::hold_lost) {\n"
    "    if (false) {\n"
    "integration/async_run")

# An executor that drops what it was given keeps the lock forever.
mutate(dropped_function_keeps_the_lock session/hop.ipp
    "~Ticket() { drop(); }"
    "~Ticket() = default;"
    "integration/async_run")

# async_close() leaves the operations under way.
mutate(close_leaves_operations client.ipp
    "    session.give_up_operations();\n"
    ""
    "integration/async_run")

# An async_unlock() that is never begun keeps the hold.
mutate(unlock_that_never_begins lock/hold.ipp
    "[hold = std::move(*this), level"
    "[&hold = *new Hold(std::move(*this)), level"
    "integration/async_run")

# The last reference to a task ends while the mutex of the subscriptions is held.
mutate(listener_ends_under_the_mutex session/subscriptions.hpp
    "        tasks.reserve(tasks.size() + c.listeners.size());  // so that no reference ends here for want of memory\n        for (const Interest& w : c.listeners)\n            if (auto who = w.who->weak_from_this().lock()) tasks.push_back(std::move(who));\n"
    "        Tasks found;\n        for (const Interest& w : c.listeners)\n            if (auto who = w.who->weak_from_this().lock()) found.push_back(std::move(who));\n        tasks = std::move(found);\n"
    "faults/(no_memory|failing)")

# Without memory to wait for its outcome, the release of a hold is forgotten.
mutate(release_needs_memory_to_wait lock/lock_state.hpp
    "            release_later(which);\n            co_return"
    "            co_return"
    "faults/(no_memory|failing)")
mutate(release_takes_the_level_too_early lock/hold.ipp
    "    Task<std::error_code> releasing = hold.level_.keeper->release_by(hold.level_.hold(), by);\n    level = std::exchange(hold.level_, {});\n    co_return co_await releasing;"
    "    level = std::exchange(hold.level_, {});\n    co_return co_await level.keeper->release_by(level.hold(), by);"
    "faults/(no_memory|failing)")

# Without memory to continue a coroutine elsewhere, it is continued twice.
mutate(continued_twice session/hop.ipp
    "        ticket->use();\n        throw;"
    "        throw;"
    "faults/(no_memory|failing)")

# Without memory, a grant that nobody wants any more ends the program.
mutate(late_grant_throws lock/background_tries.hpp
    "!wanted) parts_.releases.release_later({owner, answer.hold});"
    "!wanted)\n            parts_.releases.release_in_background(\n                owner, [](std::error_code) {}, Receiver::background);"
    "faults/(no_memory|failing)")
# A message ends the wait for a release, whatever it is about.
mutate(message_is_a_release lock/release_watch.hpp
    "if (!waiter.is_over(*found)) return;"
    ""
    "unit/release_watch|integration/wait_release")

# A lease that ends without a message is not noticed.
mutate(release_watch_needs_messages lock/release_watch.hpp
    "room_.queue.is_notified() || now >= at)"
    "room_.queue.is_notified())"
    "unit/release_watch|integration/wait_release")

# The wait lasts until the lock is free, and so may never end.
mutate(release_watch_wants_a_free_lock lock/release_watch.hpp
    "owners.begin(), owners.end(), holder.owner) != owners.end();"
    "owners.begin(), owners.end(), holder.owner) != owners.end() || true;"
    "unit/release_watch|integration/wait_release")

# Only the representative of the waiters notices that their holds have ended.
mutate(release_watch_forgets_the_others lock/release_watch.hpp
    "if (&waiter != &me) room_.wake(waiter);"
    "if (&waiter != &me) waiter.phase = Waiter::Phase::waiting;"
    "unit/release_watch")

# A release between the look of a caller and its place in the queue is missed.
mutate(release_watch_joins_too_late lock/release_watch.hpp
    "if (!looked_for_all && me.generation != room_.queue.generation()) room_.notify();"
    ""
    "unit/release_watch")

# A thread waits for its own release.
mutate(release_watch_waits_for_itself lock/named_lock.ipp
    "if (!request.one_try && s.part(this_thread_number()).hold != 0)"
    "if (false)"
    "integration/wait_release")

# A lock that polls subscribes for this.
mutate(release_watch_never_polls lock/named_lock.ipp
    "wanted{request, polling()}"
    "wanted{request, {}}"
    "integration/wait_release")

# An object goes by its client's watchdog_timeout.
mutate(object_without_its_watchdog_timeout session/settings.hpp
    "own.watchdog_timeout.value_or(client.watchdog_timeout)"
    "client.watchdog_timeout"
    "integration/object_options")

# An object goes by its client's command_timeout.
mutate(object_without_its_command_timeout session/settings.hpp
    "own.command_timeout.value_or(client.command_timeout)"
    "client.command_timeout"
    "integration/object_options")

# An object goes by its client's unreachable_timeout.
mutate(object_without_its_unreachable_timeout session/settings.hpp
    "own.unreachable_timeout.value_or(client.unreachable_timeout)"
    "client.unreachable_timeout"
    "integration/object_options")

# An object goes by its client's local_handoff_limit.
mutate(object_without_its_local_handoff_limit session/settings.hpp
    "own.local_handoff_limit.value_or(client.local_handoff_limit)"
    "client.local_handoff_limit"
    "integration/object_options")

# An object goes by its client's require_replicas.
mutate(object_without_its_require_replicas session/settings.hpp
    "own.require_replicas.value_or(client.require_replicas)"
    "client.require_replicas"
    "integration/object_options")

# An object goes by its client's require_fsync.
mutate(object_without_its_require_fsync session/settings.hpp
    "own.require_fsync.value_or(client.require_fsync)"
    "client.require_fsync"
    "unit/replica_acks")

# A reply to WAITAOF without the local disk counts as a confirmation.
mutate(grant_without_the_disk transport/server_errors.hpp
    "if (!whole || waited.elements[0].integer < 1) return"
    "if (!whole) return"
    "unit/replica_acks")

# An error of WAITAOF counts as a confirmation.
mutate(error_as_confirmation transport/server_errors.hpp
    "if (!whole || waited.elements[0].integer < 1) return Reply::Lacking::disk;"
    "if (!whole) return std::nullopt;"
    "unit/replica_acks")

# With require_fsync the replicas' disks are not counted.
mutate(disk_without_replicas transport/server_errors.hpp
    "if (waited.elements[1].integer < replicas) return Reply::Lacking::replicas;"
    "static_cast<void>(replicas);"
    "unit/replica_acks")

# A server without WAITAOF grants without any confirmation.
mutate(old_server_confirms_nothing session/executor.hpp
    "replicas.asks() ? call_confirmed"
    "replicas.required != 0 ? call_confirmed"
    "integration/require_fsync")

# A level that another object adds changes the lease of the hold.
mutate(level_changes_the_lease lock/acquires.hpp
    "        settings.watchdog_timeout = held.settings.watchdog_timeout;\n"
    "        static_cast<void>(held);\n"
    "integration/object_options")

# A hold is renewed with its client's lease.
mutate(renewed_with_the_lease_of_the_client lock/leases.hpp
    "hold.watched() ? hold.renewal_lease(now) :"
    "hold.watched() ? core_.session.options().watchdog_timeout :"
    "integration/object_options")

# A renewal is confirmed by as many replicas as the client requires.
mutate(renewal_as_the_client_requires lock/leases.hpp
    "hold.settings.replication()});"
    "{}});"
    "integration/object_options")

# The same for permits.
mutate(renewal_of_permits_as_the_client_requires semaphore/permit_renewals.hpp
    "                call.replication = due.kind.replication;\n"
    ""
    "integration/object_options")

# A hold that is handed over is confirmed as the object requires that releases it.
mutate(handed_over_as_the_releaser_requires lock/hand_over.hpp
    "call.replication = hand_over.settings.replication();"
    "call.replication = hand_over.leaving.settings.replication();"
    "integration/object_options")

# A release waits longer than the hold's command_timeout.
mutate(release_takes_its_time lock/releases.hpp
    "return Clock::now() + settings.command_timeout;"
    "return Clock::now() + std::max(settings.command_timeout, Milliseconds(10000));"
    "integration/object_options")

# Hold::again() goes by no options.
mutate(again_without_options lock/hold.ipp
    "    if (is_ours) take_settings(request, level_.keeper->settings(level_.owner));\n"
    ""
    "unit/rlock_acquire")

# A query goes by its client's unreachable_timeout.
mutate(query_by_the_client session/queries.hpp
    "settings.unreachable_timeout"
    "session.options().unreachable_timeout"
    "integration/object_options")

# A change of a semaphore goes by its client's unreachable_timeout.
mutate(change_by_the_client semaphore/changes.hpp
    "Clock::now() + patience_of(settings), .command"
    "Clock::now() + patience_of(settings_of(core_.session.options())), .command"
    "integration/object_options")

# A request for several callers of a semaphore is confirmed as the first of them requires.
mutate(one_request_for_all_requirements semaphore/synchronizer.hpp
    "if (member->require_replicas != me.require_replicas || member->require_fsync != me.require_fsync) break;"
    ""
    "integration/object_options")

# Permits with different leases are renewed by one command.
mutate(leases_of_permits_mixed semaphore/permit_records.hpp
    "return b.kind == kind;"
    "return b.kind.prolongs == kind.prolongs;"
    "integration/object_options")

# A short lease hurries the renewals of the long ones.
mutate(short_lease_hurries_long_ones session/watchdog.hpp
    "longest = std::max(longest, renewal.lease);"
    "longest = std::max({longest, renewal.lease, Milliseconds(30000)});"
    "unit/watchdog")

# Renewals that different replicas must confirm share a call.
mutate(replication_mixed session/watchdog.hpp
    "r.script, r.lease, r.replication)"
    "r.script, r.lease)"
    "unit/watchdog")

# An object's command_timeout may exceed that of the connections.
mutate(longer_than_the_connection session/state_handle.ipp
    "if (settings_.command_timeout > session.options().command_timeout)"
    "if (settings_.command_timeout > std::chrono::hours(1))"
    "integration/object_options")

# An object may require replicas of a transport that cannot ask them.
mutate(replicas_of_any_transport session/state_handle.ipp
    "    check_replication(settings_, session.transport().posts_several(), name_);\n"
    ""
    "integration/object_options")

# The options of an object are not checked.
mutate(options_of_an_object_unchecked session/state_handle.ipp
    "    check_settings(settings_, name_);\n"
    ""
    "integration/object_options")

# A NonReentrantLock has no options of its own.
mutate(non_reentrant_lock_without_options non_reentrant_lock.ipp
    "name, options, detail"
    "name, (static_cast<void>(options), ObjectOptions()), detail"
    "integration/object_options")

# A wait for a release goes by its client's options.
mutate(release_watch_by_the_client lock/named_lock.ipp
    "wanted.settings = settings();"
    "wanted.settings = settings_of(s.session().options());"
    "integration/object_options")
mutate(release_operation_by_the_client lock/named_lock.ipp
    "request.settings = settings();\n    HeldLevel"
    "request.settings = settings_of(state().session().options());\n    HeldLevel"
    "integration/object_options")

# A renewed permit counts as valid for as long as its client's lease lasts.
mutate(permit_valid_by_the_client semaphore/permit_renewals.hpp
    "if (permit->watched) permit->renewed(sent_at);"
    "if (permit->watched) permit->renewed(sent_at), permit->valid_until = redlatch::valid_until(sent_at, core_.session.options().watchdog_timeout);"
    "integration/object_options")

# A crowd of coroutines keeps the background thread from renewing and receiving.
mutate(crowd_resumed_at_once session/continuations.ipp
    "more && resumed < most_at_once;"
    "more;"
    "unit/continuations")

# What is posted while the driver is awake is left to it, but it goes to sleep without writing that.
mutate(gathered_commands_not_written redis/command_connection.hpp
    "if (is_connected() && !needs_writer()) flush(lock);\n        if (pipeline_.in_flight() == 0) return watches_idle"
    "if (pipeline_.in_flight() == 0) return watches_idle"
    "integration/command_connection")

# The driver is taken to watch a connection that has been replaced meanwhile.
mutate(driver_watches_the_old_connection redis/command_connection.hpp
    "if (driver_ == Driver::watching) driver_ = Driver::away;"
    ""
    "integration/command_connection")

# What the server has said before it closed the connection is not read if a write fails.
mutate(deaf_after_a_failed_write redis/command_connection.hpp
    "if (is_connected() && !is_reading()) read(lock, {});"
    ""
    "integration/command_connection")

# A striped lock takes a byte above 127 for a negative number, so the stripe depends on the platform.
mutate(stripe_by_signed_bytes base/stable_hash.hpp
    "hash ^= static_cast<unsigned char>(byte);"
    "hash ^= static_cast<std::uint64_t>(static_cast<signed char>(byte));"
    "unit/striped_lock")

# Without the upper half of the hash, names that differ in high bits only share a stripe.
mutate(stripe_by_half_the_hash base/stable_hash.hpp
    "(hash >> 32) ^ (hash & 0xffffffff)"
    "hash"
    "unit/striped_lock")

# A lock for several names leaves out the last stripe.
mutate(stripe_left_out striped_lock.ipp
    "for (std::size_t i = 0; i < wanted.size(); ++i)"
    "for (std::size_t i = 0; i + 1 < wanted.size(); ++i)"
    "unit/striped_lock")

# An acquire goes on asking an empty segment first.
mutate(segment_stays_near segmented_semaphore.ipp
    "                near(segment);\n                return"
    "                return"
    "unit/segmented_semaphore")

# A segment whose server fails stops an acquire.
mutate(segment_failure_is_final segmented_semaphore.ipp
    "ec == errc::unreachable || ec == errc::overloaded"
    "ec == errc::unreachable"
    "unit/segmented_semaphore")

# A permit that a second segment grants to a caller that waited is never given back.
mutate(segment_keeps_the_second_permit segmented_semaphore.ipp
    "if (got && !won) {"
    "if (got && won) {\n            static_cast<void>(new Permits(std::move(got)));\n        } else if (got) {"
    "integration/segmented_semaphore")

# The object that acquired a permit gives it back, although the caller has its id.
mutate(detached_permit_given_back semaphore/permits.ipp
    "        permits.count_ = 0;\n        return std::move(permits.ids_);"
    "        return permits.ids_;"
    "integration/segmented_semaphore")

# A unit is sold although the replica that takes over does not know it.
mutate(unconfirmed_lease permit_expirable_semaphore.ipp
    "if (is_held && !reply.replicated) throw detail::not_confirmed(reply, name());"
    ""
    "faults/segmented_semaphore")

# A wait for a semaphore that nobody has set up raises an event at each query.
mutate(not_set_up_each_time semaphore/synchronizer.hpp
    "std::exchange(me.is_told, true)"
    "me.is_told"
    "integration/not_set_up")

# A semaphore without permits is taken for one that nobody has set up.
mutate(no_permits_is_not_set_up scripts/semaphore.hpp
    "local is_there = taken > 0 or redis.call('exists', semaphore) == 1"
    "local is_there = taken > 0 or available > 0"
    "integration/not_set_up")

# A PermitExpirableSemaphore whose permits are all taken is one that nobody has set up.
mutate(all_taken_is_not_set_up scripts/permit_expirable_semaphore.hpp
    "local exists = taken > 0 or over > 0 or redis.call('exists', semaphore) == 1"
    "local exists = taken > 0 or over > 0 or present > 0"
    "integration/not_set_up")

# A caller that waits in the queue is not told that the semaphore is gone.
mutate(gone_is_not_told semaphore/synchronizer.hpp
    "        tell_if_not_set_up(me, *answer);\n        hand_out("
    "        hand_out("
    "integration/not_set_up")

# A call that does not wait raises the event.
mutate(not_set_up_without_a_wait semaphore/synchronizer.hpp
    "if (begun < request.deadline) tell_if_not_set_up"
    "tell_if_not_set_up"
    "integration/not_set_up")

# Observers take the name of the last leader for that of the present one.
mutate(name_of_the_last_leader protocol/holder_record.hpp
    "bool is_of_holder() const { return holder && record && record->owner == holder->owner; }"
    "bool is_of_holder() const { return holder && record; }"
    "unit/holder_record|integration/leader_election")

# Whoever holds nothing may announce itself.
mutate(announcement_without_a_term scripts/holder_record.hpp
    "if redis.call('hexists', lock, owner) == 0 then return 0 end"
    ""
    "faults/elections")

# The announcement of a leader wakes all candidates.
mutate(announcement_wakes_candidates lock/local_queue.hpp
    "if (payload == record_message) return;"
    "static_cast<void>(payload);"
    "integration/leader_election")

# A leader that was suspended still takes itself for the leader.
mutate(leader_beyond_its_lease leader_election.hpp
    "return Clock::now() < valid_until() && !lost().stop_requested();"
    "return owner() != 0;"
    "integration/leader_election|faults/elections")

# A candidate that has lost its term does not campaign again.
mutate(leads_once leader_election.ipp
    "if (term.resign() != errc::hold_lost && leads) return true;"
    "static_cast<void>(term.resign()); return leads;"
    "integration/leader_election")

# A leader waits for the reply to its resignation as long as the server is silent.
mutate(resigns_without_a_limit leader_election.ipp
    "return released.wait_until(until) == std::future_status::ready ? released.get()"
    "return released.wait_until(never) == std::future_status::ready ? released.get()"
    "faults/elections")

# Work that was done between the look and the acquire is done once more.
mutate(done_twice_after_a_look around/recorded_work.hpp
    "if (done) return {std::move(done)};"
    "static_cast<void>(done);"
    "faults/done_once")

# Who waits for work that has failed sleeps on.
mutate(failed_work_wakes_nobody protocol/holder_record.hpp
    "want.served = view.record || (!view.holder && !std::exchange(acquires, true));"
    "want.served = view.record.has_value();"
    "integration/(once_flag|single_flight)")

# All who wait for a value try to compute it when the lock is free.
mutate(crowd_takes_over protocol/holder_record.hpp
    "(!view.holder && !std::exchange(acquires, true))"
    "!view.holder"
    "unit/holder_record")

# A value is stored that no other caller can read.
mutate(value_of_any_length_is_stored around/recorded_work.hpp
    "if (result.size() > longest_record)"
    "if (false)"
    "integration/single_flight")

# Work whose function has thrown is marked as done.
mutate(failed_work_is_done around/recorded_work.hpp
    "    } catch (...) {\n        static_cast<void>(hold.unlock());\n        throw;\n    }"
    "    } catch (const std::bad_alloc&) {\n        throw;\n    } catch (...) {\n    }"
    "integration/(once_flag|single_flight)")

# Who does the work is not told that others may do it again.
mutate(loss_during_the_work_not_told around/recorded_work.hpp
    "        throw Error(errc::hold_lost, handle.name(),"
    "        if (entry.token < 0) throw Error(errc::hold_lost, handle.name(),"
    "integration/(once_flag|single_flight)")

# A server that is out of memory refuses a result.
mutate(result_refused_without_memory scripts/holder_record.hpp
    "local changes = {{'del', record}, {'hset'"
    "local changes = {{'hget', record, 'owner'}, {'hset'"
    "faults/done_once")

# A result wakes nobody, and who waits sleeps until the release.
mutate(result_without_a_message scripts/holder_record.hpp
    "redis.pcall(publish, channel, '2')"
    ""
    "faults/done_once|integration/leader_election")

# An early release frees the lock before its minimum hold is over.
mutate(minimum_ignored lock/lock_state.hpp
    "return hold->stays(Clock::now()) ?"
    "return false ?"
    "integration/hold_bounds")

# The hold keeps its number in the key that stays, and a late renewal gives that a whole lease.
mutate(stays_under_its_own_number scripts/rlock.hpp
    "local refusal, lease, left = stay(lock, owner, count, successor, rest)\nif refusal then return refusal end\n-- Waiters rely"
    "local left = redis.call('pttl', lock)\nlocal lease = math.max(1, math.min(left, rest))\nredis.call('pexpire', lock, lease)\n-- Waiters rely"
    "integration/rlock_protocol")

# A waiter sleeps until the end of the lease that it saw first.
mutate(waiters_sleep_on_at_early_release scripts/rlock.hpp
    "if lease ~= left then redis.pcall(publish, channel, '0') end\nreturn now"
    "return now"
    "integration/rlock_protocol")
mutate(queue_sleeps_on_at_early_release scripts/lock_queue.hpp
    "    tell_head(now + lease)\nend\nreturn now"
    "end\nreturn now"
    "integration/hold_bounds")

# A late early release gives the key a longer lease.
mutate(early_release_prolongs scripts/hold_levels.hpp
    "local lease = left < 0 and rest or math.max(1, math.min(left, rest))"
    "local lease = rest"
    "faults/hold_bounds")

# The lease of the acquire is that of the watchdog, and a process that dies leaves it shorter than the minimum.
mutate(minimum_dies_with_its_process session/settings.hpp
    "return std::max(is_limited() ? std::min(wanted, Milliseconds(most)) : wanted, Milliseconds(least));"
    "return is_limited() ? std::min(wanted, Milliseconds(most)) : wanted;"
    "unit/hold_table|integration/hold_bounds")

# The watchdog renews a limited hold for ever.
mutate(maximum_ignored lock/hold_table.hpp
    "if (bounds.is_limited()) ends_at = std::min(ends_at, sent + bounds.most);"
    ""
    "unit/hold_table|integration/hold_bounds")

# What the background delivers frees the lock too early.
mutate(background_ignores_the_minimum lock/deliveries.hpp
    "if (const Instant now = Clock::now(); now < item.stays_until) {"
    "if (const Instant now = Clock::now(); now < item.stays_until && false) {"
    "integration/hold_bounds|faults/hold_bounds")

# A grant that nobody wants any more keeps the lock for its minimum hold.
mutate(unwanted_grant_stays lock/lock_api.hpp
    "if (held_) keeper_->waive_minimum({request_.owner, facts_});"
    ""
    "integration/hold_bounds")

# The writer's place in the key outlives its minimum hold, because its read hold keeps the key.
mutate(writer_stays_with_its_reader lock/deliveries.hpp
    "if (!core_.kind.outlives_lease) return;"
    "return;"
    "integration/hold_bounds")

# A grant counts from the receipt of its message, which may be old.
mutate(grant_counts_from_receipt lock/grant.hpp
    "    const Instant since = *granted;"
    "    const Instant since = now;"
    "faults/clocks")

# A grant counts although the server's clock may have jumped since it was read.
mutate(grant_from_the_future session/remote_clock.hpp
    "if (earliest > now || latest"
    "if (latest"
    "unit/remote_clock")

mutate(grant_from_long_ago session/remote_clock.hpp
    "if (earliest > now || latest < now - news_for)"
    "if (earliest > now)"
    "faults/clocks")

mutate(future_doubts_nothing session/remote_clock.hpp
    "if (earliest > now) doubt_all();"
    ""
    "unit/remote_clock")

# In a cluster, only the grants of one slot count.
mutate(one_slot_has_grants lock/grant.hpp
    "        core.reads_clock = true;\n"
    ""
    "integration/cluster")

# In a cluster, a reading of one slot's clock that is too old stays, so that every command in another slot is preceded by
# a question.
mutate(old_reading_is_kept session/remote_clock.hpp
    "|| reading.at - reading_.at > good_for"
    ""
    "unit/remote_clock")

# A waiter of Redisson's sleeps on while a short grant is over.
mutate(fair_grant_leaves_foreign_waiter_asleep scripts/fair_lock.hpp
    "tell_next(true)
    return type(told)"
    "tell_next()
    return type(told)"
    "integration/fair_grants")

# One that joins behind a waiter without a place ends the subscription of that one.
mutate(joiner_ends_the_subscription lock/local_queue.hpp
    "        if (room_.queue.first_that([](const LockWaiter& w) { return w.listens; }) != &me) return;\n"
    ""
    "integration/grants")

# Who waits behind one that polls listens to nothing.
mutate(poller_decides_to_whom_others_listen lock/local_queue.hpp
    "if (room_.queue.first_that([](const LockWaiter& w) { return w.listens; }) != &me) return;"
    "if (!room_.queue.is_front(me)) return;"
    "integration/(spin_lock|key_watch)")

# The next waiter of a process sleeps without a place, and without a subscription.
mutate(next_waiter_is_deaf lock/local_queue.hpp
    " || is_deaf(me)"
    ""
    "integration/grants")

# One that has lost the lock sleeps on, although the change that it waits for has come.
mutate(missed_notification_is_awaited condition_variable.ipp
    "may_have_missed_it = lock.unlock();"
    "static_cast<void>(lock.unlock());"
    "integration/condition_variable")

# A waiter whose place is over sleeps on.
mutate(dropped_waiter_is_not_told scripts/lock_queue.hpp
    "    redis.pcall(publish, channel .. ':' .. id, 'look 0')
end"
    "end"
    "integration/grants")

# Another server may answer after a lost connection, with another clock.
mutate(lost_connection_vouches_for_grants session/remote_clock.hpp
    " || reading->at <= disconnected_at_)"
    ")"
    "unit/remote_clock")
mutate(clock_is_not_told_of_a_lost_connection session/connection_listener.hpp
    "clock_.disconnected();
        events_"
    "events_"
    "integration/grants")

# A frozen waiter is granted the full lease.
mutate(grant_has_the_full_lease scripts/queue_release.hpp
    "local length = math.min(lease, offer, ends - now)"
    "local length = lease"
    "(integration|faults)/grants")

# A hold is granted to a process that is gone.
mutate(grant_to_the_deaf scripts/queue_release.hpp
    "heard[2] > 0 then"
    "heard[2] >= 0 then"
    "faults/grants")

# Nobody learns when the lease of a grant ends.
mutate(head_is_not_told scripts/queue_release.hpp
    "somebody_asks = uncommon().tell_head(at)"
    "somebody_asks = true"
    "faults/grants")

# Only the head of the queue learns of it. It may be frozen, too.
mutate(stand_in_is_not_told scripts/lock_queue.hpp
    "if found == 2 then break end"
    "if found == 1 then break end"
    "integration/grants")

# A waiter that leaves, and listened to the release of a client that grants nothing, has no successor.
mutate(nobody_listens_any_more scripts/queue_release.hpp
    "tell_head(is_foreign(redis.pcall('hkeys', lock)[1]) and now or now + left)"
    "tell_head(now + left)"
    "integration/grants")

# Those who do not queue up rely on the earlier lease, though a grant may be over before, and nobody of the queue asks.
mutate(short_grant_wakes_nobody scripts/queue_release.hpp
    "wanted < left or (lasts < left and not somebody_asks)"
    "wanted < left"
    "integration/grants")

# A waiter that gives up keeps its place.
mutate(leaving_keeps_the_place scripts/queue_release.hpp
    "    leave_place(string.sub(owner, 1, 36), string.sub(owner, 38))\n    local is_held"
    "    local is_held"
    "integration/grants")

# Those who do not queue never get their turn.
mutate(others_get_no_turn scripts/lock_queue.hpp
    "stand_in = 2000, 8, 20, 32, 400"
    "stand_in = 2000, 1000000, 20, 32, 400"
    "integration/grants")

# Those who do not queue rely on the lease of a hold that is over.
mutate(shorter_grant_is_silent scripts/queue_release.hpp
    "not somebody_asks) then return '0' end"
    "not somebody_asks) then return '2' end"
    "integration/grants")

# A waiter that leaves, or a further grant, leaves nobody who asks at the end of a grant.
mutate(message_is_not_owed scripts/queue_release.hpp
    "    if lasts < left then redis.pcall('hset', places, 'owed', '1') end\n"
    ""
    "integration/grants")
mutate(owed_message_is_not_sent scripts/lock_queue.hpp
    "redis.pcall(publish, channel, '0') end\n    redis.pcall('pexpire'"
    "redis.pcall('exists', channel) end\n    redis.pcall('pexpire'"
    "integration/grants")

# The last grant of a queue leaves that message unsent.
mutate(owed_message_waits_for_the_queue scripts/queue_release.hpp
    "                    if not ids[2] then
                        end_places()
                    elseif"
    "                    if ids[2] and"
    "integration/grants|faults/grants")

# A release that finds the first of the queue gone grants to it once more.
mutate(queue_is_read_once scripts/queue_release.hpp
    "        ids = nil\n"
    ""
    "integration/grants")

# A release that may not read the queue takes it for an empty one.
mutate(unreadable_queue_is_empty scripts/queue_release.hpp
    "if ids and not ids.err and not ids[1] then"
    "if ids and not ids[1] then"
    "integration/grants|faults/access_rights")

# A message for a place that was left makes the process ask again and again.
mutate(place_is_left_with_its_messages lock/queue_place.hpp
    "        ask_at_ = never;\n        grant_.reset();"
    "        grant_.reset();"
    "integration/grants")
mutate(message_without_a_place lock/queue_place.hpp
    "what == \"look\" && number_ == 0)"
    "what == \"look\" && false)"
    "integration/grants")

# Those who queue do not hear the release of a client that grants nothing.
mutate(foreign_release_unheard lock/local_queue.hpp
    "granted_by_holder_ = answer->queued && !answer->foreign;"
    "granted_by_holder_ = answer->queued;"
    "integration/grants")

# A fixed lease is entered by a grant that is shorter.
mutate(fixed_lease_by_an_offer lock/grant.hpp
    "if (request.lease && *request.lease > grant.lease) return std::nullopt;"
    ""
    "integration/grants")

# A place is left whenever its representative leaves.
mutate(place_is_not_taken_over lock/local_queue.hpp
    "        hand_over_.left(me);\n"
    "        hand_over_.left(me);\n        place_.give_up(lock);\n"
    "integration/grants")

# A waiter asks under a new number each time, so it does not find what it was granted.
mutate(place_has_no_number lock/queue_place.hpp
    "if (number_ == 0) number_ = core_.next_number();"
    "number_ = core_.next_number();"
    "(integration|faults)/grants")

# A user without the rights to the queue's keys cannot lock.
mutate(queue_is_a_must protocol/queue_keys.hpp
    "!reply.text.starts_with(\"NOPERM\")"
    "!reply.text.starts_with(\"NO RIGHT\")"
    "integration/grants")

# A lost hold wakes nobody who queues.
mutate(deleted_key_wakes_nobody lock/leases.hpp
    "        deliveries_.wake_queue(hold);\n"
    ""
    "faults/grants")

# A grant that comes while the reply to a question is on its way is forgotten.
mutate(grant_before_the_reply lock/queue_place.hpp
    "        asking_ = false;\n        asked_(answer.has_value());\n        if (answer && answer->kind"
    "        asking_ = false;\n        grant_.reset();\n        asked_(answer.has_value());\n        if (answer && answer->kind"
    "integration/grants")

# A release that may not change the queue fails after the lock is free, and wakes nobody.
mutate(release_needs_the_queue scripts/queue_release.hpp
    "local done, answer = pcall(grant_or_notify, left, message, ids)"
    "local done, answer = true, grant_or_notify(left, message, ids)"
    "integration/grants")

# Such a release tells the first in the queue alone, dead or not.
mutate(release_tells_the_dead scripts/queue_release.hpp
    "if type(told) == 'number' and told > 0 then break end"
    "break"
    "faults/access_rights")

# A dead waiter is told, and nobody else: without the right to count listeners, or if its hold cannot be written.
mutate(dead_is_told scripts/queue_release.hpp
    "if told ~= 0 then\n                redis.pcall"
    "if true then\n                redis.pcall"
    "faults/access_rights")

# A hand-over that may not tell the head of the queue is reported as refused, after it was done.
mutate(hand_over_needs_the_queue scripts/lock_queue.hpp
    "        local done, result = pcall(change, ...)\n        return done and result"
    "        return change(...)"
    "integration/grants")

# A release without tokens grants a fenced lock.
mutate(fenced_grant_without_a_token scripts/queue_release.hpp
    "        token = counter and next_token(counter)\n        if not token then return nil end\n"
    "        token = counter and next_token(counter)\n"
    "integration/fenced_grants")

# The token of a grant is drawn, but another hold may get it once more.
mutate(token_of_a_grant_is_not_kept scripts/queue_release.hpp
    "        if token then redis.call('set', counter, text(token)) end\n"
    ""
    "integration/fenced_grants")

# A granted fenced lock is entered without its token.
mutate(fenced_waiter_needs_no_token lock/queue_place.hpp
    "(core_.kind.queue && core_.kind.queue->fenced && !is_token(grant.token))"
    "false"
    "integration/fenced_grants")

# A FairLock is granted to whoever stands first: to Redisson's waiters, and to those that do not listen yet.
mutate(fair_grant_to_anybody scripts/fair_lock.hpp
    "return ends and ends % 1 == 0.5 end"
    "return true end"
    "integration/fair_(grants|lock)")

# A waiter of a FairLock that does not listen any more is granted the lock.
mutate(fair_grant_to_the_deaf scripts/fair_lock.hpp
    "local answer = heard[2] > 0 and grant(waiter, ends)"
    "local answer = grant(waiter, ends)"
    "integration/fair_grants")

# It loses its place.
mutate(deaf_waiter_loses_its_place scripts/fair_lock.hpp
    "            local answer = heard[2] > 0 and"
    "            if heard[2] == 0 then redis.call('lrem', queue, '0', waiter) end\n            local answer = heard[2] > 0 and"
    "integration/fair_grants")

# A refresh forgets who can be granted the lock.
mutate(refresh_forgets_the_mark scripts/fair_lock.hpp
    "redis.call('zscore', slots, waiter)) and 0.5 or 0"
    "redis.call('zscore', slots, waiter)) and 0 or 0"
    "integration/fair_grants")

# The first waiter does not learn when the lease of a grant ends.
mutate(fair_head_is_not_told scripts/fair_lock.hpp
    "    local told = redis.pcall(publish, channel .. waiter, message)\n    tell_next(true)\n"
    "    local told = redis.pcall(publish, channel .. waiter, message)\n"
    "faults/fair_grants")

# Another wait has an id of which a grant may still be told.
mutate(id_with_a_grant_to_come lock/server_queue.hpp
    "if (held && me.grantable && !me.was_granted) {"
    "if (false) {"
    "integration/fair_grants")

# A waiter that acquired the lock by its first question as a listener subscribes to another channel the next time.
mutate(id_without_a_grant_is_dropped lock/server_queue.hpp
    "if (me.kept.unsettled == 0) me.grantable = was_grantable;"
    ""
    "integration/fair_grants")

# A waiter with a lease of its own is granted the lock for longer than that.
mutate(fixed_lease_is_granted lock/server_queue.hpp
    "!me.request->lease && me.request->settings.watchdog_timeout >= FairProtocol::offer &&"
    "true &&"
    "integration/fair_grants")

# Of several channels that are refused by one error, one alone is told.
mutate(one_refusal_for_several_channels redis/pubsub_connection.hpp
    "if (channels.size() > 1)"
    "if (false)"
    "integration/pubsub_connection")

# A channel that was refused together with others is requested together with others again.
mutate(refused_channel_is_not_alone redis/pubsub_requests.hpp
    "if (alone && words.size() > 1) break;"
    ""
    "unit/pubsub_requests")

# An arrival whose process has died counts for ever.
mutate(dead_party_counts scripts/barrier.hpp
    "redis.call('zcard', arrivals) - over + drops + 1"
    "redis.call('zcard', arrivals) + drops + 1"
    "faults/barrier")

# A copy of an arrival that comes late arrives once more.
mutate(arrival_counts_twice scripts/barrier.hpp
    "if before then return {before, state.born, state.phase or before + 1} end"
    ""
    "faults/barrier")

# An arrival that failed is not taken back on the server.
mutate(failed_arrival_counts scripts/barrier.hpp
    "table.insert(changes, {'zrem', arrivals, id})\nreturn"
    "return"
    "faults/barrier")

# Who waits takes another barrier of that name for the next phase of its own.
mutate(another_barrier_is_a_phase protocol/barrier.hpp
    "same && now.phase != want.arrival.phase"
    "now.phase != want.arrival.phase"
    "unit/barrier")

# A party that drops out is expected in the next phase.
mutate(dropped_party_is_expected scripts/barrier.hpp
    "set(phase + 1, parties - dropped, 0)"
    "set(phase + 1, parties, 0)"
    "integration/barrier")

# Arrivals are not renewed.
mutate(arrival_not_renewed semaphore/registrations.hpp
    "record.renew_at > now ||"
    "true ||"
    "unit/barrier")

# Who waits does not notice that the lease of its arrival has ended, as long as nobody else arrives.
mutate(ended_arrival_waits scripts/barrier.hpp
    "answer[i + 2] = ends > now and 1 or 0"
    "answer[i + 2] = ends > 0 and 1 or 0"
    "faults/barrier")

# A waiter registers when it has released the lock already.
mutate(condition_registers_late condition_variable.ipp
    "    detail::enter_condition(handle_.settings(), condition, id);\n"
    "    lock.unlock();\n    detail::enter_condition(handle_.settings(), condition, id);\n    lock.lock();\n"
    "unit/condition_variable")

# The notification of a waiter that gives up is lost.
mutate(notification_not_passed_on scripts/condition_variable.hpp
    "publish, now, passes_on and 1 or 0, id)"
    "publish, now, 0, id)"
    "integration/condition_variable")

# The notification of a waiter that has died is lost.
mutate(notification_dies_with_its_waiter scripts/condition_variable.hpp
    "if id ~= leaver and place_of(waiters, id) < 0 then notify = notify + 1 end"
    ""
    "faults/condition_variable")

# A resent notification wakes two waiters.
mutate(notifies_twice scripts/condition_variable.hpp
    "if before then return before end\nlocal now = time_in_ms()\nif now > wanted_until then return late(now) end\nlocal ends"
    "local now = time_in_ms()\nif now > wanted_until then return late(now) end\nlocal ends"
    "faults/condition_variable")

# Waiters are notified in the reverse order.
mutate(condition_without_order scripts/condition_variable.hpp
    "local place = math.max(tonumber(last or '0'), 0) + 1"
    "local place = 4503599627370496 - math.max(tonumber(last or '0') - 4503599627370496, 0) - redis.call('zcard', waiters)"
    "integration/condition_variable")

# Who is notified does not say that it goes on, so its notification goes to the next one, too.
mutate(notification_kept condition_variable.ipp
    "detail::leave_condition_later(condition, id, false);"
    "condition.leases().forget(id);"
    "(unit|integration)/condition_variable")

# A caller whose turn came between its query and its wait sleeps on, because another one waits for something else.
mutate(joins_behind_the_news semaphore/synchronizer.hpp
    "if (!room_.queue.is_front(me) && me.refusal && me.refusal->generation != room_.queue.generation())\n                room_.notify();"
    "{\n            }"
    "unit/barrier")

# Of the threads whose replies have come together, only one is woken.
mutate(one_of_a_crowd_woken net/thread_parker.hpp
    "std::numeric_limits<int>::max()"
    "1"
    "unit/thread_parker")

# The thread that is to read next is not told.
mutate(next_reader_not_told redis/calling_thread.hpp
    "called_->look_around();"
    ""
    "integration/command_connection")

# --- the queue of a read-write lock -----------------------------------------------------------------------------------

# A writer is granted the lock beside readers.
mutate(writer_is_granted_beside_readers scripts/read_write_queue.hpp
    "            if lasts and kind ~= 'r' then break end\n"
    ""
    "integration/read_write_grants")

# Readers are granted the lock one at a time.
mutate(readers_are_granted_alone scripts/read_write_queue.hpp
    "                if not is_shared then break end"
    "                break"
    "integration/read_write_grants")

# Of several readers, the last one's grant is the lock's lease, although an earlier one lasts longer.
mutate(short_reader_cuts_the_lease scripts/read_write_queue.hpp
    "if redis.call('pttl', lock) < tonumber(length) then redis.call('pexpire', lock, length) end"
    "redis.call('pexpire', lock, length)"
    "integration/read_write_grants")

# Readers in the queue sleep on when a writer goes on as a reader.
mutate(downgrade_wakes_no_queue scripts/read_write_release.hpp
    "{lasts = math.max(left, 0), is_open = true}"
    "{lasts = math.max(left, 0)}"
    "integration/read_write_grants")

# A frozen reader or writer is granted the full lease.
mutate(read_write_grant_has_the_full_lease scripts/read_write_queue.hpp
    "local length = text(math.min(lease, offer, ends - now))"
    "local length = text(lease)"
    "integration/read_write_grants")

# Nobody in the queue listens to the release of a reader that grants nothing.
mutate(foreign_reader_is_not_listened_to scripts/read_write_queue.hpp
    "if any_foreign() == 1 then at = now end"
    ""
    "integration/read_write_grants")

# A writer with precedence keeps readers out after its turn.
mutate(granted_writer_keeps_its_mark scripts/read_write_queue.hpp
    "    if kind ~= 'r' then redis.pcall('del', mark) end\n"
    ""
    "integration/read_write_grants")

# Readers that wait for a mark do not hear of its withdrawal.
mutate(mark_is_not_listened_to scripts/read_write_lock.hpp
    "return left < 0 and left or wait(left, 1)"
    "return left < 0 and left or wait(left, 0)"
    "integration/read_write_grants")

# Who leaves the queue leaves the readers behind it asleep.
mutate(leaving_writer_tells_no_readers scripts/read_write_release.hpp
    "redis.call('hget', lock, 'mode') == 'read')"
    "false)"
    "integration/read_write_grants")

# A reader that enters by asking tells the readers behind it nothing.
mutate(reader_enters_alone scripts/read_write_lock.hpp
    "tell_waiters(now + math.max(left, lease), true)"
    "tell_waiters(now + math.max(left, lease))"
    "integration/read_write_grants")

# A refused write of a grant leaves a hold that nobody knows of.
mutate(refused_read_grant_stays scripts/read_write_queue.hpp
    "        undo()\n        return nil"
    "        return nil"
    "faults/access_rights")

# A reader whose owner writes asks under the number of another reader's place.
mutate(writers_reader_takes_a_place lock/local_queue.hpp
    "return me.writer == 0 && place_.is_for(me.request);"
    "return place_.is_for(me.request);"
    "integration/read_write_grants")

# Readers of one process ask one after another.
mutate(readers_ask_in_turn lock/local_queue.hpp
    "(core_.kind.shared || !place_.is_asking())"
    "!place_.is_asking()"
    "integration/read_write_grants")

# A writer that readers were granted before does not keep new ones out.
mutate(granted_readers_tell_no_writer scripts/read_write_queue.hpp
    "        if is_shared then tell_readers(true) end\n"
    ""
    "integration/read_write_grants")

# Readers that queue come before a writer with precedence that does not.
mutate(queue_comes_before_precedence scripts/read_write_queue.hpp
    "    if not who then return redis.call('lrange', queue, '0', '0')[1] end"
    "    do return redis.call('lrange', queue, '0', '0')[1] end"
    "integration/read_write_grants")

# While another caller's question hangs, a waiter that was told asks again at the pace of round trips.
mutate(told_waiter_asks_without_end semaphore/waiting_place.hpp
    "ask_at_ = never;\n                was_told_ = true;"
    "was_told_ = true;"
    "unit/permit_expirable")

# A waiter that asks without a place uses up what another caller was told.
mutate(told_caller_is_forgotten semaphore/waiting_place.hpp
    "if (std::exchange(was_told_, false)) ask_at_ = Clock::now();"
    ""
    "unit/permit_expirable")

# A place stands for what a caller wanted that has left.
mutate(refusal_of_one_that_left semaphore/synchronizer.hpp
    "if (Protocol::takes && has_one_left) room_.queue.notify();"
    ""
    "unit/permit_expirable")

# The try of another thread puts off the question of one that queues.
mutate(try_puts_off_the_question lock/local_queue.hpp
    "!place_.is_taken() || place_.is_of(me.hold)"
    "me.hold != 0"
    "integration/grants")

# The release of a late copy is given up with the lease of the grant, which the copy outlasts.
mutate(late_copy_outlasts_its_grant lock/grant.hpp
    "hold.unanswered(parts.deliveries.unsettled_until(unsettled) + longest);"
    "static_cast<void>(longest);"
    "faults/late_locks")

# A hand-over that gives the successor nothing forgets that a late copy of the acquire may take the lock.
mutate(failed_hand_over_forgets_the_acquire lock/local_hand_over.hpp
    "if (answered) give_back_late_acquire(sent.leaving);"
    ""
    "unit/rlock_waiting")

# Who makes permits with leases available lets the first in the queue ask.
mutate(permits_are_not_granted scripts/semaphore_queue.hpp
    "and grant and grant(id, number, want, offer)"
    "and nil"
    "integration/permit_grants")

# A granted permit stays available.
mutate(granted_permit_stays_available scripts/permit_grants.hpp
    "{{'decrby', semaphore, whole(want), undo"
    "{{'decrby', semaphore, '0', undo"
    "integration/permit_grants")

# Permits are granted to a process that is gone.
mutate(permits_for_the_dead scripts/permit_grants.hpp
    "if heard.err or heard[2] == 0 then return end"
    "if heard.err then return end"
    "integration/permit_grants")

# A question that is sent again takes a second permit under the same id.
mutate(resent_question_takes_twice scripts/permit_expirable_semaphore.hpp
    "local granted_until = ARGV[9] == '1' and"
    "local granted_until = ARGV[9] == '2' and"
    "integration/permit_grants")

# A caller that leaves keeps what it was granted.
mutate(leaving_caller_keeps_its_grant scripts/permit_grants.hpp
    "for i = 9, #ARGV do\n    if redis.call('zscore'"
    "for i = 9, 8 do\n    if redis.call('zscore'"
    "integration/permit_grants")

# What is granted to nobody stays taken.
mutate(unwanted_grant_is_kept semaphore/grant_receipt.hpp
    "                    refuse(lock, *grant);\n                    continue;"
    "                    continue;"
    "integration/permit_grants")

# The lease of a granted permit is not prolonged.
mutate(granted_permit_is_not_renewed semaphore/permit_leases.hpp
    "record(want, until, since + grant.lease / 3);"
    "record(want, until, never);"
    "integration/permit_grants")

# A lease that nobody prolongs is granted.
mutate(lease_of_its_own_is_granted protocol/permit_expirable_semaphore.hpp
    "want.lease.kind == PermitLease::Kind::watched &&"
    "want.lease.kind != PermitLease::Kind::forever &&"
    "unit/synchronizer_protocols|integration/permit_grants")

# Permits go round between processes that cannot use their grants.
mutate(useless_grants_go_round semaphore/place_grants.hpp
    "is_offering_ = !std::exchange(was_useless_, false);"
    "is_offering_ = true;"
    "unit/permit_expirable")

# A copy of a question that arrives after the end of a grant takes permits for nobody.
mutate(late_copy_takes_a_grant scripts/permit_expirable_semaphore.hpp
    "return all_or_none({mark(marks, lane, request, 0), keep(marks, now, ends)}) or\n               {0, granted_until - now,"
    "return {0, granted_until - now,"
    "integration/permit_grants")

# Permits that were taken under the ids of an old grant are given back while they are used.
mutate(old_grant_is_given_back semaphore/grant_receipt.hpp
    "        if (!leases_.lasts(grant)) return;\n"
    ""
    "integration/permit_grants")

# A question whose first copy has got a place takes permits a second time if it counts as a new one.
mutate(new_question_takes_a_grant scripts/permit_expirable_semaphore.hpp
    "local granted_until = ARGV[9] == '1' and"
    "local granted_until = again == '1' and ARGV[9] == '1' and"
    "integration/permit_grants")

# A turn of before a step back of the clock lasts for as long as that step.
mutate(turn_outlives_a_step_back scripts/permit_grants.hpp
    "return time <= now + longest_run and time or 0"
    "return time"
    "integration/permit_grants")

# Permits are granted without end, and clients that do not queue get none.
mutate(permits_are_granted_without_end scripts/permit_grants.hpp
    "if streak >= most_grants or not alone and"
    "if not alone and"
    "integration/permit_grants")

# Who waits beside the queue waits for 16 grants in a row.
mutate(grants_go_on_beside_a_listener scripts/permit_grants.hpp
    "or not alone and now - told_at > longest_run then"
    "then"
    "integration/permit_grants")

# Nobody looks out for the end of a grant who wants more permits than are available.
mutate(couples_do_not_stand_in scripts/semaphore_queue.hpp
    "elseif (granted or told > 0 and want <= total) and"
    "elseif (told > 0 and want <= total) and"
    "integration/permit_grants")

# Whoever gets a grant twice gives it back.
mutate(grant_that_comes_twice_is_given_back semaphore/grant_receipt.hpp
    "if (leases_.holds(grant)) return;"
    ""
    "integration/permit_grants")

# Permits are granted beside clients that do not queue.
mutate(permits_are_granted_beside_others scripts/permit_expirable_semaphore.hpp
    "if has_others then pcall(set_turn, 0, now + others_active, 0) end"
    ""
    "integration/permit_grants")

# Who leaves takes the look-out for a frozen waiter with it.
mutate(stand_in_leaves_nobody scripts/permit_grants.hpp
    "if first <= now + longest_offer then pcall(look_out, math.max(first, now)) end"
    ""
    "integration/permit_grants")

# A waiter of a fair lock that received the messages for others leaves without a word to the background.
mutate(fair_waiters_count_as_one lock/server_queue.hpp
    "protocol.channel_of(id), true)"
    "protocol.channel_of(id), false)"
    "integration/fair_grants")

# The last one to leave the queue of a semaphore leaves behind what was granted in a row.
mutate(last_place_leaves_the_turn scripts/semaphore_queue.hpp
    "if redis.call('exists', queue) == 0 then redis.call('pexpire', places, '1000') end"
    ""
    "integration/permit_grants")

# A reading whose reply took long vouches for grants, all of which look too old.
mutate(slow_reading_vouches session/remote_clock.hpp
    "return reading->took <= vouches_up_to && "
    "return "
    "unit/remote_clock")

# A Mutex relies on a reading of the server's clock from before a suspension of the machine.
mutate(reading_from_before_a_suspension session/remote_clock.hpp
    " && was_running_since(reading->suspended) ? reading : nullptr;"
    " ? reading : nullptr;"
    "integration/suspended")

# A suspension that comes before the reply to the question for the time is not noticed.
mutate(suspended_before_the_reply session/remote_clock.hpp
    "std::chrono::ceil<Milliseconds>(answered - asked.at()), asked.suspended()};"
    "std::chrono::ceil<Milliseconds>(answered - asked.at()), detail::suspended()};"
    "unit/suspended")

# A Mutex relies on a reading that vouches for nothing.
mutate(doubtful_reading_fixes_the_lease lock/acquire_attempt.hpp
    "const auto now = core_.session.server_time_bounds();"
    "const std::optional now{RemoteClock::Bounds{claim.until - asked.settings.command_timeout.count(), {}, {}}};"
    "unit/acquire_attempt")

# A reply that took long spoils the estimate of the server's clock.
mutate(slow_reply_spoils_the_estimate session/remote_clock.hpp
    "if (known && reading.took > vouches_up_to && reading.agrees_with(*known)) {"
    "if (known && false) {"
    "unit/remote_clock")

# A question that arrives after its caller has left the queue of a semaphore keeps its place there.
mutate(late_question_keeps_its_place semaphore/waiting_place.hpp
    "if (late_until > Clock::now()) leave(lock, late, {}, late_until);"
    ""
    "faults/late_synchronizers")

# A Mutex on another server has a lease that ends by the clock of the earlier one.
mutate(lease_by_an_earlier_server session/remote_clock.hpp
    "if (!reading || reading->at <= since) return std::nullopt;"
    "if (!reading) return std::nullopt;"
    "unit/acquire_attempt")
mutate(server_changes_under_way lock/acquire_attempt.hpp
    "if (is_by_another_clock(reply)) reply = Reply::of(Reply::Kind::unanswered, \"another server\");"
    ""
    "unit/acquire_attempt")

# The release of a level prolongs the lease by the time of a suspension.
mutate(suspended_during_a_release lock/releases.hpp
    "hold->prolong(sent.as_of_now(), leaving.lease);"
    "hold->prolong(sent.at(), leaving.lease);"
    "integration/suspended")

# A lock over several does not notice that a member has lost its part.
mutate(quorum_is_lost_silently quorum/quorum_holds.hpp
    "shares.looked_at + look_period()});"
    "hold.lost_at()});"
    "integration/multi_lock_loss")

# A level that was to be added to a hold becomes a new hold.
mutate(again_of_a_new_quorum_hold quorum/quorum_acquire.hpp
    "if (request.again) me.again = "
    "if (request.again) "
    "integration/multi_lock_loss")

# Nobody can tell that the release of a client without the queue grants nothing.
mutate(holds_without_the_queue_look_alike lock/lock_core.hpp
    "protocol.may_not_queue() ? grants_nothing : 0"
    "protocol.may_not_queue() ? 0 : 0"
    "integration/grants")

# A user that may run no script for a moment never queues again.
mutate(no_script_is_no_queue protocol/queue_keys.hpp
    "reply.text.find(\"'eval\") != std::string::npos"
    "false"
    "unit/lock_protocols")

# What is offered to a number that was given up is left to its lease.
mutate(left_place_is_kept lock/queue_place.hpp
    "if (number && give_back(*number) && number_ != 0) ask_at_"
    "if (number && core_.outbox.has(*number)) ask_at_"
    "faults/late_locks")

# A release that is on the way counts as one that follows.
mutate(on_the_way_is_again lock/outbox.hpp
    "item.once_more = item.on_the_way;"
    ""
    "unit/outbox")

# The number of a place is kept although it is being released.
mutate(released_place_is_kept lock/queue_place.hpp
    "if (kept_.given_up) leave();  // what"
    "// what"
    "unit/rlock_waiting")

# The number of a place is kept when it has been released already.
mutate(just_released_place_is_kept lock/queue_place.hpp
    "if (kept_.given_up) leave();  // what"
    "if (core_.outbox.has(number_)) leave();  // what"
    "unit/rlock_waiting")

mutate(too_late_place_is_kept lock/queue_place.hpp
    "} else if (kept_.given_up) {"
    "} else if (core_.outbox.has(number_)) {"
    "unit/rlock_waiting")

# A fair waiter that needs another number goes on after its deadline.
mutate(new_number_after_the_deadline lock/server_queue.hpp
    " || Clock::now() >= request.deadline) co_return"
    ") co_return"
    "unit/fair_lock")

# A fair waiter whose reply came too late stays under the number that was released.
mutate(given_up_number_queues lock/acquires.hpp
    "if (asked.kept) asked.kept->given_up = true;"
    ""
    "unit/fair_lock")

# A new count does not show that the one before has ended.
mutate(new_count_is_no_news scripts/count_down_latch.hpp
    "                    next_round(round, marks .. ' ' .. request, ends - now), {publish, channel, '1'},"
    "                    {publish, channel, '1'},"
    "integration/count_down_latch")

mutate(ghost_at_the_barrier barrier.ipp
    "if (arrival || withdraws) detail"
    "if (arrival) detail"
    "unit/barrier")

# A second hold is handed over while the first one is: the waiter in between is forgotten.
mutate(two_hand_overs_at_a_time lock/local_hand_over.hpp
    "if (is_sending_) return nullptr;"
    ""
    "unit/rlock_waiting")

mutate(taken_levels_take_room session/lost_levels.hpp
    "if (--found->second.levels == 0) remove(found);"
    "if (found->second.levels == 0) return false; else --found->second.levels;"
    "unit/lost_levels")

mutate(lost_again_is_old session/lost_levels.hpp
    "order_.splice(order_.end(), order_, lost.place);"
    ""
    "unit/lost_levels")

# The waiter of an arrival that the server no longer has sleeps on.
mutate(gone_arrival_is_not_told semaphore/registrations.hpp
    "core_.task.message(core_.protocol.channel(), {});"
    "core_.task.message({}, {});"
    "integration/barrier")

mutate(again_of_a_later_hold lock/acquires.hpp
    "if (hold && request.again_of != 0 && hold->id != request.again_of) hold = nullptr;"
    ""
    "integration/hold_test")

# A lost hold of an Owner releases its next hold.
mutate(lost_hold_means_the_next_one lock/hold_keeper.hpp
    "return {owner, facts};"
    "return {owner};"
    "integration/hold_test")

# A hold that is lost before its object is made has neither a number nor a token.
mutate(lost_hold_has_no_token lock/lock_state.hpp
    "return session().lost_levels().last(core_.kind.name, key(), owner);"
    "return {};"
    "integration/hold_test")

# A hold is released without a grant, because the right to another key is missing.
mutate(released_without_a_grant protocol/rlock.hpp
    "Milliseconds(0), queue_.grant_after(hold))"
    "Milliseconds(0), queues())"
    "integration/grants")

mutate(writer_released_without_a_grant protocol/read_write_lock.hpp
    "change_by(script, queue_.grant_after(hold),"
    "change_by(script, queues(),"
    "integration/read_write_grants")

# A grant to a left place makes those without a place ask again and again.
mutate(told_without_a_place lock/queue_place.hpp
    "give_back(*number) && number_ != 0) ask_at_"
    "give_back(*number)) ask_at_"
    "integration/grants")

# A process that is told of a place that it has left keeps it.
mutate(look_at_a_left_place lock/queue_place.hpp
    "if (!std::exchange(looked_at_left_, true)) give_back(left_.back());"
    ""
    "faults/late_locks")

# A subscription that has fallen silent is kept.
mutate(silent_subscription_is_kept redis/pubsub_connection.hpp
    "        } else {\n            end(listener);"
    "        } else if (full_) {\n            end(listener);"
    "faults/pubsub")

# A subscription that has fallen silent is noticed only if a confirmation is outstanding.
mutate(silent_subscription_without_check redis/pubsub_connection.hpp
    "return is_asked ? deadline_after(answered_at_, ping_interval_) : never;"
    "return never;"
    "faults/pubsub")

# A subscription that has fallen far behind is kept while bytes arrive.
mutate(bytes_count_as_a_reply redis/pubsub_connection.hpp
    "            Reply reply;\n            ReplyReader::Outcome outcome;"
    "            answered_at_ = Clock::now();\n            Reply reply;\n            ReplyReader::Outcome outcome;"
    "faults/pubsub")

# The reply to a check of a subscription wakes all who wait for messages.
mutate(check_is_news redis/pubsub_connection.hpp
    "if (is_news) listener.subscribed(channel);"
    "listener.subscribed(channel);"
    "faults/pubsub")

# A lock over several waits in each round for a server that has stopped to reply.
mutate(silent_member_is_awaited quorum/quorum_rounds.hpp
    "if (silent_[i]) round.do_not_await(i);"
    "if (silent_[i]) break;"
    "integration/red_lock_fault")

# A server that replies again stays without a say in the rounds that it could decide.
mutate(silent_member_stays_silent quorum/quorum_rounds.hpp
    "silent_[member] = false;"
    ""
    "integration/red_lock_fault")

# A lock over several releases a member's hold that is not its own.
mutate(quorum_releases_any_hold lock/leases.hpp
    " || !which.is(hold->id)"
    ""
    "integration/multi_lock_loss")

# Of two calls that change one lease at the same time, the record may keep the other one's.
mutate(lease_changes_at_once semaphore/permit_renewals.hpp
    "permit->changing ? never : permit->renewal_ends;"
    "permit->renewal_ends;"
    "unit/permit_expirable_semaphore")

# A renewal vouches for its whole lease although a late copy may shorten it.
mutate(doubtful_lease_is_forgotten permit_expirable_semaphore.ipp
    "if (!is_unchanged) leases.doubt_lease(id, lease);"
    ""
    "unit/permit_expirable_semaphore")

# Permits go round in one process for ever.
mutate(permits_stay_in_the_process semaphore/synchronizer.hpp
    "successor->require_fsync || handoffs_ >= settings.local_handoff_limit"
    "successor->require_fsync"
    "integration/semaphore_test")

# A waiter gets fewer permits than it wants from a release in its process.
mutate(successor_gets_too_few_permits semaphore/synchronizer.hpp
    "successor->want.amount() != amount ||"
    ""
    "integration/semaphore_test")

# The next waiter asks although the place of the process stands for it.
mutate(next_waiter_asks_at_once semaphore/synchronizer.hpp
    "next->refused_at = std::max(next->refused_at, successor->refused_at);"
    ";"
    "integration/semaphore_test")

# In a cluster with classic channels, who listens at another node gets no turn.
mutate(uncounted_listeners_get_no_turn scripts/queue_release.hpp
    "heard[4] > 0 or publish == 'Publish'"
    "heard[4] > 0"
    "integration/cluster_test")
mutate(uncounted_listeners_get_no_turn_of_a_writer scripts/read_write_queue.hpp
    "heard[4] > 0 or publish == 'Publish'"
    "heard[4] > 0"
    "integration/cluster_test")

# A classic channel is subscribed at the node that served its slot before, too.
mutate(classic_channel_stays_at_its_node redis/cluster_channels.hpp
    "channel.at->subscriber.unsubscribe(name);"
    "channel.at->subscriber.forget(name);"
    "integration/cluster_test")

# Classic channels are subscribed at one node, whatever their slot.
mutate(classic_channels_at_one_node redis/cluster_channels.hpp
    "topology_.map(lock).owner_of(channel.slot);"
    "topology_.map(lock).owner_of(sharded ? channel.slot : std::uint16_t{0});"
    "integration/cluster_test")

# A turn of others that began before the clock stepped back lasts until the clock is there again.
mutate(turn_outlasts_a_step_of_the_clock scripts/lock_queue.hpp
    "return left <= 500 and math.max(left, 0) or 0"
    "return math.max(left, 0)"
    "integration/grants_test")

# The release of a hold that the server has lost wakes nobody who queues.
mutate(lost_hold_wakes_nobody_at_its_release lock/releases.hpp
    "            deliveries_.wake_queue(leaving);"
    ""
    "faults/grants")

# A forced release wakes the head of a FairLock's queue, which is dead, and nobody else.
mutate(forced_release_wakes_the_dead scripts/fair_lock.hpp
    "if free then hand_on(first_alive()) else tell_next() end"
    "if free then wake(first_alive()) else tell_next() end"
    "faults/fair_grants")

# --- the acquire of a lock with a queue --------------------------------------------------------------------------------

# It takes effect however late it arrives.
mutate(late_queue_acquire_takes_effect scripts/queue_acquire.hpp
    "if now > tonumber(ARGV[4]) then return late(now) end\nif redis.call('exists', lock, places) == 0"
    "if redis.call('exists', lock, places) == 0"
    "faults/late_locks")

# A reentry of a hold that is gone begins a new one.
mutate(lost_hold_is_entered_anew scripts/queue_acquire.hpp
    "    if count ~= '1' then return gone() end\n    return enter(lock"
    "    return enter(lock"
    "integration/rlock_watchdog")
mutate(others_hold_is_waited_for_by_a_reentry scripts/queue_acquire.hpp
    "return count == '1' and wait_for_holder() or gone() end"
    "return wait_for_holder() end"
    "integration/rlock_protocol")

# The holder is a client whose releases grant nothing, and the waiter does not learn that.
mutate(foreign_holder_is_not_noticed scripts/queue_acquire.hpp
    "return wait(left, is_foreign(holder) and 1 or 0)"
    "return wait(left, 0)"
    "integration/grants_test")

# Who queues takes the lock although it is the turn of those who do not.
mutate(turn_of_others_is_taken scripts/queue_acquire.hpp
    "if left > 0 and way ~= '2' then return wait(left, 0) end\n"
    ""
    "integration/rlock_protocol")

# Who has the lock keeps the place at which it waited.
mutate(place_outlives_the_acquire scripts/queue_acquire.hpp
    "leave_place(id, number)\n"
    ""
    "integration/rlock_protocol")

# The head of the queue is not told how long the lock is taken.
mutate(head_is_not_told_of_a_new_holder scripts/queue_acquire.hpp
    "tell_head(now + lease)\n"
    ""
    "integration/rlock_protocol")

# Nobody notes that somebody waits without a place.
mutate(no_note_of_who_waits_without_a_place scripts/queue_acquire.hpp
    "if way == '2' and redis.call('exists', places) == 1 then"
    "if false then"
    "integration/grants_test")

# A client whose messages also reach subscribers at other nodes queues up.
mutate(queue_beyond_one_node scripts/queue_acquire.hpp
    "if way ~= '1' or publish == 'publish' then return blocked(left) end"
    "if way ~= '1' then return blocked(left) end"
    "integration/rlock_protocol")

# A client that may not write both keys of the queue leaves half a place.
mutate(half_a_place_stays scripts/queue_acquire.hpp
    "        redis.pcall('hdel', places, id)\n"
    ""
    "faults/access_rights")

# The list of the queue was evicted, and those who ask again stay out of it.
mutate(evicted_queue_stays_empty scripts/queue_acquire.hpp
    "if not is_new and redis.call('exists', queue) == 0 then"
    "if false then"
    "integration/grants_test")

# Who waits without a place keeps out in the turn of those who do not queue, which is its own.
mutate(no_turn_without_a_place lock/acquires.hpp
    "request.polling || (!request.one_try && !may_be_granted(request));"
    "request.polling.has_value();"
    "integration/grants_test")
