// SPDX-License-Identifier: MIT
//
// The lease of a lock on one server, with lost, late and repeated messages.
//
// Models scripts/rlock.hpp and scripts/fenced_lock.hpp (what the server does), client/hold_keeper.hpp (ask, take_back,
// release_last, renewed) and client/pending_releases.hpp (what is sent until it is answered).
//
// Time is counted in ticks, which may come between any two steps: so every process may be paused anywhere. A request is
// lost, or its reply is, or it stays on its way as a copy that arrives up to DELAY ticks later, when the client has long
// gone on. The server is passive: a command is one step. A client believes that it holds the lock while `valid` > 0.
//
// Bounds: 2 clients with a watchdog each, LEASE and DELAY ticks, LOSSES faults of the network; TOKENS: at most so
// many grants, with fencing tokens; LOSE_DATA: the server loses its memory once, which may cost exclusion.
//
// Properties: nobody is granted the lock while somebody else believes to hold it; a release ends the whole of its
// own hold and nobody else's; a hold that was refused a renewal is lost at once; tokens only grow, even over a loss of
// data; when a holder has died, whoever goes on asking gets the lock.
//
// verify: safety
// verify: safety -DTOKENS=4 -DLOSE_DATA -DLOSSES=1
// verify: liveness after_death -DLOSSES=1 -DLEASE=2 -DDELAY=1 -DDEATH
// bug: BUG_VALID_FROM_REPLY safety         the lease counts from the reply
// bug: BUG_COUNT safety                    an acquire that is sent again counts twice
// bug: BUG_IGNORE_REFUSAL safety -DTOKENS=4 -DLOSE_DATA -DLOSSES=1        a refused renewal passes for a renewal
// bug: BUG_NO_LATCH safety                 a repeated release leaves no mark against its own late copy
// bug: BUG_LATE_COPY safety                a copy of a release arrives after its lease is over (which the library assumes away)
// bug: BUG_NOT_SETTLED safety              an acquire does not wait for a release in the same name
// bug: BUG_PLAIN_TOKEN safety -DTOKENS=4 -DLOSE_DATA -DLOSSES=1     tokens are counted, and the count can be lost
// bug: BUG_NO_TTL liveness after_death -DLOSSES=1 -DLEASE=2 -DDELAY=1 -DDEATH      the key has no TTL

#ifndef LEASE
#define LEASE 2
#endif
#ifndef DELAY
#define DELAY 2
#endif
#ifndef LOSSES
#define LOSSES 2
#endif
#define COPIES 2

mtype = { ACQUIRE, RELEASE, RENEW, SENT, YES, NO };

// --- the server -----------------------------------------------------------------------------------------------------

byte holder;  // the client + 1; 0: the key is absent
byte ttl;
byte count;
bool latch[6];  // of each client's releases, by their number
bool lost_data;
#ifdef TOKENS
byte counter, clock, newest, grants;
#define too_many (grants >= TOKENS)
#else
#define too_many false
#endif

// --- the clients ----------------------------------------------------------------------------------------------------

byte valid[2];       // how long the hold is certain; 0: no hold is believed in
byte left[2];        // how long a hold may be left on the server that nobody believes in any more
byte fresh[2];       // the lease, counted from the sending of the command on its way
byte nap[2];         // before it asks again
byte current[2];      // number of the release on its way, + 1
bool refused[2];     // it believes in a hold of which it was told that it is none
bool dead[2];

// The other one does not believe that it holds the lock; or cannot know yet that the server has lost its data.
#define may_enter(c) (valid[1 - c] == 0 || lost_data && !refused[1 - c])

// --- the network ----------------------------------------------------------------------------------------------------

typedef Copy { mtype what; byte whose; byte request; bool again; byte life };
Copy copies[COPIES];
byte losses;

