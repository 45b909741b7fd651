// SPDX-License-Identifier: MIT
//
// The queue of the fair lock: places with time slots, death, giving up, purge, and the order of turns.
//
// Models scripts/fair_lock.hpp (acquire, release, leave, refresh, first_alive) and lock/server_queue.hpp (when a
// waiter asks again; the refresh of its slot, every tick here; its reaction to the loss of its place).
//
// GRANTS: a release may grant the lock to a waiter, whose slot is marked when it asks while it listens. The grant is a
// message in a buffer. A process may read it at any time later, or never: time does not wait for it, except for URGENT.
// Of owner 2 no slot is marked: it stands for Redisson, or for a fixed lease. An owner that waits again under an earlier
// id still listens; under a new id it does not, and no message for the old one reaches it.
//
// A command is one step, including its reply. So all holds of an owner are the same (lease_lock.pml models what may
// happen in between, and the number of each hold that protects against it). Except for LATE times, time waits for
// owners that are alive and due to refresh their slot.
//
// Bounds: 3 waiters, or the first TWO, each in a process of its own, which return indefinitely; SLOT and LEASE ticks;
// DEATHS owners that die; LATE slots refreshed too late; LEAVES waiters that give up; CUTS connections to the channels
// that break; LOUD: the receivers of the dead are still counted; OFFER ticks, how long a grant lasts until the first
// renewal.
//
// Properties: one holder at a time; no owner gets the lock before a live waiter that came earlier, was never late and
// whose connection never broke; without GRANTS, no owner asks more than MOST times a tick; a live waiter gets the lock,
// whichever owners die. GRANTS: who enters holds the lock; owner 2 is granted nothing; who has left holds nothing.
//
// verify: safety
// verify: liveness served
// verify: safety -DGRANTS -DLATE=0 -DLEAVES=0 -DDEATHS=0
// verify: safety -DGRANTS -DLATE=0 -DLEAVES=0 -DLOUD -DTWO -DCUTS=1
// verify: safety -DGRANTS -DTWO
// verify: liveness served -DGRANTS -DDEATHS=0 -DTWO -DURGENT
// bug: BUG_OVERTAKE safety                  a free lock is acquired without a check of the queue
// bug: BUG_NO_REFRESH safety                a place is not refreshed while its owner waits
// bug: BUG_NEW_PLACE safety                 a waiter that asks again goes to the end of the queue
// bug: BUG_PURGE_THE_LIVING safety          a purge removes the first waiter, dead or not
// bug: BUG_ANSWER_ZERO safety               beside a free lock with a dead head all waiters are to ask again at once
// bug: BUG_NO_PURGE safety                  the dead stay in the queue, and a waiter beside a free lock asks endlessly
// bug: BUG_DEAD_FOREVER liveness served     a place has no time limit
// bug: BUG_VALID_FROM_RECEIPT safety -DGRANTS -DLATE=0    the offer counts from the receipt of the message
// bug: BUG_SAME_ID safety -DGRANTS -DLATE=0    an id is used again under which a grant may still be told
// bug: BUG_MARKED_TOO_EARLY safety -DGRANTS -DLATE=0    a slot is marked before its waiter listens
// bug: BUG_ALL_ARE_MARKED safety -DGRANTS -DLATE=0    Redisson's waiters are granted the lock, too
// bug: BUG_LEAVE_KEEPS safety -DGRANTS -DLATE=0    a waiter that leaves keeps what it was granted
// bug: BUG_PASS_ALL safety -DGRANTS -DLATE=0    those that listen are granted the lock first, whoever comes before them

#ifndef LEASE
#define LEASE 2
#endif
#ifndef SLOT
#define SLOT 2
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef LATE
#define LATE 1
#endif
#ifndef LEAVES
#define LEAVES 1
#endif
#ifndef CUTS
#define CUTS 0
#endif
#ifndef OFFER
#define OFFER 1
#endif
#define MOST 3

// --- the server -----------------------------------------------------------------------------------------------------

byte holder;        // the owner + 1; 0: free
byte ttl;
byte queue[3];      // owners + 1, the next one first
#ifdef GRANTS
byte next;          // of a release: who is granted it, + 1
#endif
byte slot[3];       // how long an owner in the queue counts as alive

