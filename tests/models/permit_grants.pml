// SPDX-License-Identifier: MIT
//
// Grants of permits with leases: whoever makes a permit available takes it for the first in the queue.
//
// Models the acquire, release, leave and take-back scripts of scripts/permit_expirable_semaphore.hpp and
// permit_grants.hpp on one server, and from semaphore/ what a caller does with answers and messages. The queue itself is
// modelled in wake_up.pml and grants.pml; here a place is only what it offers: the id of the permit that its caller asked
// for. So the model is about ids. A question may be sent twice, a copy of it may be late, its reply may be lost, and its
// caller may leave; meanwhile that id may have been granted, the grant may be over, and a copy may take it anew.
//
// Each of CLIENTS clients has one caller, which uses an id for each question, at most IDS of them.
// A command is one step of the server. Time is counted in ticks, which may come between any two steps, so every client
// may be paused anywhere. A command is wanted for WANTED ticks.
//
// Bounds: PERMITS permits in all; FULL and OFFER ticks; LATES questions that came too late are asked anew; RESENDS questions are sent again, LOST replies are lost, LEAVES callers leave, DEATHS
// clients die, USELESS grants cannot be used by their client.
//
// Properties:
//   - Each permit is available, or taken under one id: none is lost, none appears.
//   - No more callers believe that they have one than there are.
//   - While a caller believes that, the server has its id for at least so long.
//   - What nobody wants, and no command in flight gives back, is taken for no longer than an offer.
//   - If a permit is available and nothing is in flight, no caller sleeps.
//
// verify at length: safety -DRESENDS=1 -DLOST=1
// verify at length: safety -DRESENDS=1 -DLOST=1 -DPERMITS=2
// verify at length: safety -DLATES=1 -DLOST=1 -DRESENDS=1 -DPERMITS=2
// verify at length: safety -DLEAVES=1 -DRESENDS=1
// verify at length: safety -DDEATHS=1 -DLEAVES=1
// verify at length: safety -DUSELESS=1 -DLEAVES=1
// verify: safety -DUSELESS=2 -DOFFER=2
// bug at length: BUG_TAKES_TWICE safety -DRESENDS=1 -DLOST=1 -DPERMITS=2    a question does not look whether its id was granted
// bug at length: BUG_TAKES_AGAIN safety -DLATES=1 -DLOST=1 -DRESENDS=1 -DPERMITS=2    only one that was sent again does
// bug at length: BUG_TAKES_FOR_NOBODY safety -DRESENDS=2 -DLOST=1    it does, and a later copy takes a permit
// bug at length: BUG_OLD_GIVEN_BACK safety -DRESENDS=1 -DLOST=1    a grant is given back after its end
// bug: BUG_VALID_FROM_RECEIPT safety -DOFFER=2    an offer counts from the receipt of the message
// bug: BUG_FULL_LEASE safety -DDEATHS=1    a grant has the full lease
// bug: BUG_LEAVE_SILENT safety -DLEAVES=1 -DUSELESS=1    what a caller gives back, nobody is told
// bug: BUG_USELESS_SILENT safety -DUSELESS=1    a client that cannot use a grant gives it back, and sleeps

#ifndef CLIENTS
#define CLIENTS 2
#endif
#ifndef PERMITS
#define PERMITS 1
#endif
#ifndef IDS
#define IDS 2
#endif
#ifndef FULL
#define FULL 2
#endif
#ifndef OFFER
#define OFFER 1
#endif
#ifndef WANTED
#define WANTED 1
#endif
#ifndef RESENDS
#define RESENDS 0
#endif
#ifndef LOST
#define LOST 0
#endif
#ifndef LEAVES
#define LEAVES 0
#endif
#ifndef DEATHS
#define DEATHS 0
#endif
#ifndef USELESS
#define USELESS 0
#endif
#ifndef LATES
#define LATES 0
#endif
#define ALL (CLIENTS * IDS)
#define NONE ALL
#define owner_of(i) ((i) / IDS)

// --- the server -----------------------------------------------------------------------------------------------------

byte available;
byte lease[ALL + 1];    // 0: not taken under this id; 1: over, and nobody has noticed; otherwise the rest + 1
byte mark[ALL + 1];     // of the question for this id: 1 it took the permit, 2 it takes nothing
byte place[CLIENTS];    // the id that is offered there; NONE without a place
byte first;             // the client that is first in the queue, if both are