inline server_acquires(c, answer) {
    if
    :: holder == 0 ->
        assert(may_enter(c));
        holder = c + 1; count = 1;
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
    :: holder == c + 1 ->
#ifdef BUG_COUNT
        count++;
#endif
        ttl = LEASE;
        answer = YES
    :: else -> answer = NO
    fi
}

inline server_releases(c, request, again, answer) {
    if
    :: latch[c * 3 + request] -> answer = YES
    :: else ->
        if
        :: holder == c + 1 ->
            count--;
            if :: count == 0 -> holder = 0; ttl = 0 :: else fi;
            answer = YES
        :: else -> answer = NO
        fi;
        assert(holder != c + 1);
#ifndef BUG_NO_LATCH
        latch[c * 3 + request] = again
#endif
    fi
}

inline server_renews(c, answer) {
    if
    :: holder == c + 1 -> ttl = LEASE; answer = YES
    :: else -> answer = NO
    fi
}

// The command is answered with nothing. It may still arrive.
inline lose_message(c, kind, number, repeated) {
    losses++;
    if
    :: true
    :: copies[0].what == 0 -> copies[0].what = kind; copies[0].whose = c; copies[0].request = number;
        copies[0].again = repeated; copies[0].life = DELAY
    :: copies[0].what != 0 && copies[1].what == 0 -> copies[1].what = kind; copies[1].whose = c;
        copies[1].request = number; copies[1].again = repeated; copies[1].life = DELAY
    fi
}

#define on_its_way(i, c, n) (copies[i].what == RELEASE && copies[i].whose == c && copies[i].request == n)
#define copy_of(c, n) (on_its_way(0, c, n) || on_its_way(1, c, n))
#define any_copy(c) (copy_of(c, 0) || copy_of(c, 1) || copy_of(c, 2))

// A latch without copies means nothing any more, whatever its time.
inline forget_latches(c) {
    latch[c * 3] = latch[c * 3] && (copy_of(c, 0) || current[c] == 1);
    latch[c * 3 + 1] = latch[c * 3 + 1] && (copy_of(c, 1) || current[c] == 2);
    latch[c * 3 + 2] = latch[c * 3 + 2] && (copy_of(c, 2) || current[c] == 3)
}

inline forget_copy(i) {
    copies[i].what = 0; copies[i].whose = 0; copies[i].request = 0; copies[i].again = false; copies[i].life = 0;
    forget_latches(0); forget_latches(1)
}

proctype network() {
    mtype what, ignored;
    byte i, c, n;
    bool repeated;
end:
    do
    :: atomic {
        if :: copies[0].what != 0 -> i = 0 :: copies[1].what != 0 -> i = 1 fi;
        what = copies[i].what; c = copies[i].whose; n = copies[i].request; repeated = copies[i].again;
        if
        :: what == ACQUIRE && !too_many -> server_acquires(c, ignored)
        :: what == ACQUIRE && too_many
        :: what == RELEASE -> server_releases(c, n, repeated, ignored)
        :: what == RENEW -> server_renews(c, ignored)
        fi;
        forget_copy(i);
        i = 0; c = 0; n = 0; repeated = false; what = 0; ignored = 0
    }
    od
}