// --- the owners -----------------------------------------------------------------------------------------------------

byte valid[3];
bool waits[3];
bool news[3];
bool fresh[3];      // has refreshed its slot in this tick
byte ask_again[3];
byte asked[3];      // how often in this tick
byte turn[3];       // ghost: the order of the waiters that were never late; 0: none
bool dead[3];
bool is_late;       // the second owner's slot has ended, though it lives
byte deaths, late, leaves;
#ifdef GRANTS
byte cuts;
bool marked[3];     // on the server: the slot in the queue
bool listens[3];    // the server counts it as a receiver
bool was_cut[3];    // ghost: since it came, its connection broke
byte grant[3];      // a message in the buffer: what is left of the grant + 1
#define hears(o) listens[o]
#define may_be_passed(o) was_cut[o]
#ifdef LOUD
#define heard_when_dead listens[o]
#else
#define heard_when_dead false
#endif
#else
#define hears(o) true
#define may_be_passed(o) false
#endif

inline pop() { queue[0] = queue[1]; queue[1] = queue[2]; queue[2] = 0 }

inline take_out(o) {
    if
    :: queue[0] == o + 1 -> pop()
    :: queue[1] == o + 1 -> queue[1] = queue[2]; queue[2] = 0
    :: queue[2] == o + 1 -> queue[2] = 0
    :: else
    fi;
    slot[o] = 0;
#ifdef GRANTS
    marked[o] = false
#endif
}

inline append(o) {
    if
    :: queue[0] == 0 -> queue[0] = o + 1
    :: queue[0] != 0 && queue[1] == 0 -> queue[1] = o + 1
    :: else -> assert(queue[2] == 0); queue[2] = o + 1
    fi
}

inline forget_turn(o) {
    if :: turn[o] > 0 && turn[0] > turn[o] -> turn[0]-- :: else fi;
    if :: turn[o] > 0 && turn[1] > turn[o] -> turn[1]-- :: else fi;
    if :: turn[o] > 0 && turn[2] > turn[o] -> turn[2]-- :: else fi;
    turn[o] = 0;
#ifdef GRANTS
    was_cut[o] = false
#endif
}

// Removes the dead at the head. If the lock is free, the next waiter is woken.
inline first_alive() {
    do
#ifdef BUG_PURGE_THE_LIVING
    :: queue[0] != 0 && slot[queue[0] - 1] <= 1 -> slot[queue[0] - 1] = 0; pop()
#else
    :: queue[0] != 0 && slot[queue[0] - 1] == 0 ->
#ifdef BUG_NO_PURGE
        break
#else
        if :: queue[0] == 2 && is_late -> forget_turn(1); is_late = false :: else fi;
        pop()
#endif
#endif
    :: else -> break
    od
}

inline wake() {
    if :: holder == 0 && queue[0] != 0 && hears(queue[0] - 1) -> news[queue[0] - 1] = waits[queue[0] - 1] :: else fi
}

#define is_queued(o) (queue[0] == o + 1 || queue[1] == o + 1 || queue[2] == o + 1)
#define waiting_turns ((turn[0] > 0 -> 1 : 0) + (turn[1] > 0 -> 1 : 0) + (turn[2] > 0 -> 1 : 0))
#define is_passed_by(p, o) (turn[p] > 0 && (turn[o] == 0 || turn[p] < turn[o]) && !may_be_passed(p))
#define is_in_order(o) (!is_passed_by(0, o) && !is_passed_by(1, o) && !is_passed_by(2, o))

// Of an owner that has got the lock, or has left.
inline stop_waiting(o) {
    waits[o] = false; news[o] = false; ask_again[o] = 0; fresh[o] = false; asked[o] = 0;
    if :: o == 1 -> is_late = false :: else fi
}

#ifdef GRANTS
// The next wait has another id: what is told to this one reaches nobody.
inline drop_id(o) { listens[o] = false; grant[o] = 0 }

// The head asks when the present lease ends.
inline tell_next() {
    if
    :: queue[0] != 0 && hears(queue[0] - 1) && queue[0] != 3 && ask_again[queue[0] - 1] > ttl ->
        ask_again[queue[0] - 1] = ttl
    :: else
    fi
}

