// SPDX-License-Identifier: MIT
//
// The lease of a lock on one server, with lost, repeated and arbitrarily late messages.
//
// Models scripts/rlock.hpp, scripts/fenced_lock.hpp and scripts/wanted_until.hpp (the server), lock/acquires.hpp
// (send_acquire, take_in, take_back, last_released, renewed, delivered) and lock/outbox.hpp (commands that are sent
// until a server whose clock is beyond an instant answers them). Reentry, hand-over and clocks that jump are not
// modelled.
//
// Time is counted in ticks, which may come between any two steps: so every process may be paused anywhere. A request or
// its reply is lost, or the request stays on its way as a copy. A copy is delivered or dropped at any time, when the
// client has long continued. The server is passive: a command is one step. A client believes that it holds the lock
// while `valid` > 0. Each first hold has a new number. A number is reused when no copy carries it, the server does not
// hold it and no release of it is pending. That stands for "never again".
//
// Bounds: 2 clients with a watchdog each and 2 numbers each; 2 copies at a time; LEASE ticks; COMMAND ticks for which
// an acquire or a renewal is wanted; LOSSES faults of the network, which affect the first FAULTY clients. TOKENS: at
// most that many grants, with fencing tokens. LOSE_DATA: the server loses its memory once, which may cost exclusion.
// DEATH: the second client may die. URGENT: time waits for releases that are due.
//
// Properties:
//   - No client is granted the lock while another believes that it holds it.
//   - A release ends the whole of its own hold and no other hold.
//   - A hold whose renewal was refused is lost at once.
//   - Tokens only grow, even over a loss of data.
//   - The server never holds a number that its client is done with. It holds a number that is to be released for
//     COMMAND at most if releases are delivered in time (URGENT).
//   - A hold that was lost, or whose owner died, is over after LEASE + COMMAND.
//   - When a holder has died, a client that continues to ask gets the lock.
//
// verify: safety -DLOSSES=1
// verify: safety -DFAULTY=1
// verify: safety -DLEASE=2 -DCOMMAND=1
// verify: safety -DFAULTY=1 -DURGENT
// verify at length: safety -DFAULTY=1 -DTOKENS=4 -DLOSE_DATA -DLOSSES=1
// verify: liveness after_death -DLOSSES=1 -DLEASE=2 -DCOMMAND=1 -DDEATH
// bug: BUG_VALID_FROM_REPLY safety         the lease counts from the reply
// bug: BUG_COUNT safety                    the server counts levels, so a resent acquire counts twice
// bug: BUG_SAME_NUMBER safety              a client uses one number for all its holds
// bug: BUG_NO_UNTIL safety                 an acquire takes effect however late it is
// bug: BUG_RENEW_NO_UNTIL safety -DFAULTY=1 -DLOSSES=3 -DCOMMAND=1    a renewal takes effect however late
// bug: BUG_GIVE_UP_ONCE safety             an abandoned acquire is not released once more after its instant
// bug: BUG_FORGET_UNSETTLED safety         the same for an unlocked hold that a later copy had acquired
// bug: BUG_LOSS_FORGETS safety -DFAULTY=1 -DTOKENS=4 -DLOSE_DATA -DLOSSES=1    a loss forgets the copy of the acquire
// bug: BUG_VOID_IS_NOT_HELD safety         a void reply counts as a refusal, whatever an earlier copy acquired
// bug at length: BUG_IGNORE_REFUSAL safety -DFAULTY=1 -DTOKENS=4 -DLOSE_DATA -DLOSSES=1    a refused renewal counts as a renewal
// bug: BUG_PLAIN_TOKEN safety -DFAULTY=1 -DTOKENS=4 -DLOSE_DATA -DLOSSES=1    tokens are a counter, which can be lost
// bug: BUG_NO_TTL liveness after_death -DLOSSES=1 -DLEASE=2 -DCOMMAND=1 -DDEATH      the key has no TTL

#ifndef LEASE
#define LEASE 3
#endif
#ifndef COMMAND
#define COMMAND 2
#endif
#ifndef LOSSES
#define LOSSES 2
#endif
#ifndef FAULTY
#define FAULTY 2
#endif

mtype = { ACQUIRE, RELEASE, RENEW, SENT, YES, NO, LATE };

// --- the server -----------------------------------------------------------------------------------------------------

