// SPDX-License-Identifier: MIT
//
// Grants: how a grantee finds the end of its hold, from a message that may have lain in a buffer for any time.
//
// Models "Validity" of the protocol "grants". The client knows pairs: the local time when a command was sent and the
// server's time in its answer. A grant names the server's time at which it ends; so the pair tells its end in local
// time.
//
// There are two servers. The first is the master until a failover, which loses the key. It may then be cut off and
// go on answering, or replicate the new master's messages. The client has one connection for commands and one for
// messages, each to one of the servers. A connection breaks at any time, is noticed later or never, and leads to the
// present master when it is made again. A message that was read from an earlier connection is void. A hold that was
// granted before the failover may overlap, as always; those of the new master must not.
//
// Local time and the servers' clocks are counted in half ticks. DRIFT: a tick takes 1 to 3 half ticks of local time,
// and the client reckons with that. AHEAD: the new master's clock is ahead of the old one's by this or less, or
// behind. LISTENERS: others listen at the new master to everything.
//
// Bounds: TICKS ticks, GRANTS grants, an offer of OFFER ticks and a lease of FULL, BREAKS broken connections.
//
// Property: while a client believes in a hold, the master has it.
//
// verify: safety -DDRIFT -DBREAKS=0 -DFAILOVERS=0
// verify: safety
// verify: safety -DLISTENERS
// bug: BUG_VALID_FROM_RECEIPT safety     the offer counts from the receipt of the message
// bug: BUG_NO_DRIFT safety -DDRIFT       clocks are taken to run equally fast
// bug: BUG_PAIR_FROM_REPLY safety        a pair has the local time of the reply
// bug: BUG_PAIR_KEPT safety              a pair survives the break of a connection
// bug: BUG_PAIR_OF_ANY safety            a pair only dies with a connection: a new one may be of the other server
// bug: BUG_ENTER_WITHOUT_PAIR safety     a grant without a pair counts from its receipt
// bug: BUG_COUNT_BY_PUBLISH safety       a grant without a receiver is published before the next waiter gets it
// bug: BUG_COUNT_EVERYBODY safety -DLISTENERS    whoever listens counts as the waiter

#ifndef TICKS
#define TICKS 6
#endif
#ifndef OFFER
#define OFFER 2
#endif
#ifndef FULL
#define FULL 3
#endif
#ifndef GRANTS
#define GRANTS 2
#endif
#ifndef BREAKS
#define BREAKS 2
#endif
#ifndef FAILOVERS
#define FAILOVERS 1
#endif
#ifndef AHEAD
#define AHEAD 2
#endif

#define NONE 2
#define START 8  // of the clocks, so that none is negative

// --- the servers ----------------------------------------------------------------------------------------------------

byte clock[2];
byte master, failovers;
bool replicates;          // the old master has become a replica of the new one
bool held;                // the master has the client's hold
byte ends;                // by the master's clock
byte grants, ticks;

// --- the client -----------------------------------------------------------------------------------------------------

byte now = START;
byte commands, messages;  // the servers that its connections lead to
byte breaks;

bool has_pair;
byte pair_sent, pair_time, pair_server;

// A command on its way: 1 was sent, 2 was answered.
byte command, sent, answer_time;
bool renews, answer_held, answer_before;  // its renewal was before the failover

bool has_message;         // in the buffer of the connection for messages
byte message_ends;        // by the clock of the server that granted
bool is_offered;          // its grant has no pair, and is to be confirmed
bool believes, before;    // in a hold; in one from before the failover
byte valid_until;

#define is_over (now >= valid_until)

// What has passed in local time at least, when a server's clock has gone on by `x`.
#if defined(DRIFT) && !defined(BUG_NO_DRIFT)
#define at_least(x) ((x) / 2)
#else
#define at_least(x) (x)
#endif

inline forget_pair() {
#ifndef BUG_PAIR_KEPT
    has_pair = false; pair_sent = 0; pair_time = 0; pair_server = 0
#else
    skip
#endif
}

