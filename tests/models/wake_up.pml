// SPDX-License-Identifier: MIT
//
// How waiters for a lock are woken: subscription, messages, and the choice of the thread that asks.
//
// Models lock/local_queue.hpp (acquire, next, released_here, hand_over, message), wait/wait_queue.hpp
// (generation, step) and session/subscriptions.hpp with redis/pubsub_connection.hpp (confirm, drop, sweep).
//
// A step that the library takes under a mutex is one atomic step here. A thread sleeps until it is woken, so a
// forgotten wake-up shows. `news` is generation != asked. There are no leases: no polling helps a waiter that a message
// should have woken. Commands are not lost here (lease_lock.pml models that), but the connection of the messages
// breaks.
//
// Bounds: THREADS threads, two in the first process and one in each other. Those of the first acquire the lock ROUNDS
// times, and hand over once in a row. DROPS breaks of a connection, SWEEPS subscriptions given up, TIMEOUTS waiters
// that leave.
//
// Properties: a thread that is granted the lock owns it on the server; every waiter enters at last. All runs are
// finite, so a forgotten waiter is a deadlock: an invalid end state.
//
// verify: safety -DDROPS=2
// verify: safety -DSWEEPS=1 -DTIMEOUTS=1
// verify: safety -DROUNDS=2
// verify: liveness all_served
// bug: BUG_CONFIRMED_IN_SILENCE safety -DDROPS=1    a confirmed subscription is no reason to ask again
// bug: BUG_FORGET_AFTER_DROP safety -DDROPS=1       a lost subscription is not made again
// bug: BUG_LATE_GENERATION safety                   the generation is read after the request
// bug: BUG_LEAVE_SILENTLY safety -DTIMEOUTS=1       a representative that leaves wakes no thread
// bug: BUG_OWN_MESSAGE safety -DROUNDS=2 -DDROPS=1  the echo of an own release is expected beyond a break of its link
// bug: BUG_OWN_MESSAGE_EARLY safety -DROUNDS=2      the same, when it has come before the reply
// bug: BUG_OWN_MESSAGE_ASKED safety -DROUNDS=2      an own release does not wake a thread that asked before it
// bug: BUG_LOST_HEIR safety -DTIMEOUTS=1            a hold handed to a thread that has left is not released

#ifndef THREADS
#define THREADS 3
#endif
#ifndef ROUNDS
#define ROUNDS 1
#endif
#ifndef DROPS
#define DROPS 0
#endif
#ifndef SWEEPS
#define SWEEPS 0
#endif
#ifndef TIMEOUTS
#define TIMEOUTS 0
#endif
#define PROCESSES (THREADS - 1)

#define process_of(t) (t > 0 -> t - 1 : 0)

mtype = { MESSAGE, CONFIRMED };

// --- the server -----------------------------------------------------------------------------------------------------

byte holder;                // the thread + 1; 0: free
bool listens[PROCESSES];
chan link[PROCESSES] = [8] of { mtype };

// --- a process ------------------------------------------------------------------------------------------------------

byte first[PROCESSES];      // the first waiter, the representative: the thread + 1; only the first process has ...
byte second[PROCESSES];     // ... another one behind it
bool news[PROCESSES] = true;
bool told[PROCESSES];       // knows when to ask again, so need not ask at once
bool held[PROCESSES];
bool releasing[PROCESSES];
byte successor[PROCESSES];       // the thread that gets a hold on its way, + 1
bool successor_left[PROCESSES];
bool handed_once[PROCESSES];
bool wants[PROCESSES];
bool asked[PROCESSES];      // requested the subscription
bool subscribed[PROCESSES];
bool broken[PROCESSES];     // the connection is broken, but that was not noticed yet
byte own[PROCESSES];        // messages of own releases that are still to come
byte owed[PROCESSES];       // to be released in the background: the thread + 1

bool roused[THREADS];
bool granted[THREADS];
bool trying[THREADS];
bool letting_go[THREADS];
bool moved[THREADS];        // a message or a change of the subscription came during its release
byte finished, drops, sweeps, timeouts;