byte holder;  // the number + 1; 0: the key is absent
byte ttl;
bool lost_data;
#ifdef BUG_COUNT
byte count;
#endif
#ifdef TOKENS
byte counter, clock, newest, grants;
#define too_many (grants >= TOKENS)
#else
#define too_many false
#endif

// --- the clients ----------------------------------------------------------------------------------------------------

byte valid[2];       // how long the hold is certain; 0: no belief in a hold
byte fresh[2];       // the lease, counted from when the command on its way was sent
byte nap[2];         // the pause before it asks again
byte current[2];     // the number that it asks with or holds
bool refused[2];     // it believes in a hold although the server refused it
bool dead[2];

// How long the command on its way is still wanted, which was sent when `fresh` was LEASE.
#define wanted(c) ((fresh[c] > LEASE - COMMAND) * (fresh[c] - (LEASE - COMMAND)))

// The client believes that it holds the lock. After a loss of data that counts only if the client could know: if it was
// refused a renewal.
#define believes(c) (valid[c] > 0 && !(lost_data && !refused[c]))

// The state of a number at its client.
#define DONE 0      // no longer in use
#define USED 1      // the client asks with it or holds it
#define UNWANTED 2  // the client is going to release it
#define RELEASED 3  // the client is going to release it once more
#define LEFT 4      // lost and reported, or its client is dead: its lease ends it

byte use[4];
byte unsettled[4];  // how long a request without a reply may take effect, + 1; 0: all have a reply
byte ghost;                   // how long the server has held a number that is not in use

#define client_of(n) ((n) / 2)

// --- the network ----------------------------------------------------------------------------------------------------

typedef Copy { mtype what; byte whose; byte until };
Copy copies[2];
byte losses;

#define may_fail(c) (losses < LOSSES && c < FAULTY)

#ifdef BUG_NO_UNTIL
#define too_late(rest) false
#else
#define too_late(rest) (rest == 0)
#endif
#ifdef BUG_RENEW_NO_UNTIL
#define too_late_to_renew(rest) false
#else
#define too_late_to_renew(rest) (rest == 0)
#endif

// The request is wanted for `rest` more ticks.
inline server_acquires(n, rest, answer) {
    if
    :: too_late(rest) -> answer = LATE
    :: !too_late(rest) && holder == 0 ->
        assert(!believes(0) && !believes(1));
        assert(use[n] != DONE);
        // After a loss of data a hold is lost before its lease ends, while a copy of its acquire may still be wanted.
        assert(use[n] != LEFT || dead[client_of(n)]);
        holder = n + 1; ghost = 0;
#ifdef BUG_COUNT
        count = 1;
#endif
#ifndef BUG_NO_TTL
        ttl = LEASE;
#endif
#ifdef TOKENS
        clock++; grants++;
#ifdef BUG_PLAIN_TOKEN
        counter++;
#else
        counter = (counter + 1 > clock -> counter + 1 : clock);
#endif
        assert(counter > newest);
        newest = counter;
#endif
        answer = YES
    :: !too_late(rest) && holder == n + 1 ->
#ifdef BUG_COUNT
        count++;
#endif
        ttl = LEASE;
        answer = YES
    :: else -> answer = NO
    fi
}

inline server_releases(n) {
    if
    :: holder == n + 1 ->
        assert(!(valid[client_of(n)] > 0 && current[client_of(n)] == n));
#ifdef BUG_COUNT
        count--;
        if :: count == 0 -> holder = 0; ttl = 0; ghost = 0 :: else fi;
#else
        holder = 0; ttl = 0; ghost = 0;
#endif
        assert(holder != n + 1)
    :: else
    fi
}

inline server_renews(n, rest, answer) {
    if
    :: too_late_to_renew(rest) -> answer = LATE
    :: !too_late_to_renew(rest) && holder == n + 1 -> ttl = LEASE; answer = YES
    :: else -> answer = NO
    fi
}

// The command gets no reply. It may still arrive.
inline lose_message(kind, n, rest) {
    losses++;
    if
    :: true
    :: copies[1].what == 0 ->
        copies[1].what = copies[0].what; copies[1].whose = copies[0].whose; copies[1].until = copies[0].until;
        copies[0].what = kind; copies[0].whose = n; copies[0].until = rest
    fi
}

inline forget_copy(i) {
    if
    :: i == 0 ->
        copies[0].what = copies[1].what; copies[0].whose = copies[1].whose; copies[0].until = copies[1].until
    :: else
    fi;
    copies[1].what = 0; copies[1].whose = 0; copies[1].until = 0
}