inline end_hold() { believes = false; before = false; valid_until = 0 }
inline forget_message() { has_message = false; message_ends = 0 }
inline forget_command() {
    command = 0; sent = 0; answer_time = 0; renews = false; answer_held = false; answer_before = false
}

#ifdef BUG_PAIR_OF_ANY
#define is_usable has_pair
#elif defined(BUG_PAIR_KEPT)
#define is_usable has_pair
#else
#define is_usable (has_pair && pair_server == messages)
#endif

inline believe_until(x) {
    if
    :: x > now -> believes = true; valid_until = x
    :: else
    fi
}

proctype client() {
end:
    do
    // A command, and its answer.
    :: atomic { command == 0 && commands != NONE -> command = 1; sent = now; renews = is_offered; is_offered = false }
    :: atomic { command == 1 ->
        command = 2; answer_time = clock[commands];
        if
        :: renews && commands == master && held ->
            ends = clock[master] + FULL * 2; answer_held = true
        :: else
        fi }
    :: atomic { command == 2 ->
        if
        :: answer_held && !believes -> believe_until(sent + at_least(FULL * 2)); before = believes && answer_before
        :: else
        fi;
        has_pair = true; pair_time = answer_time; pair_server = commands;
#ifdef BUG_PAIR_FROM_REPLY
        pair_sent = now;
#else
        pair_sent = sent;
#endif
        forget_command() }
    // A grant is read.
    :: atomic { has_message && !believes ->
        if
#ifdef BUG_VALID_FROM_RECEIPT
        :: believe_until(now + OFFER * 2)
#else
        :: is_usable ->
            if
            :: message_ends > pair_time -> believe_until(pair_sent + at_least(message_ends - pair_time))
            :: else
            fi
#ifdef BUG_ENTER_WITHOUT_PAIR
        :: !is_usable -> believe_until(now + OFFER * 2)
#else
        :: !is_usable -> is_offered = true
#endif
#endif
        fi;
        forget_message() }
    :: atomic { believes && is_over -> end_hold() }
    // Connections break and are made again.
    :: atomic { commands != NONE && breaks < BREAKS ->
        breaks++; commands = NONE; forget_command(); forget_pair() }
    :: atomic { messages != NONE && breaks < BREAKS ->
        breaks++; messages = NONE; forget_pair() }
    :: atomic { commands == NONE -> commands = master }
    :: atomic { messages == NONE -> messages = master; forget_message() }
    od
}

proctype server() {
end:
    do
    :: atomic { !held && grants < GRANTS && !has_message ->
        grants++;
        if
        :: messages == master -> held = true; has_message = true
#ifdef BUG_COUNT_BY_PUBLISH
        :: messages != master && messages != NONE && replicates -> has_message = true  // somebody else is granted to
#endif
#ifdef LISTENERS
#ifdef BUG_COUNT_EVERYBODY
        :: messages != master -> held = true; has_message = messages != NONE && replicates
#endif
#endif
        :: else -> skip
        fi;
        if :: held -> ends = clock[master] + OFFER * 2 :: else fi;
        if :: has_message -> message_ends = clock[master] + OFFER * 2 :: else fi }
    :: atomic { failovers < FAILOVERS ->
        failovers++; master = 1; held = false; ends = 0; before = believes; answer_before = answer_held;
        if :: replicates = true :: true fi;
        if :: has_message -> forget_message() :: else fi;
        is_offered = false }
    od
}

#define run_on(x) x = x + 2

proctype time() {
end:
    do
    :: atomic { ticks < TICKS ->
        ticks++;
        run_on(clock[0]); run_on(clock[1]);
        if
        :: now = now + 2
#ifdef DRIFT
        :: now = now + 1
        :: now = now + 3
#endif
        fi;
        if :: held && clock[master] >= ends -> held = false; ends = 0 :: else fi;
        if :: believes && is_over -> end_hold() :: else fi;
        assert(!believes || before || held) }
    od
}

init {
    atomic {
        clock[0] = START;
        if
        :: clock[1] = START
        :: clock[1] = START + AHEAD * 2
        :: clock[1] = START - AHEAD * 2
        fi;
        run client(); run server(); run time()
    }
}