inline grant_to(o) {
    assert(valid[0] + valid[1] + valid[2] == 0);
    assert(dead[o] || is_in_order(o));
    assert(o != 2);
    holder = o + 1; ttl = OFFER;
    take_out(o);
    forget_turn(o);
    if :: waits[o] -> grant[o] = OFFER + 1 :: else fi;
    tell_next()
}

// A waiter that can be granted the lock but does not listen is passed.
#ifdef BUG_PASS_ALL
#define is_passed(i) (queue[i] != 0 && !is_grantable(i))
#else
#define is_passed(i) (queue[i] != 0 && marked[queue[i] - 1] && !is_grantable(i))
#endif
#define is_grantable(i) (queue[i] != 0 && marked[queue[i] - 1] && slot[queue[i] - 1] > 0 && listens[queue[i] - 1])

inline hand_on() {
    if
    :: is_grantable(0) -> next = queue[0]
    :: is_passed(0) && is_grantable(1) -> next = queue[1]
    :: is_passed(0) && is_passed(1) && is_grantable(2) -> next = queue[2]
    :: else
    fi;
    if
    :: next == 1 -> grant_to(0)
    :: next == 2 -> grant_to(1)
    :: next == 3 -> grant_to(2)
    :: else -> wake()
    fi;
    next = 0
}

// Reads the message. A grant that is over is no hold.
inline enter(o) {
#ifdef BUG_VALID_FROM_RECEIPT
    valid[o] = OFFER;
#else
    valid[o] = grant[o] - 1;
#endif
    grant[o] = 0;
    if
    :: valid[o] > 0 ->
        assert(holder == o + 1);
        assert(valid[0] + valid[1] + valid[2] == valid[o]);
        stop_waiting(o)
    :: else -> news[o] = true
    fi
}

inline mark(o) {
#ifdef BUG_MARKED_TOO_EARLY
    marked[o] = o != 2
#elif defined(BUG_ALL_ARE_MARKED)
    marked[o] = listens[o]
#else
    marked[o] = o != 2 && listens[o]
#endif
}
#endif

// fair_acquire with a slot.
inline acquire_or_queue(o) {
#ifndef GRANTS
    asked[o]++;
    assert(asked[o] <= MOST);
#endif
    first_alive();
    if
#ifdef GRANTS
    :: holder == o + 1 ->  // was granted it
        assert(valid[0] + valid[1] + valid[2] == 0);
        ttl = LEASE; valid[o] = LEASE;
        stop_waiting(o);
#ifndef BUG_SAME_ID
        drop_id(o)
#endif
#endif
#ifdef BUG_OVERTAKE
    :: holder == 0 ->
#else
    :: holder == 0 && (queue[0] == 0 || queue[0] == o + 1) ->
#endif
        assert(valid[0] + valid[1] + valid[2] == 0);
        assert(is_in_order(o));
        holder = o + 1; ttl = LEASE; valid[o] = LEASE;
#ifdef GRANTS
        if :: marked[o] -> drop_id(o) :: else fi;
#endif
        take_out(o);
        forget_turn(o);
        stop_waiting(o)
    :: else ->
#ifdef BUG_NEW_PLACE
        take_out(o);
#endif
        if
        :: is_queued(o)
        :: else ->
            append(o);
            if :: turn[o] == 0 -> turn[o] = waiting_turns + 1 :: else fi
        fi;
        slot[o] = SLOT;
#ifdef GRANTS
        mark(o);
#endif
        if :: o == 1 -> is_late = false :: else fi;
        waits[o] = true; news[o] = false; fresh[o] = true;
        ask_again[o] = (holder == 0 -> slot[queue[0] - 1] : ttl + slot[queue[0] - 1]);
#ifdef BUG_ANSWER_ZERO
        if :: holder == 0 -> ask_again[o] = 0 :: else fi
#endif
    fi
}

inline release(o) {
    valid[o] = 0;
    if
    :: holder == o + 1 ->
        holder = 0; ttl = 0;
        first_alive();
#ifdef GRANTS
        hand_on()
#else
        wake()
#endif
    :: else
    fi
}