#define is_carried(n) (copies[0].what != 0 && copies[0].whose == n || copies[1].what != 0 && copies[1].whose == n)
// A copy without any effect, which need not be kept until it arrives.
#define is_void(i) (copies[i].what == ACQUIRE && too_late(copies[i].until) || \
                    copies[i].what == RENEW && too_late_to_renew(copies[i].until))
#define is_new(n) ((use[n] == DONE || use[n] == LEFT) && holder != n + 1 && !is_carried(n))

// A release has a reply. After the instant no copy can acquire the lock with this number any more.
inline released(n) {
    if
#ifndef BUG_GIVE_UP_ONCE
    :: unsettled[n] > 1 -> use[n] = RELEASED
#endif
    :: else -> use[n] = DONE; unsettled[n] = 0
    fi
}

// A release to be sent until it has a reply. One that is given up because its lease is over would find nothing.
#define is_due(n) (use[n] == UNWANTED || use[n] == RELEASED && unsettled[n] <= 1)
#define is_any_due (is_due(0) || is_due(1) || is_due(2) || is_due(3))

inline leave_to_lease(n) { use[n] = LEFT; unsettled[n] = 0 }

// Messages on their way arrive or are dropped, and each client's background thread releases unwanted numbers.
proctype network() {
    mtype ignored;
    byte i, n;
end:
    do
    :: atomic {
        if :: copies[0].what != 0 -> i = 0 :: copies[1].what != 0 -> i = 1 fi;
        n = copies[i].whose;
        if
        :: true  // dropped
        :: copies[i].what == ACQUIRE && !too_many -> server_acquires(n, copies[i].until, ignored)
        :: copies[i].what == RELEASE -> server_releases(n)
        :: copies[i].what == RENEW -> server_renews(n, copies[i].until, ignored)
        fi;
        forget_copy(i);
        i = 0; n = 0; ignored = 0
    }
    :: atomic {
        if :: is_due(0) -> n = 0 :: is_due(1) -> n = 1 :: is_due(2) -> n = 2 :: is_due(3) -> n = 3 fi;
        if
        :: server_releases(n);
            if
            :: released(n)
            :: may_fail(client_of(n)) -> losses++  // the reply is lost
            fi
        :: may_fail(client_of(n)) -> lose_message(RELEASE, n, 0)
        fi;
        n = 0
    }
    od
}

#define number current[c]

// A request stays without a reply, so it may take effect for as long as it is wanted.
inline leave_unsettled(c) {
    if :: unsettled[number] < wanted(c) + 1 -> unsettled[number] = wanted(c) + 1 :: else fi
}

inline finish(c, purpose) {
    use[number] = purpose;
    if :: purpose == DONE || purpose == LEFT -> unsettled[number] = 0 :: else fi;
    fresh[c] = 0; number = 0
}