// --- in flight ------------------------------------------------------------------------------------------------------

byte copies[ALL + 1];   // of the question for this id: the last one that was sent, whose reply counts
byte stale[ALL + 1];    // earlier ones, whose connection is lost
bool again[ALL + 1];    // the last one is a resend
byte wanted[ALL + 1];   // for how long the server accepts them, + 1
bool back[ALL + 1];     // a command that gives the id back
bool leaves[CLIENTS];   // a command that leaves the place
byte message[CLIENTS];  // the id that was granted; NONE
byte rest[CLIENTS];     // what is left of that grant
bool told[CLIENTS];     // the caller has to ask

// --- the callers ----------------------------------------------------------------------------------------------------

mtype = { IDLE, ASKS, WAITS, HOLDS, DEAD };
mtype phase[CLIENTS] = IDLE;
byte asked[CLIENTS];    // the id of the question that is under way; NONE
byte offered[CLIENTS];  // the id that may be granted; NONE
byte holds[CLIENTS];
byte valid[CLIENTS];    // for how long it believes that
byte used[CLIENTS];     // how many ids
bool entered[ALL + 1];  // its caller has had the permit
byte resent, lost, late, left, dead, useless;

hidden byte i, c, g, reply, taken;  // of one step

#define is_busy(k) (copies[k] + stale[k] > 0 || back[k])
#if IDS > 2
#define in_flight (is_busy(0) || is_busy(1) || is_busy(2) || is_busy(3) || is_busy(4) || is_busy(5) || leaves[0] || leaves[1])
#else
#define in_flight (is_busy(0) || is_busy(1) || is_busy(2) || is_busy(3) || leaves[0] || leaves[1])
#endif

// Puts back what is over. Every script begins so, except those that return early.
inline sweep() {
    i = 0;
    do
    :: i < ALL ->
        if
        :: lease[i] == 1 -> lease[i] = 0; entered[i] = false; available++
        :: else
        fi;
        i++
    :: else -> break
    od
}

inline take(who, length) {
    assert(available);
    available--;
    lease[who] = length + 1
}

// Follows a script that made the permit available, or left it so.
inline tell_queue() {
    c = first;
    do
    :: available && place[c] != NONE && phase[c] == DEAD -> place[c] = NONE  // nobody listens
    :: available && place[c] != NONE && phase[c] != DEAD ->
#ifdef BUG_FULL_LEASE
        rest[c] = FULL;
#else
        rest[c] = OFFER;
#endif
        take(place[c], rest[c]);
        message[c] = place[c];
        place[c] = NONE
    :: else ->
        if
        :: c == first -> c = 1 - first
        :: else -> break
        fi
    od
}

// Gives the permit back that was taken under the id, if it was.
inline give_back(which) {
    if
    :: lease[which] > 0 -> lease[which] = 0; entered[which] = false; available++
    :: else
    fi
}

