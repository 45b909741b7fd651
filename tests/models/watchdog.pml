// SPDX-License-Identifier: MIT
//
// The watchdog against unlock, loss and cancelled acquires, within one client.
//
// Models lock/{acquires,deliveries,releases,leases}.hpp (ask, undo, release, add_due, renewed, delivered) and lock/hold_table.hpp (ids,
// lost_at).
//
// A step that the library takes under its mutex is one atomic step. Commands are on their way outside of it. The
// background thread renews holds, notices expired ones, and delivers pending releases. An acquire may be cancelled
// while it is on its way, and a renewal may stay without a reply indefinitely (a frozen server). Each first hold has a
// new number, by which the server knows it. A number is reused when nothing carries it, which stands for "never again".
// Copies that arrive late are in lease_lock.pml.
//
// Bounds: 1 lock; 2 threads that acquire it ROUNDS times each, with 3 numbers each; 1 renewal on its way at a time;
// LEASE ticks; FAULTS commands without a reply.
//
// Properties:
//   - No thread is granted the lock while the other believes in its hold.
//   - No release meets a hold that a thread believes in.
//   - A refusal declares a hold lost only if the server has none.
//   - Every hold that is not released is renewed or reported lost.
//   - NO_EXPIRY: at the end nothing is left on the server that only time could end.
//
// verify: safety
// verify: safety -DNO_EXPIRY -DROUNDS=1 -DFAULTS=2
// verify: liveness renewed_or_lost -DROUNDS=1
// bug: BUG_NO_HOLD_ID safety                   a late reply counts for the present hold
// bug: BUG_SAME_NUMBER safety                  a thread uses one number for all its holds
// bug: BUG_BELIEVE_TO_THE_END safety           a hold is watched and believed in until its release has a reply
// bug: BUG_FORGET_CANCELLED safety -DNO_EXPIRY -DROUNDS=1 -DFAULTS=2    a cancelled acquire is not taken back
// bug: BUG_NOT_LOOKED_AT liveness renewed_or_lost -DROUNDS=1    during a renewal the time is not checked

#ifndef LEASE
#define LEASE 2
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef FAULTS
#define FAULTS 1
#endif

mtype = { SENT, YES, NO, FROZEN };

byte holder;        // the number + 1; 0: the key is absent
byte ttl;

// State of each thread.
bool live[2];
byte valid[2];
byte fresh[2];      // the lease of an acquire on its way
byte number[2];     // the number that it asks with or holds
bool asking[2];
bool renewed[2];    // since it was acquired

// State of each number.
bool pending[6];    // its release is to be delivered
bool orphaned[6];   // its hold was lost while a renewal was on its way

// The renewal on its way.
mtype renewal;
byte renewal_of, renewal_number, renewal_fresh;
byte faults, finished;

#define is_believed(n) (live[n / 3] && number[n / 3] == n)
#define is_new(n) (!pending[n] && holder != n + 1 && !(renewal != 0 && renewal_number == n))

inline server_releases(n) {
    if :: holder == n + 1 -> holder = 0; ttl = 0 :: else fi
}

proctype thread(byte o) {
    byte rounds;
    mtype answer;

take:
    atomic {
#ifdef BUG_SAME_NUMBER
        number[o] = o * 3;
#else
        if
        :: is_new(o * 3) -> number[o] = o * 3
        :: !is_new(o * 3) && is_new(o * 3 + 1) -> number[o] = o * 3 + 1
        :: !is_new(o * 3) && !is_new(o * 3 + 1) && is_new(o * 3 + 2) -> number[o] = o * 3 + 2
        fi;
#endif
        asking[o] = true; fresh[o] = LEASE; answer = SENT
    }
    if
    :: atomic { holder == 0 || holder == number[o] + 1 ->
        assert(!live[1 - o] || valid[1 - o] == 0);
        holder = number[o] + 1; ttl = LEASE; answer = YES }
    :: atomic { holder != 0 && holder != number[o] + 1 -> answer = NO }
    fi;
    if
    :: atomic { answer == YES && fresh[o] > 0 ->
        asking[o] = false; live[o] = true; renewed[o] = false;
        valid[o] = fresh[o]; fresh[o] = 0; answer = 0 }
    :: atomic { answer == NO -> asking[o] = false; fresh[o] = 0; answer = 0; goto next }
    // Cancelled, without a reply, or too late: undo the acquire.
    :: atomic { answer == YES && (fresh[o] == 0 || faults < FAULTS) ->
        if :: fresh[o] > 0 -> faults++ :: else fi;
        asking[o] = false; fresh[o] = 0; answer = 0;
#ifndef BUG_FORGET_CANCELLED
        pending[number[o]] = true;
#endif
        goto next }
    fi;

    if
    :: atomic { live[o] && valid[o] > 0 ->
#ifndef BUG_BELIEVE_TO_THE_END
        live[o] = false; valid[o] = 0
#endif
        }
        // The release is on its way.
        atomic { server_releases(number[o]) }
        atomic { live[o] = false; valid[o] = 0 }
    :: !live[o]  // lost
    fi;
next:
    atomic {
        rounds++;
        if :: rounds < ROUNDS -> goto take :: else finished++ fi
    }
}