proctype client(byte c) {
    mtype answer;

ask:
    atomic {
        !too_many && nap[c] == 0;
#ifdef BUG_SAME_NUMBER
        use[c * 2] == DONE || use[c * 2] == LEFT;
        number = c * 2;
#else
        if :: is_new(c * 2) -> number = c * 2 :: !is_new(c * 2) && is_new(c * 2 + 1) -> number = c * 2 + 1 fi;
#endif
        use[number] = USED; unsettled[number] = 0;
        fresh[c] = LEASE
    }
sent:
    if
    :: atomic { server_acquires(number, wanted(c), answer) }
    :: atomic { may_fail(c) -> lose_message(ACQUIRE, number, wanted(c)); goto unknown }
    fi;
    if
    :: atomic { answer == YES ->
#ifdef BUG_VALID_FROM_REPLY
        fresh[c] = LEASE;
#endif
        answer = 0;
        if
        :: fresh[c] > 0 -> assert(!believes(1 - c)); valid[c] = fresh[c]; fresh[c] = 0; refused[c] = false
        :: else -> finish(c, UNWANTED); goto ask  // the reply took longer than the lease lasts
        fi }
    :: atomic { answer == NO ->
        answer = 0;
#ifdef DEATH
        nap[c] = 1;
#endif
        goto nothing }
    :: atomic { answer == LATE ->
        answer = 0;
        if
        :: fresh[c] = LEASE; goto sent
#ifdef BUG_VOID_IS_NOT_HELD
        :: finish(c, DONE); goto ask
#else
        :: goto nothing
#endif
        fi }
    :: atomic { may_fail(c) -> losses++; answer = 0; goto unknown }  // the reply is lost
    fi;

held:
    if
    :: atomic { valid[c] > 0 -> fresh[c] = LEASE; goto renew }
    :: atomic { valid[c] > 0 ->
#ifdef BUG_FORGET_UNSETTLED
        unsettled[number] = 0;
#endif
        valid[c] = 0; finish(c, UNWANTED); goto ask }
    :: atomic { valid[c] == 0 ->  // lost
        if
#ifndef BUG_LOSS_FORGETS
        :: unsettled[number] > 1 -> finish(c, RELEASED)
#endif
        :: else -> finish(c, LEFT)
        fi;
        goto ask }
#ifdef DEATH
    :: atomic { c == 1 ->
        valid[c] = 0; dead[c] = true; number = 0;
        if :: use[2] != DONE -> leave_to_lease(2) :: else fi;
        if :: use[3] != DONE -> leave_to_lease(3) :: else fi;
        goto end }
#endif
    fi;

renew:
    if
    :: atomic { server_renews(number, wanted(c), answer) }
    :: atomic { may_fail(c) -> lose_message(RENEW, number, wanted(c)); fresh[c] = 0; goto held }
    fi;
    if
    :: atomic { true ->
        if
        :: valid[c] > 0 && answer == YES -> if :: fresh[c] > valid[c] -> valid[c] = fresh[c] :: else fi
        // Lost here, but renewed on the server after all.
        :: valid[c] == 0 && answer == YES -> answer = 0; finish(c, UNWANTED); goto ask
#ifdef BUG_IGNORE_REFUSAL
        :: valid[c] > 0 && answer == NO -> valid[c] = fresh[c]; refused[c] = true
#else
        :: valid[c] > 0 && answer == NO -> valid[c] = 0
#endif
        :: else
        fi;
        answer = 0; fresh[c] = 0; goto held }
    :: atomic { may_fail(c) -> losses++; answer = 0; fresh[c] = 0; goto held }
    fi;

unknown:
    atomic {
        leave_unsettled(c);
        if
        :: fresh[c] = LEASE; goto sent
        :: finish(c, UNWANTED); goto ask
        fi
    }

nothing:
    atomic {
        // A copy without a reply may still acquire it.
        if :: unsettled[number] > 0 -> finish(c, UNWANTED) :: else -> finish(c, DONE) fi;
        goto ask
    }
end:
    skip
}

#define run_down(x) if :: x > 0 -> x-- :: else fi

inline next_tick(n) {
    if
    :: unsettled[n] > 1 || use[n] != USED && unsettled[n] > 0 -> unsettled[n]--
    :: else
    fi;
    if :: use[n] == LEFT && is_new(n) -> use[n] = DONE :: else fi
}

// Counts how long the server has held a number that is not in use.
inline watch_ghosts() {
    if
    :: holder == 0 || use[holder - 1] == USED -> ghost = 0
    :: else ->
        assert(use[holder - 1] != DONE);
        if
#ifndef BUG_NO_TTL
        :: use[holder - 1] == LEFT -> ghost++; assert(ghost <= LEASE + COMMAND)
#endif
#ifdef URGENT
        :: use[holder - 1] != LEFT -> ghost++; assert(ghost <= COMMAND)
#endif
        :: else
        fi
    fi
}

proctype time() {
end:
    do
    :: atomic {
#ifdef DEATH
        fresh[0] == 0;  // otherwise its replies could always be too late
#endif
#ifdef URGENT
        !is_any_due;
#endif
        watch_ghosts();
        if :: ttl == 1 -> holder = 0; ghost = 0 :: else fi;
        run_down(ttl);
        run_down(valid[0]); run_down(valid[1]);
        run_down(nap[0]); run_down(nap[1]);
        run_down(fresh[0]); run_down(fresh[1]);
        run_down(copies[0].until); run_down(copies[1].until);
        if :: is_void(1) -> forget_copy(1) :: else fi;
        if :: is_void(0) -> forget_copy(0) :: else fi;
        next_tick(0); next_tick(1); next_tick(2); next_tick(3)
    }
    od
}

#ifdef LOSE_DATA
proctype memory() {
    atomic { lost_data = true; holder = 0; ttl = 0; ghost = 0; counter = 0 }
}
#endif

init {
    atomic {
        run client(0); run client(1); run network(); run time();
#ifdef LOSE_DATA
        run memory()
#endif
    }
}

ltl after_death { [] (dead[1] -> <> (valid[0] > 0)) }