proctype client(byte c) {
    mtype answer;
    byte request;
    bool again;

ask:
    atomic {
        !too_many && nap[c] == 0;
        fresh[c] = LEASE; answer = SENT
    }
    if
    :: atomic { answer == SENT -> server_acquires(c, answer) }
    :: atomic { losses < LOSSES -> lose_message(c, ACQUIRE, 0, false); answer = 0 }
    fi;
    if
    :: atomic { answer == YES ->
#ifdef BUG_VALID_FROM_REPLY
        fresh[c] = LEASE;
#endif
        answer = 0;
        if
        :: fresh[c] > 0 -> assert(may_enter(c));
            valid[c] = fresh[c]; fresh[c] = 0; refused[c] = false
        :: else -> left[c] = LEASE; goto give_back  // the answer took longer than the lease lasts
        fi }
    :: atomic { answer == NO -> answer = 0; fresh[c] = 0; nap[c] = 1; goto ask }
    :: atomic { losses < LOSSES && answer != 0 -> losses++; answer = 0 }  // the reply is lost
        goto unknown
    :: answer == 0 -> goto unknown
    fi;

held:
    if
    :: atomic { valid[c] > 0 -> fresh[c] = LEASE; goto renew }
    :: atomic { valid[c] > 0 -> left[c] = valid[c]; valid[c] = 0; goto give_back }
    :: valid[c] == 0 -> goto ask  // lost
#ifdef DEATH
    :: atomic { c == 1 -> valid[c] = 0; dead[c] = true; goto end }
#endif
    fi;

renew:
    if
    :: atomic { server_renews(c, answer) }
    :: atomic { losses < LOSSES -> lose_message(c, RENEW, 0, false); fresh[c] = 0; goto held }
    fi;
    if
    :: atomic { true ->
        if
        :: valid[c] > 0 && answer == YES -> if :: fresh[c] > valid[c] -> valid[c] = fresh[c] :: else fi
#ifdef BUG_IGNORE_REFUSAL
        :: valid[c] > 0 && answer == NO -> valid[c] = fresh[c]; refused[c] = true
#else
        :: valid[c] > 0 && answer == NO -> valid[c] = 0
#endif
        :: else
        fi;
        answer = 0; fresh[c] = 0; goto held }
    :: atomic { losses < LOSSES -> losses++; answer = 0; fresh[c] = 0; goto held }
    fi;

unknown:
    if
    :: goto ask
    :: atomic { left[c] = LEASE; fresh[c] = 0; goto give_back }
    fi;

    // A new request number, which no copy carries any more.
give_back:
    atomic {
        request = 0; again = false;
        do :: copy_of(c, request) -> request++ :: else -> break od;
        current[c] = request + 1
    }
#ifdef BUG_NOT_SETTLED
    if
    :: atomic { losses < LOSSES -> lose_message(c, RELEASE, request, false); goto settled }
    :: true
    fi;
#endif

send_release:
    // Sent until it is answered, or its lease is over. The library takes it that no copy of it arrives after that: a
    // network that keeps one for longer than the lease could end the next hold of the same thread. So here time must
    // have taken the copies, too.
    if
    :: atomic { server_releases(c, request, again, answer) }
        if
        :: goto settled
        :: atomic { losses < LOSSES -> losses++; answer = 0; again = true; goto send_release }
        fi
    :: atomic { losses < LOSSES -> lose_message(c, RELEASE, request, again); again = true; goto send_release }
#ifdef BUG_LATE_COPY
    :: atomic { left[c] == 0 -> goto settled }
#else
    :: atomic { left[c] == 0 && !any_copy(c) -> goto settled }
#endif
    fi;
settled:
    atomic { answer = 0; left[c] = 0; request = 0; again = false; current[c] = 0; forget_latches(c); goto ask }
end:
    skip
}

#define run_down(x) if :: x > 0 -> x-- :: else fi
#define age(i) if :: copies[i].what != 0 && copies[i].life == 0 -> forget_copy(i) \
                  :: copies[i].what != 0 && copies[i].life > 0 -> copies[i].life-- :: else fi

proctype time() {
end:
    do
    :: atomic {
#ifdef DEATH
        fresh[0] == 0;  // or its answers could always be too late
#endif
        if :: ttl == 1 -> holder = 0; count = 0 :: else fi;
        run_down(ttl);
        run_down(valid[0]); run_down(valid[1]);
        run_down(left[0]); run_down(left[1]);
        run_down(nap[0]); run_down(nap[1]);
        run_down(fresh[0]); run_down(fresh[1]);
        age(0); age(1)
    }
    od
}

#ifdef LOSE_DATA
proctype memory() {
    atomic { lost_data = true; holder = 0; ttl = 0; count = 0; counter = 0 }
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