proctype renewer() {
end:
    do
    :: atomic { renewal == 0 && live[0] && valid[0] > 0 ->
        renewal = SENT; renewal_of = 0; renewal_number = number[0]; renewal_fresh = LEASE }
    :: atomic { renewal == 0 && live[1] && valid[1] > 0 ->
        renewal = SENT; renewal_of = 1; renewal_number = number[1]; renewal_fresh = LEASE }
    // The server executes it; or it is frozen, and never does.
    :: atomic { renewal == SENT ->
        if
        :: holder == renewal_number + 1 -> ttl = LEASE; renewal = YES
        :: else -> renewal = NO
        fi }
    :: atomic { renewal == SENT && faults < FAULTS -> faults++; renewal = FROZEN }
    // The reply.
    :: atomic { renewal == YES || renewal == NO ->
        if
#ifdef BUG_NO_HOLD_ID
        :: live[renewal_of] ->
#else
        :: is_believed(renewal_number) ->
#endif
            if
            :: renewal == YES ->
                renewed[renewal_of] = true;
                if :: renewal_fresh > valid[renewal_of] -> valid[renewal_of] = renewal_fresh :: else fi
            :: else ->
                assert(holder != number[renewal_of] + 1);
                live[renewal_of] = false; valid[renewal_of] = 0
            fi
        // Lost here, but renewed on the server after all.
        :: !is_believed(renewal_number) && orphaned[renewal_number] && renewal == YES ->
            pending[renewal_number] = true
        :: else
        fi;
        orphaned[renewal_number] = false;
        renewal = 0; renewal_of = 0; renewal_number = 0; renewal_fresh = 0 }
    od
}

// Notices that a hold has expired.
proctype clock(byte o) {
end:
    do
#ifdef BUG_NOT_LOOKED_AT
    :: atomic { live[o] && valid[o] == 0 && !(renewal != 0 && renewal_number == number[o]) ->
#else
    :: atomic { live[o] && valid[o] == 0 ->
#endif
        live[o] = false; orphaned[number[o]] = renewal != 0 && renewal_number == number[o] }
    od
}

// Delivers pending releases.
proctype deliverer(byte o) {
    byte n;
end:
    do
    :: atomic {
        if
        :: pending[o * 3] -> n = o * 3
        :: pending[o * 3 + 1] -> n = o * 3 + 1
        :: pending[o * 3 + 2] -> n = o * 3 + 2
        fi;
        assert(!is_believed(n) || valid[o] == 0 || holder != n + 1);
        server_releases(n);
        pending[n] = false; n = 0 }
    od
}

#define run_down(x) if :: x > 0 -> x-- :: else fi

proctype time() {
end:
    do
    :: atomic {
#ifdef NO_EXPIRY
        holder == 0;  // so only a release ends a hold
#endif
        if :: ttl == 1 -> holder = 0 :: else fi;
        run_down(ttl);
        run_down(valid[0]); run_down(valid[1]); run_down(fresh[0]); run_down(fresh[1]); run_down(renewal_fresh)
    }
    od
}

proctype end_state() {
    atomic {
        finished == 2 && renewal == 0;
        !pending[0] && !pending[1] && !pending[2] && !pending[3] && !pending[4] && !pending[5];
#ifdef NO_EXPIRY
        assert(holder == 0)
#endif
    }
}

init {
    atomic {
        run thread(0); run thread(1); run renewer(); run time();
        run clock(0); run clock(1); run deliverer(0); run deliverer(1);
#ifdef NO_EXPIRY
        run end_state()
#endif
    }
}

ltl renewed_or_lost { [] (live[0] -> <> (!live[0] || renewed[0])) }