inline leave(o) {
    take_out(o);
    forget_turn(o);
#ifdef GRANTS
    drop_id(o);
#ifndef BUG_LEAVE_KEEPS
    if :: holder == o + 1 -> holder = 0; ttl = 0 :: else fi;
#endif
#endif
    first_alive(); wake();
    stop_waiting(o);
    assert(holder != o + 1)
}

inline refresh(o) {
#ifndef BUG_NO_REFRESH
    if
    :: is_queued(o) -> slot[o] = SLOT; if :: o == 1 -> is_late = false :: else fi
    :: else -> news[o] = true
    fi;
#endif
    first_alive(); wake();
    fresh[o] = true
}

proctype owner(byte o) {
#ifdef GRANTS
    bool is_offered;
#endif
end:
    do
    :: atomic { !waits[o] || news[o] || ask_again[o] == 0 -> acquire_or_queue(o) }
        goto holds
    :: atomic { waits[o] && deaths < DEATHS -> deaths++; goto die }
    :: atomic { waits[o] && leaves < LEAVES -> leaves++; leave(o) }
#ifdef GRANTS
    :: atomic { waits[o] && !listens[o] -> listens[o] = true; news[o] = true }
    :: atomic { waits[o] && listens[o] && cuts < CUTS -> cuts++; listens[o] = false; grant[o] = 0; was_cut[o] = true }
    :: atomic { waits[o] && grant[o] > 0 -> enter(o); is_offered = valid[o] > 0 }
        goto holds
#endif
    od;
holds:
    if
#ifdef GRANTS
    :: atomic { valid[o] > 0 && is_offered ->
        is_offered = false; assert(holder == o + 1); ttl = LEASE; valid[o] = LEASE; goto holds }
#endif
    :: atomic { valid[o] > 0 -> release(o); goto end }
    :: atomic { valid[o] > 0 && deaths < DEATHS -> deaths++; valid[o] = 0; dead[o] = true; goto end_of_life }
    :: valid[o] == 0 -> goto end
    fi;
die:
    atomic { forget_turn(o); stop_waiting(o); dead[o] = true;
#ifdef GRANTS
        grant[o] = 0; listens[o] = heard_when_dead
#endif
    }
end_of_life:
    skip
}

// The background thread of the owner's process.
proctype background(byte o) {
end:
    do
    :: atomic { waits[o] && !fresh[o] -> refresh(o) }
    od
}

#define run_down(x) if :: x > 0 -> x-- :: else fi
#ifdef BUG_DEAD_FOREVER
#define slot_time(o) skip
#else
#define slot_time(o) run_down(slot[o])
#endif
#ifdef GRANTS
#define grant_time(o) if :: grant[o] > 1 -> grant[o]-- :: else fi
#ifdef URGENT
#define may_pause(o) false
#define has_mail(o) (grant[o] > 0)
#else
#define may_pause(o) (holder == o + 1 && grant[o] > 0)
#define has_mail(o) false
#endif
#else
#define grant_time(o) skip
#define may_pause(o) false
#define has_mail(o) false
#endif
#define next_tick(o) \
    slot_time(o); grant_time(o); run_down(valid[o]); run_down(ask_again[o]); fresh[o] = false; asked[o] = 0
// Alive, and has still something to do in this tick.
#define overdue(o) (waits[o] && !may_pause(o) && (!fresh[o] || news[o] || has_mail(o) || ask_again[o] == 0))

proctype time() {
end:
    do
    :: atomic { !overdue(0) && !overdue(1) && !overdue(2) ->
        if :: ttl == 1 -> holder = 0 :: else fi;
        run_down(ttl);
        next_tick(0); next_tick(1); next_tick(2) }
    :: atomic { late < LATE && waits[1] && slot[1] > 0 -> late++; slot[1] = 0; is_late = true }
    od
}

init {
    atomic {
        run owner(0); run owner(1); run background(0); run background(1); run time();
#ifndef TWO
        run owner(2); run background(2)
#endif
    }
}

ltl served { [] (waits[0] -> <> (valid[0] > 0 || !waits[0])) }