#define must_ask(p, t) (first[p] == t + 1 && !releasing[p] && successor[p] == 0 && (news[p] || !held[p] && !told[p]))

inline rouse_front(p) {
    if :: first[p] != 0 -> roused[first[p] - 1] = true :: else fi
}

inline leave_line(p, t) {
    if :: first[p] == t + 1 -> first[p] = second[p] :: else fi;
    second[p] = 0;
    if :: first[p] == 0 -> wants[p] = false :: else fi
}

inline tell_representative(p) { news[p] = true; told[p] = false; rouse_front(p) }

// Notifies all threads whose release is on its way.
inline messages_change(p) {
    if
    :: p == 0 -> moved[0] = letting_go[0]; moved[1] = letting_go[1]
    :: else -> moved[p + 1] = letting_go[p + 1]
    fi
}

inline expect_anything(p) {
    messages_change(p);
#ifndef BUG_OWN_MESSAGE
    own[p] = 0
#endif
}

// Frees the lock and publishes. `listeners` is the server's reply.
inline server_releases() {
    holder = 0; listeners = 0; i = 0;
    do
    :: i < PROCESSES ->
        if :: listens[i] -> assert(len(link[i]) < 8); link[i]!MESSAGE; listeners++ :: else fi;
        i++
    :: else -> break
    od;
    i = 0
}

// --- the background thread of a process -----------------------------------------------------------------------------

proctype background(byte p) {
    byte i, listeners;
end:
    do
    :: atomic { len(link[p]) > 0 ->
        if
        :: link[p]?CONFIRMED ->
            subscribed[p] = true;
            expect_anything(p);
#ifndef BUG_CONFIRMED_IN_SILENCE
            tell_representative(p)
#endif
        :: link[p]?MESSAGE ->
            messages_change(p);
            if :: own[p] > 0 -> own[p]-- :: else -> tell_representative(p) fi
        fi }
    :: atomic { broken[p] ->
        do :: len(link[p]) > 0 -> link[p]?_ :: len(link[p]) == 0 -> break od;
        broken[p] = false; subscribed[p] = false;
#ifndef BUG_FORGET_AFTER_DROP
        asked[p] = false;
#endif
        expect_anything(p) }
    :: atomic { wants[p] && !asked[p] && !broken[p] ->
        asked[p] = true; listens[p] = true; assert(len(link[p]) < 8); link[p]!CONFIRMED }
    :: atomic { !wants[p] && asked[p] && !broken[p] && sweeps < SWEEPS ->
        sweeps++; asked[p] = false; listens[p] = false; subscribed[p] = false; expect_anything(p) }
    :: atomic { owed[p] != 0 ->
        if :: holder == owed[p] -> server_releases() :: else fi;
        owed[p] = 0; listeners = 0;
        tell_representative(p) }
    od
}

// --- a thread that acquires and releases ----------------------------------------------------------------------------