// A copy of the question for an id reaches the server.
inline answer(which, is_last) {
    if
    :: is_last -> copies[which]--
    :: else -> stale[which]--
    fi;
    c = owner_of(which);
    reply = 0;  // 1 taken, 2 refused and queued, 3 too late
    if
    :: mark[which] == 1 -> reply = 1
    :: mark[which] == 2 -> reply = 2
    :: mark[which] == 0 && wanted[which] == 0 -> reply = 3
#ifndef BUG_TAKES_TWICE
#ifdef BUG_TAKES_AGAIN
    :: mark[which] == 0 && wanted[which] > 0 && lease[which] > 0 && again[which] ->
#else
    :: mark[which] == 0 && wanted[which] > 0 && lease[which] > 0 ->
#endif
#ifndef BUG_TAKES_FOR_NOBODY
        mark[which] = 2;
#endif
        reply = 2
#endif
    :: else ->
        sweep();
        if
        :: available ->
            take(which, FULL);
            mark[which] = 1;
            reply = 1;
            place[c] = NONE
        :: else ->
            if
            :: place[c] == NONE && place[1 - c] == NONE -> first = c
            :: place[c] == NONE && place[1 - c] != NONE -> first = 1 - c
            :: else
            fi;
            if
            :: phase[c] != DEAD -> place[c] = which
            :: else
            fi;
            mark[which] = (is_last && again[which] -> 2 : 0);
            reply = 2
        fi;
        tell_queue()
    fi;
    // The caller reads it, unless it is lost. Of a question that was sent again one answer counts.
    if
    :: is_last && phase[c] != DEAD && asked[c] == which ->
        if
        :: lost < LOST -> lost++
        :: reply != 3 && phase[c] == ASKS ->
            asked[c] = NONE;
            if
            :: reply == 1 && lease[which] > 1 ->
                phase[c] = HOLDS;
                holds[c] = which;
                entered[which] = true;
                valid[c] = lease[which] - 1;  // from when the question was sent
                offered[c] = NONE
#ifndef BUG_OLD_GIVEN_BACK
                ; message[c] = (message[c] == which -> NONE : message[c])
#endif
            :: reply == 1 && lease[which] <= 1 -> // too late
                back[which] = true;
                phase[c] = WAITS;
                told[c] = true
            :: reply == 2 -> phase[c] = WAITS; offered[c] = which
            fi
        :: reply != 3 && phase[c] != ASKS ->
            // It was served by a grant meanwhile, or has left. Nobody of this process waits, so the place is left, too.
            asked[c] = NONE;
            back[which] = true;
            leaves[c] = true
        :: reply == 3 && late < LATES && phase[c] == ASKS -> // it is asked anew
            late++;
            stale[which] = 0;  // as late
            copies[which] = 1;
            wanted[which] = WANTED + 1;
            again[which] = false
        :: reply == 3 && !(late < LATES && phase[c] == ASKS) ->
            asked[c] = NONE;
            told[c] = true;
            phase[c] = (phase[c] == ASKS -> WAITS : phase[c])
        fi
    :: else
    fi
}

inline check() {
    i = 0;
    taken = 0;
    do
    :: i < ALL ->
        if
        :: lease[i] > 0 -> taken++
        :: else
        fi;
        // What nobody wants is taken for an offer at most, unless something in flight gives it back.
        if
        :: lease[i] > OFFER + 1 && !back[i] && copies[i] == 0 && stale[i] == 0 ->
            c = owner_of(i);
            assert(phase[c] == DEAD && (entered[i] || mark[i] == 1) || phase[c] == HOLDS && holds[c] == i || asked[c] == i)
        :: else
        fi;
        i++
    :: else -> break
    od;
    assert(taken + available == PERMITS);
    assert((phase[0] == HOLDS && valid[0] > 0 -> 1 : 0) + (phase[1] == HOLDS && valid[1] > 0 -> 1 : 0) <= PERMITS);
    c = 0;
    do
    :: c < CLIENTS ->
        assert(!(phase[c] == HOLDS && valid[c] > 0) || lease[holds[c]] > valid[c]);
        assert(!(available && !in_flight && phase[c] == WAITS && !told[c] && message[c] == NONE && message[1 - c] == NONE));
        c++
    :: else -> break
    od
}

// The caller draws a new id and asks.
inline ask(c0) {
    asked[c0] = c0 * IDS + used[c0];
    used[c0]++;
    copies[asked[c0]] = 1;
    wanted[asked[c0]] = WANTED + 1;
    told[c0] = false;
    phase[c0] = ASKS
}

// The caller reads a grant.
inline read_message(c0) {
    g = message[c0];
    message[c0] = NONE;
    if
    :: (phase[c0] == WAITS || phase[c0] == ASKS) && offered[c0] == g && rest[c0] > 0 && useless >= USELESS ->
        phase[c0] = HOLDS;
        holds[c0] = g;
        entered[g] = true;
#ifdef BUG_VALID_FROM_RECEIPT
        valid[c0] = OFFER;
#else
        valid[c0] = rest[c0];
#endif
        offered[c0] = NONE
    :: (phase[c0] == WAITS || phase[c0] == ASKS) && offered[c0] == g && useless < USELESS -> useless++; unused(c0, g)
    :: (phase[c0] == WAITS || phase[c0] == ASKS) && offered[c0] == g && useless >= USELESS && rest[c0] == 0 ->
        unused(c0, g)
    :: !((phase[c0] == WAITS || phase[c0] == ASKS) && offered[c0] == g) -> unused(c0, g)
    fi
}

