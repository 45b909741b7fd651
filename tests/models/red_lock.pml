// SPDX-License-Identifier: MIT
//
// The lock on a majority of independent servers.
//
// Models red_lock.hpp:
//   - The members are asked in parallel. The lock is held with a majority of votes.
//   - Each vote is valid for its lease, counted from the request, less the drift.
//   - If the outcome is unknown, or the votes are too few, all members are released.
//   - A server that was started less than the longest lease ago has no vote.
//   - A renewal that finds a member without our hold acquires it again.
//   - The lock is lost for good when the votes that are valid at this moment are no majority.
//
// Time is counted in ticks. A server's clock may run ahead of a client's by up to DRIFT ticks per lease, so its key may
// expire that much too early. A server may lose all its memory and be back at once. A request or its reply may be lost.
//
// Bounds: 3 servers; 2 clients, one of which renews a hold RENEWALS times; LEASE ticks with a drift of 1; LOSSES
// messages; FAULTS servers that lose their memory.
//
// Properties: no client gets the lock while another has not lost it, if one server at a time loses its memory. With a
// majority up, a client gets it, if after SPLITS rounds without a winner one of the two makes a long enough pause (the
// library's pauses are random).
//
// verify: safety
// verify: safety -DLOSSES=0 -DRENEWALS=1
// verify: safety -DLOSSES=0 -DRENEWALS=1 -DFAULTS=1 -DLEASE=2
// verify: liveness someone_wins -DLOSSES=0 -DONE_DOWN
// bug: BUG_NO_YOUNG_RULE safety -DLOSSES=0 -DFAULTS=1 -DLEASE=2    a server without memory votes at once
// bug: BUG_NO_DRIFT safety                                the drift is not subtracted
// bug: BUG_VALID_FROM_REPLY safety                        the lease counts from the replies
// bug: BUG_GAP_IS_CONTINUITY safety -DLOSSES=0 -DRENEWALS=1    an interrupted majority counts as uninterrupted
// bug: BUG_MINORITY safety                                one vote suffices
// bug: BUG_KEEP_MINORITY liveness someone_wins -DLOSSES=0 -DONE_DOWN    too few votes are kept, and renewed by asking

#ifndef LEASE
#define LEASE 3
#endif
#ifndef LOSSES
#define LOSSES 1
#endif
#ifndef FAULTS
#define FAULTS 0
#endif
#ifndef RENEWALS
#define RENEWALS 0
#endif
#ifdef BUG_NO_DRIFT
#define DRIFT 0
#else
#define DRIFT 1
#endif
#ifdef BUG_MINORITY
#define MAJORITY 1
#else
#define MAJORITY 2
#endif
#define SPLITS 2

// --- the servers ----------------------------------------------------------------------------------------------------

byte holder[3];     // the client + 1
byte ttl[3];
byte young[3];      // how much longer the server is young
bool down[3];

// --- the clients ----------------------------------------------------------------------------------------------------

typedef Votes { byte valid[3]; byte fresh };
Votes client[2];
bool believes[2];   // holds the lock, and no loss was reported
bool asking[2];
byte losses, faults, splits;
bool won;

#define vote(c, m) (client[c].valid[m] > 0 -> 1 : 0)
#define votes(c) (vote(c, 0) + vote(c, 1) + vote(c, 2))

// A server's answer to a request for a new or renewed hold, and the fate of its reply.
inline ask(c, m) {
    if
    :: !down[m] && (holder[m] == 0 || holder[m] == c + 1) ->
        holder[m] = c + 1;
        if :: ttl[m] < LEASE -> ttl[m] = LEASE :: true -> ttl[m] = (ttl[m] < LEASE - 1 -> LEASE - 1 : ttl[m]) fi;
        if
#ifndef BUG_NO_YOUNG_RULE
        :: young[m] > 0
        :: young[m] == 0 ->
#else
        :: true ->
#endif
            client[c].valid[m] = (client[c].fresh > client[c].valid[m] -> client[c].fresh : client[c].valid[m])
        :: losses < LOSSES -> losses++              // the reply is lost
        fi
    :: !down[m] && holder[m] == 2 - c -> client[c].valid[m] = 0
    :: losses < LOSSES && !down[m] -> losses++      // the request is lost
    :: down[m]
    fi
}