proctype thread(byte t; byte p; byte most) {
    byte rounds, i, listeners, next;
    bool mine;

take:
    if
    :: atomic { first[p] == 0 && !held[p] && !releasing[p] && successor[p] == 0 ->
#ifndef BUG_LATE_GENERATION
        news[p] = false;
#endif
        trying[t] = true }
        atomic { if :: holder == 0 -> holder = t + 1; mine = true :: else fi }
        atomic { trying[t] = false;
            if
            :: mine -> mine = false; goto have
            :: else -> told[p] = true
            fi }
    :: atomic { !(first[p] == 0 && !held[p] && !releasing[p] && successor[p] == 0) }
    fi;

    atomic {
        if :: first[p] == 0 -> first[p] = t + 1 :: else -> second[p] = t + 1 fi;
        if
        :: !wants[p] -> wants[p] = true; subscribed[p] = subscribed[p] && asked[p]
        :: else
        fi }

    do
    :: atomic { granted[t] -> granted[t] = false; assert(holder == t + 1); goto have_handed }
    :: atomic { !granted[t] && must_ask(p, t) ->
#ifndef BUG_LATE_GENERATION
        news[p] = false;
#endif
        trying[t] = true }
        atomic { if :: holder == 0 -> holder = t + 1; mine = true :: else fi }
        atomic { trying[t] = false;
#ifdef BUG_LATE_GENERATION
            news[p] = false;
#endif
            if
            :: mine -> mine = false; leave_line(p, t); rouse_front(p); goto have
            :: else -> told[p] = true
            fi }
    // Nothing to do: sleep.
    :: atomic { !granted[t] && !must_ask(p, t) ->
        roused[t] = false }
        if
        :: atomic { roused[t] -> roused[t] = false }
        :: atomic { timeouts < TIMEOUTS && !granted[t] -> timeouts++;
            if
            :: successor[p] == t + 1 -> successor_left[p] = true; if :: first[p] == 0 -> wants[p] = false :: else fi
            :: else ->
                mine = first[p] == t + 1;
                leave_line(p, t);
#ifndef BUG_LEAVE_SILENTLY
                if :: mine -> rouse_front(p) :: else fi;
#endif
                mine = false
            fi;
            roused[t] = false;
            goto done }
        fi
    od;

have:
    atomic { roused[t] = false; assert(holder == t + 1); held[p] = true; news[p] = false; told[p] = false };
have_handed:
    atomic { roused[t] = false; if :: first[p] == 0 -> wants[p] = false :: else fi }

    if
    :: atomic { first[p] != 0 && !handed_once[p] ->
        next = first[p] - 1;
        if
        :: trying[next] -> next = 0; goto give_back
        :: else -> first[p] = second[p]; second[p] = 0; held[p] = false; successor[p] = next + 1
        fi }
        atomic { holder = successor[p] }
        atomic {
            if
            :: successor_left[p] ->
#ifndef BUG_LOST_HEIR
                owed[p] = successor[p];
#endif
                tell_representative(p)
            :: else ->
                granted[next] = true; held[p] = true; news[p] = false; told[p] = false; handed_once[p] = true;
                roused[next] = true
            fi;
            successor[p] = 0; successor_left[p] = false; next = 0;
            goto given_back }
    :: atomic { first[p] == 0 || handed_once[p] }
    fi;

give_back:
    atomic { held[p] = false; releasing[p] = true; letting_go[t] = true; handed_once[p] = false }
    atomic { assert(holder == t + 1); server_releases() }
    atomic {
        releasing[p] = false;
        if
#ifdef BUG_OWN_MESSAGE_EARLY
        :: listeners > 0 && subscribed[p] && first[p] == 0 -> own[p]++
#else
        :: listeners > 0 && subscribed[p] && first[p] == 0 && !moved[t] ->
            own[p]++;
#ifndef BUG_OWN_MESSAGE_ASKED
            news[p] = true; told[p] = false
#endif
#endif
        :: else
        fi;
        moved[t] = false; letting_go[t] = false;
        if
        :: !subscribed[p] || listeners <= 1 -> tell_representative(p)
        :: else -> if :: first[p] != 0 -> told[p] = true; rouse_front(p) :: else fi
        fi;
        listeners = 0
    }
given_back:
    atomic {
        rounds++;
        if :: rounds < most -> goto take :: else fi
    }
done:
    atomic { finished++; rounds = 0 }
}

#define break_link(p) atomic { drops < DROPS && listens[p] -> drops++; listens[p] = false; broken[p] = true }

proctype faults() {
end:
    do
    :: break_link(0)
    :: break_link(1)
#if THREADS == 4
    :: break_link(2)
#endif
    od
}

init {
    atomic {
        run background(0); run background(1);
        run thread(0, 0, ROUNDS); run thread(1, 0, ROUNDS); run thread(2, 1, 1);
#if THREADS == 4
        run background(2); run thread(3, 2, 1);
#endif
        run faults()
    }
}

ltl all_served { <> (finished == THREADS) }
