// SPDX-License-Identifier: MIT
//
// The queue of the fair lock: places with time slots, death, giving up, purge, and the order of turns.
//
// Models scripts/fair_lock.hpp (acquire, release, leave, refresh, first_alive) and lock/server_queue.hpp (when a
// waiter asks again; the refresh of its slot, every tick here; its reaction to the loss of its place).
//
// A command is one step, including its reply. So all holds of an owner are the same (lease_lock.pml models what may
// happen in between, and the number of each hold that protects against it). Except for LATE times, time waits for
// owners that are alive and due to refresh their slot.
//
// Bounds: 3 waiters, each in a process of its own, which return indefinitely; SLOT and LEASE ticks; DEATHS owners that
// die; LATE slots refreshed too late; LEAVES waiters that give up.
//
// Properties: one holder at a time; no owner gets the lock before a live waiter that came earlier and was never late;
// no owner asks more than MOST times a tick; a live waiter gets the lock, whichever owners die.
//
// verify: safety
// verify: liveness served
// bug: BUG_OVERTAKE safety                  a free lock is acquired without a check of the queue
// bug: BUG_NO_REFRESH safety                a place is not refreshed while its owner waits
// bug: BUG_NEW_PLACE safety                 a waiter that asks again goes to the end of the queue
// bug: BUG_PURGE_THE_LIVING safety          a purge removes the first waiter, dead or not
// bug: BUG_ANSWER_ZERO safety               beside a free lock with a dead head all waiters are to ask again at once
// bug: BUG_NO_PURGE safety                  the dead stay in the queue, and a waiter beside a free lock asks endlessly
// bug: BUG_DEAD_FOREVER liveness served     a place has no time limit

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
#define MOST 3

// --- the server -----------------------------------------------------------------------------------------------------

byte holder;        // the owner + 1; 0: free
byte ttl;
byte queue[3];      // owners + 1, the next one first
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

inline pop() { queue[0] = queue[1]; queue[1] = queue[2]; queue[2] = 0 }

inline take_out(o) {
    if
    :: queue[0] == o + 1 -> pop()
    :: queue[1] == o + 1 -> queue[1] = queue[2]; queue[2] = 0
    :: queue[2] == o + 1 -> queue[2] = 0
    :: else
    fi;
    slot[o] = 0
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
    turn[o] = 0
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
    if :: holder == 0 && queue[0] != 0 -> news[queue[0] - 1] = waits[queue[0] - 1] :: else fi
}

#define is_queued(o) (queue[0] == o + 1 || queue[1] == o + 1 || queue[2] == o + 1)
#define waiting_turns ((turn[0] > 0 -> 1 : 0) + (turn[1] > 0 -> 1 : 0) + (turn[2] > 0 -> 1 : 0))

// fair_acquire with a slot.
inline acquire_or_queue(o) {
    asked[o]++;
    assert(asked[o] <= MOST);
    first_alive();
    if
#ifdef BUG_OVERTAKE
    :: holder == 0 ->
#else
    :: holder == 0 && (queue[0] == 0 || queue[0] == o + 1) ->
#endif
        assert(valid[0] + valid[1] + valid[2] == 0);
        assert(turn[o] == 1 || waiting_turns == 0);
        holder = o + 1; ttl = LEASE; valid[o] = LEASE;
        take_out(o);
        forget_turn(o);
        waits[o] = false; news[o] = false; ask_again[o] = 0; fresh[o] = false; asked[o] = 0;
        if :: o == 1 -> is_late = false :: else fi
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
    if :: holder == o + 1 -> holder = 0; ttl = 0; first_alive(); wake() :: else fi
}

inline leave(o) {
    take_out(o);
    forget_turn(o);
    first_alive(); wake();
    waits[o] = false; news[o] = false; ask_again[o] = 0; fresh[o] = false; asked[o] = 0;
    if :: o == 1 -> is_late = false :: else fi
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
end:
    do
    :: atomic { !waits[o] || news[o] || ask_again[o] == 0 -> acquire_or_queue(o) }
        if
        :: atomic { valid[o] > 0 -> release(o) }
        :: atomic { valid[o] > 0 && deaths < DEATHS -> deaths++; valid[o] = 0; dead[o] = true; goto end_of_life }
        :: valid[o] == 0
        fi
    :: atomic { waits[o] && deaths < DEATHS -> deaths++; goto die }
    :: atomic { waits[o] && leaves < LEAVES -> leaves++; leave(o) }
    od;
die:
    atomic { forget_turn(o); waits[o] = false; news[o] = false; ask_again[o] = 0; dead[o] = true; fresh[o] = false }
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
#define next_tick(o) slot_time(o); run_down(valid[o]); run_down(ask_again[o]); fresh[o] = false; asked[o] = 0
// Alive, and has still something to do in this tick.
#define overdue(o) (waits[o] && (!fresh[o] || news[o] || ask_again[o] == 0))

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
        run owner(0); run owner(1); run owner(2); run background(0); run background(1); run background(2); run time()
    }
}

ltl served { [] (waits[0] -> <> (valid[0] > 0 || !waits[0])) }