// It cannot use the grant: gives it back while it lasts, and asks.
inline unused(c0, which) {
    if
#ifdef BUG_OLD_GIVEN_BACK
    :: true -> back[which] = true
#else
    :: rest[c0] > 0 -> back[which] = true
    :: else
#endif
    fi;
    offered[c0] = (offered[c0] == which -> NONE : offered[c0]);
#ifndef BUG_USELESS_SILENT
    told[c0] = true
#endif
}

// What client n does, and the server for it.
proctype client(byte n) {
    do
    :: atomic { phase[n] == IDLE && used[n] < IDS && !leaves[n] && asked[n] == NONE -> ask(n) }
    :: atomic { phase[n] == WAITS && told[n] && used[n] < IDS -> ask(n) }
    :: atomic { phase[n] == WAITS && told[n] && used[n] == IDS -> // it has no further id: leaves
        phase[n] = IDLE; told[n] = false; leaves[n] = true;
        back[offered[n]] = (offered[n] != NONE -> true : back[offered[n]]); offered[n] = NONE }
    :: atomic { phase[n] == ASKS && asked[n] != NONE && resent < RESENDS ->
        resent++; stale[asked[n]] = stale[asked[n]] + copies[asked[n]]; copies[asked[n]] = 1; again[asked[n]] = true }
    :: atomic { phase[n] == ASKS && asked[n] != NONE && copies[asked[n]] == 0 && resent >= RESENDS -> // no reply comes any more
        back[asked[n]] = true; mark[asked[n]] = (mark[asked[n]] == 0 -> 2 : mark[asked[n]]);
        asked[n] = NONE; phase[n] = WAITS; told[n] = true }
    :: atomic { phase[n] == WAITS && left < LEAVES ->
        left++; phase[n] = IDLE; told[n] = false; leaves[n] = true;
        if
        :: offered[n] != NONE -> back[offered[n]] = true
        :: else
        fi;
        offered[n] = NONE }
    // While it asks, what was granted may be for that question.
    :: atomic { message[n] != NONE && phase[n] != DEAD && (asked[n] == NONE || offered[n] == message[n]) ->
        read_message(n); check() }
    :: atomic { phase[n] == HOLDS && valid[n] > 0 && lease[holds[n]] > 1 -> // a renewal
        lease[holds[n]] = FULL + 1; valid[n] = FULL; check() }
    :: atomic { phase[n] == HOLDS ->
        if
        :: lease[holds[n]] > 1 -> give_back(holds[n])
        :: else
        fi;
        phase[n] = IDLE; valid[n] = 0; holds[n] = 0; sweep(); tell_queue(); check() }
    :: atomic { phase[n] != DEAD && dead < DEATHS -> dead++; phase[n] = DEAD; valid[n] = 0 }
    // The server.
    :: atomic { i = n * IDS; do :: i < n * IDS + IDS - 1 -> i++ :: break od;
        if
        :: copies[i] > 0 -> g = i; answer(g, true); check()
        :: stale[i] > 0 -> g = i; answer(g, false); check()
        :: back[i] -> g = i; back[g] = false; sweep(); give_back(g);
#ifndef BUG_LEAVE_SILENT
            tell_queue();
#endif
            check()
        :: else
        fi }
    :: atomic { leaves[n] -> leaves[n] = false; place[n] = NONE; sweep(); tell_queue(); check() }
    od
}

init {
    atomic {
        available = PERMITS;
        c = 0;
        do
        :: c < CLIENTS ->
            place[c] = NONE;
            message[c] = NONE;
            asked[c] = NONE;
            offered[c] = NONE;
            run client(c);
            c++
        :: else -> break
        od
    };
    do
    // A tick.
    :: atomic {
        i = 0;
        do
        :: i < ALL -> lease[i] = (lease[i] > 1 -> lease[i] - 1 : lease[i]); wanted[i] = (wanted[i] > 0 -> wanted[i] - 1 : 0); i++
        :: else -> break
        od;
        c = 0;
        do
        :: c < CLIENTS -> valid[c] = (valid[c] > 0 -> valid[c] - 1 : 0); rest[c] = (rest[c] > 0 -> rest[c] - 1 : 0);
            // Its hint: the end of a lease that it has seen.
            told[c] = (phase[c] == WAITS && message[c] == NONE -> true : told[c]); c++
        :: else -> break
        od;
        check() }
    od
}