inline ask_all(c) {
    todo0 = true; todo1 = true; todo2 = true;
    do
    :: atomic { todo0 -> todo0 = false; ask(c, 0) }
    :: atomic { todo1 -> todo1 = false; ask(c, 1) }
    :: atomic { todo2 -> todo2 = false; ask(c, 2) }
    :: atomic { !todo0 && !todo1 && !todo2 -> break }
    od
}

#define extend(c, m) client[c].valid[m] = (client[c].valid[m] > 0 -> LEASE - DRIFT : 0)

inline give_back(c, m) {
    if
    :: holder[m] == c + 1 -> holder[m] = 0; ttl[m] = 0
    :: holder[m] != c + 1
    :: losses < LOSSES && holder[m] == c + 1 -> losses++
    fi
}

inline give_back_all(c) {
    client[c].valid[0] = 0; client[c].valid[1] = 0; client[c].valid[2] = 0; client[c].fresh = 0;
    give_back(c, 0); give_back(c, 1); give_back(c, 2)
}

proctype contender(byte c) {
    bool todo0, todo1, todo2;
    byte renewals;

end:
    do
    :: atomic { c == 0 || splits < SPLITS -> asking[c] = true; client[c].fresh = LEASE - DRIFT }
        ask_all(c);
        if
        :: atomic { votes(c) >= MAJORITY ->
            asking[c] = false; client[c].fresh = 0;
#ifdef BUG_VALID_FROM_REPLY
            extend(c, 0); extend(c, 1); extend(c, 2);
#endif
            assert(!believes[1 - c]);
            believes[c] = true; won = true }
        :: atomic { votes(c) < MAJORITY ->
            asking[c] = false;
#ifndef BUG_KEEP_MINORITY
            give_back_all(c);
#endif
            splits = (splits < SPLITS -> splits + 1 : SPLITS);
            goto next }
        fi;
        do
        :: atomic { c == 0 && believes[c] && renewals < RENEWALS -> renewals++; asking[c] = true; client[c].fresh = LEASE - DRIFT }
            ask_all(c);
            atomic { asking[c] = false; client[c].fresh = 0 }
        :: atomic { renewals = 0; believes[c] = false; give_back_all(c); break }
        od;
next:
        skip
    od
}

#define run_down(x) if :: x > 0 -> x-- :: else fi
#define server_time(m) if :: ttl[m] == 1 -> holder[m] = 0 :: else fi; run_down(ttl[m]); run_down(young[m])
#define client_time(c) run_down(client[c].valid[0]); run_down(client[c].valid[1]); run_down(client[c].valid[2]); \
    run_down(client[c].fresh); \
    if :: votes(c) < MAJORITY -> lose(c) :: else fi
#ifdef BUG_GAP_IS_CONTINUITY
#define lose(c) skip
#else
#define lose(c) believes[c] = false
#endif

proctype time() {
end:
    do
    :: atomic {
#ifdef ONE_DOWN
        !asking[0] && !asking[1];   // otherwise every reply could be too late
#endif
        server_time(0); server_time(1); server_time(2);
        client_time(0); client_time(1) }
    od
}

inline forget(m) {
    faults++; holder[m] = 0; ttl[m] = 0;
    if :: young[m] = LEASE :: young[m] = LEASE - 1 fi   // by its own clock
}

proctype trouble() {
end:
    do
    :: atomic { faults < FAULTS && young[1] == 0 && young[2] == 0 -> forget(0) }
    :: atomic { faults < FAULTS && young[0] == 0 && young[2] == 0 -> forget(1) }
    :: atomic { faults < FAULTS && young[0] == 0 && young[1] == 0 -> forget(2) }
    od
}

init {
    atomic {
#ifdef ONE_DOWN
        down[2] = true;
#endif
        run contender(0); run contender(1); run time(); run trouble()
    }
}

ltl someone_wins { <> won }
