// SPDX-License-Identifier: MIT
//
// Grants: a release hands the lock to the next waiter, which has nothing to send.
//
// Models the queue, the look-out and the release script of the protocol "grants" on one server. How a grantee finds
// the end of its hold from the server's clock is in grants_clock.pml; here it knows what is left of a hold.
//
// The server is passive: a command is one step, with its reply, unless it is lost. Each wait has an owner number;
// the first client has two of them, and a number is reused when nothing carries it, which stands for "never again".
// A message waits in a buffer until its client reads it. A grant may be lost with its connection or without a sign,
// and other messages with the connection. Time is counted in ticks, which may come between any two steps: so every
// client may be paused anywhere. URGENT: time waits for clients that are due and not frozen, so that delays can be
// asserted.
//
// Java is a client of Redisson. It listens to the common channel, asks again when a lease ends that it saw, and is
// not in the queue. URGENT: in the time that others keep out it is quicker than they.
//
// Bounds: CLIENTS clients and Java (JAVA); FULL, OFFER and SLOT ticks, a refresh each PERIOD, KEEP_OUT ticks for
// Java; a plain release after LIMIT grants in a row (0: none); at most TRIES waiters without a receiver in one
// script; DEATHS, LOUD (the receivers of a dead client are still counted), FREEZES, DEAF (lost grants), SILENT
// (those without a sign), LEAVES, LOSSES (of commands of the first client), FAILOVERS (key and queue are lost),
// FORCED (a holder's key is deleted by a client that does not grant). FAR: the last client's subscription is at a
// replica.
//
// Properties:
//   - No hold begins while another is believed in. After a failover that does not count for holds from before it.
//   - No hold is written for Java, for a waiter without a receiver, or for a number that its client is done with.
//   - No client enters that does not hold.
//   - The server never holds a number for longer than the offer before its owner has entered.
//   - A number that left holds nothing.
//   - URGENT: the lock is not free for more than IDLE ticks while a client waits that is neither dead nor frozen.
//   - HEAD: it is not free at all beside a head of the queue that is neither.
//   - Every waiter is served at last, Java as well.
//
// verify: safety -DLEAVES=1 -DDEAF=1 -DDEATHS=1 -DLOUD=1
// verify: safety -DLEAVES=1 -DLOSSES=1
// verify: safety -DJAVA -DLIMIT=1
// verify: safety -DURGENT -DLOSSES=1 -DLEAVES=1 -DFREEZES=1 -DIDLE=2
// verify: safety -DURGENT -DFAILOVERS=1 -DDEAF=1 -DLEAVES=1
// verify: safety -DURGENT -DHEAD -DSILENT=1 -DFREEZES=1 -DCLIENTS=3 -DPERIOD=3 -DSLOT=4
// verify: safety -DURGENT -DDEATHS=2 -DTRIES=1 -DCLIENTS=3 -DIDLE=1
// verify: safety -DURGENT -DDEATHS=1 -DLOUD=1 -DCLIENTS=3 -DIDLE=2
// verify: safety -DURGENT -DFREEZES=1 -DCLIENTS=3 -DLIMIT=1 -DIDLE=2
// verify: safety -DURGENT -DFREEZES=2 -DCLIENTS=3 -DIDLE=1
// verify: safety -DURGENT -DFORCED=1 -DFAR -DIDLE=2
// verify: safety -DURGENT -DJAVA
// verify: safety -DURGENT -DJAVA -DLIMIT=2 -DLEAVES=1 -DIDLE=1
// verify: liveness java_served -DURGENT -DJAVA -DLIMIT=2 -DIDLE=1
// verify: liveness served -DURGENT
// bug: BUG_VALID_FROM_RECEIPT safety    the offer counts from the receipt of the message
// bug: BUG_FULL_LEASE safety    a grant has the full lease, though its waiter may be frozen
// bug: BUG_ASK_STRETCHES safety -DURGENT -DLOSSES=1 -DLEAVES=1 -DFREEZES=1 -DIDLE=2    a late copy stretches an offer
// bug: BUG_NOBODY_ASKS safety -DURGENT -DHEAD -DSILENT=1 -DFREEZES=1 -DCLIENTS=3 -DPERIOD=3 -DSLOT=4    the head knows no end
// bug: BUG_NOT_LISTENING safety -DURGENT -DJAVA    nobody listens to the common channel while Java holds
// bug: BUG_SUBSCRIBED_IN_SILENCE safety -DURGENT -DJAVA    it does not ask when that subscription stands
// bug: BUG_LEAVE_KEEPS safety -DLEAVES=1    a number that leaves keeps what it was granted
// bug: BUG_HOLD_FIRST safety -DURGENT -DDEATHS=1    a hold is written before the receivers are counted
// bug: BUG_COUNT_BY_PUBLISH safety -DFAR    the receivers are counted by a publish, which replicas pass on
// bug: BUG_NO_UNTIL safety -DURGENT -DLOSSES=1 -DLEAVES=1 -DFREEZES=1 -DIDLE=2    a queue-up may be late
// bug: BUG_LEAVE_ONCE safety -DURGENT -DLOSSES=1 -DLEAVES=1 -DFREEZES=1 -DIDLE=2    left once only
// bug: BUG_GHOST_KEPT safety -DURGENT -DLOSSES=1 -DLEAVES=1 -DFREEZES=1 -DIDLE=2    a grant for who has left is kept
// bug: BUG_LIMIT_SILENT safety -DURGENT -DDEATHS=2 -DTRIES=1 -DCLIENTS=3 -DIDLE=1    nobody is told after too many dead
// bug: BUG_REFRESH_ONLY_TELLS safety -DURGENT -DFREEZES=1 -DCLIENTS=3 -DLIMIT=1 -DIDLE=2    it only tells the head
// bug: BUG_EARLY_ANSWER safety -DURGENT -DFORCED=1 -DFAR -DIDLE=2    a refresh answers before it hands on
// bug: BUG_NO_PLAIN liveness java_served -DURGENT -DJAVA -DLIMIT=2 -DIDLE=1    no release is plain
// bug: BUG_NO_KEEP_OUT liveness java_served -DURGENT -DJAVA -DLIMIT=2 -DIDLE=1    nobody keeps out

#ifndef CLIENTS
#define CLIENTS 2
#endif
#ifndef FULL
#define FULL 3
#endif
#ifndef OFFER
#define OFFER 2
#endif
#ifndef SLOT
#define SLOT 3
#endif
#ifndef PERIOD
#define PERIOD 2
#endif
#ifndef KEEP_OUT
#define KEEP_OUT 1
#endif
#ifndef LIMIT
#define LIMIT 0
#endif
#ifndef TRIES
#define TRIES 2
#endif
#ifndef DEATHS
#define DEATHS 0
#endif
#ifndef LOUD
#define LOUD 0
#endif
#ifndef FREEZES
#define FREEZES 0
#endif
#ifndef DEAF
#define DEAF 0
#endif
#ifndef SILENT
#define SILENT 0
#endif
#ifndef LEAVES
#define LEAVES 0
#endif
#ifndef LOSSES
#define LOSSES 0
#endif
#ifndef FAILOVERS
#define FAILOVERS 0
#endif
#ifndef FORCED
#define FORCED 0
#endif
#ifndef IDLE
#define IDLE 0
#endif
#define COMMAND 1  // how long a command is wanted
#define NEVER 7
#define NUMBERS (CLIENTS + 1)
#define J NUMBERS  // Java's number

#define client_of(n) (n < 2 -> 0 : n - 1)

// --- the server -----------------------------------------------------------------------------------------------------

byte holder;              // the number + 1; 0: the key is absent
byte ttl;
byte queue[NUMBERS];      // numbers + 1, the next one first
byte slot[NUMBERS];       // how long a place in the queue counts
byte streak;              // grants in a row, which the holder knows from its grant

// --- the clients ----------------------------------------------------------------------------------------------------

mtype = { NOTHING, WAITS, HOLDS, DEAD };
mtype phase[CLIENTS] = NOTHING;
byte number[CLIENTS];
byte valid[CLIENTS];      // how long the hold is certain
byte ask_in[CLIENTS];     // when it asks again, if no message comes before
byte fresh[CLIENTS];      // when its place is to be refreshed
bool renewed[CLIENTS];
bool before[CLIENTS];     // its hold is from before the failover
bool cut[CLIENTS];        // its subscription is broken
bool frozen[CLIENTS];
bool loud[CLIENTS];       // dead, but its receivers are counted
#ifdef JAVA
byte hears[CLIENTS];      // the common channel: 1 is to be subscribed to, 2 is subscribed to
#endif

// The state of a number at its client.
#define DONE 0
#define USED 1
#define UNWANTED 2        // to be left
#define AGAIN 3           // to be left once more when no copy is wanted any more
#define LEFT 4            // its client is dead
byte use[NUMBERS + 1];
byte grant[NUMBERS];      // a grant in the buffer: what is left of it + 1
bool old_grant[NUMBERS];  // from before the failover

// A command of the first client that was sent and may arrive later.
mtype = { QUEUE_UP, REFRESH, LEAVE };
byte unsettled[2];        // how long a command without a reply may take effect, + 1
mtype copy;
byte copy_of, copy_until;

bool java_waits, java_news;
byte java_valid, java_ask_in;

bool entered;             // ghost: the owner of the present hold knew of it once
byte nobodys, idle;       // ghosts: for how long it did not; for how long the lock was free beside a waiter
byte deaths, freezes, deaf, silent, leaves, losses, failovers, forced;

// Of a command.
mtype command;
bool answered, must_hand_on, must_tell, is_plain;
byte tries, next, first;

#define believes(c) (valid[c] > 0 && !before[c])
#if CLIENTS == 3
#define is_believed (believes(0) || believes(1) || believes(2) || java_valid > 0)
#define is_queued(n) (queue[0] == n + 1 || queue[1] == n + 1 || queue[2] == n + 1 || queue[3] == n + 1)
#else
#define is_believed (believes(0) || believes(1) || java_valid > 0)
#define is_queued(n) (queue[0] == n + 1 || queue[1] == n + 1 || queue[2] == n + 1)
#endif
#define is_carried(n) (n < 2 && copy != 0 && copy_of == n)
#define is_new(n) \
    ((use[n] == DONE || use[n] == LEFT) && holder != n + 1 && !is_queued(n) && grant[n] == 0 && !is_carried(n))
#define waits_with(n) (phase[client_of(n)] == WAITS && number[client_of(n)] == n)

// Counted as a receiver at the server.
#ifdef FAR
#define is_near(c) (c != CLIENTS - 1)
#else
#define is_near(c) true
#endif
#define is_heard(n) (!cut[client_of(n)] && is_near(client_of(n)) && \
             (phase[client_of(n)] != DEAD || loud[client_of(n)]))

// A plain release has given Java its turn.
#ifdef BUG_NO_KEEP_OUT
#define must_keep_out false
#elif defined(URGENT)
#define must_keep_out (java_news && holder == 0)
#else
#define must_keep_out false
#endif

inline pop() {
    slot[queue[0] - 1] = 0;
    queue[0] = queue[1]; queue[1] = queue[2];
#if CLIENTS == 3
    queue[2] = queue[3]; queue[3] = 0
#else
    queue[2] = 0
#endif
}

inline take_out(n) {
    if
    :: queue[0] == n + 1 -> pop()
    :: queue[0] != n + 1 && is_queued(n) ->
        slot[n] = 0;
#if CLIENTS == 3
        if
        :: queue[1] == n + 1 -> queue[1] = queue[2]; queue[2] = queue[3]
        :: queue[2] == n + 1 -> queue[2] = queue[3]
        :: else
        fi;
        queue[3] = 0
#else
        if :: queue[1] == n + 1 -> queue[1] = queue[2] :: else fi;
        queue[2] = 0
#endif
    :: else
    fi
}

inline append(n) {
    if
    :: queue[0] == 0 -> queue[0] = n + 1
    :: queue[0] != 0 && queue[1] == 0 -> queue[1] = n + 1
    :: queue[1] != 0 && queue[2] == 0 -> queue[2] = n + 1
#if CLIENTS == 3
    :: queue[2] != 0 -> assert(queue[3] == 0); queue[3] = n + 1
#endif
    fi
}

#if defined(JAVA) && !defined(BUG_NOT_LISTENING)
#define look_out(c) \
    hears[c] = (holder == J + 1 -> (hears[c] == 0 -> 1 : hears[c]) : 0)
#else
#define look_out(c) skip
#endif

// A client that hears it asks again.
inline say_dropped(n) { if :: waits_with(n) && !cut[client_of(n)] -> ask_in[client_of(n)] = 0 :: else fi }

// Tells the head of the queue when the present lease ends, or to ask now. One that does not hear it is dropped.
inline tell_head() {
    do
    :: queue[0] == 0 -> break
    :: queue[0] != 0 ->
        first = queue[0] - 1;
        if
        :: slot[first] == 0 -> pop(); say_dropped(first)
        :: slot[first] > 0 && !is_heard(first) -> pop()
        :: slot[first] > 0 && is_heard(first) && waits_with(first) ->
            ask_in[client_of(first)] = ttl; look_out(client_of(first)); break
        // A place that nobody waits at.
        :: slot[first] > 0 && is_heard(first) && !waits_with(first) ->
            if :: use[first] == AGAIN -> use[first] = UNWANTED :: else fi;
            break
        fi
    od;
    first = 0
}

// Writes a hold.
inline hold(n) {
    assert(!is_believed);
    assert(use[n] != DONE);
    holder = n + 1; nobodys = 0; idle = 0
}

#define offered(n) (slot[n] < OFFER -> slot[n] : OFFER)

// Publishes to the common channel.
inline publish() {
#ifdef JAVA
    java_news = java_waits;
    if :: hears[0] == 2 && !cut[0] && phase[0] == WAITS -> ask_in[0] = 0 :: else fi;
    if :: hears[1] == 2 && !cut[1] && phase[1] == WAITS -> ask_in[1] = 0 :: else fi
#else
    skip
#endif
}

// Hands a free lock to the first waiter that hears it.
inline hand_on() {
    assert(holder == 0);
    tries = 0;
    do
    :: queue[0] == 0 || tries == TRIES -> break
    :: queue[0] != 0 && tries < TRIES ->
        next = queue[0] - 1;
        if
        :: slot[next] == 0 -> pop(); say_dropped(next)
#ifndef BUG_HOLD_FIRST
        :: slot[next] > 0 && !is_heard(next) ->
#ifdef BUG_COUNT_BY_PUBLISH
            if :: !is_near(client_of(next)) -> grant[next] = offered(next) + 1 :: else fi;
#endif
            tries++; pop()
        :: slot[next] > 0 && is_heard(next) ->
#else
        :: slot[next] > 0 ->
#endif
            assert(is_heard(next));
#ifdef BUG_FULL_LEASE
            hold(next); ttl = FULL;
#else
            hold(next); ttl = offered(next);
#endif
            entered = false;
            if
            :: grant[next] = ttl + 1; old_grant[next] = false
            :: deaf < DEAF -> deaf++; cut[client_of(next)] = true
            :: silent < SILENT -> silent++
            fi;
            pop();
#ifndef BUG_NOBODY_ASKS
            must_tell = true;
#endif
            break
        fi
    od;
    tries = 0; next = 0;
    if
    :: holder == 0 ->
        streak = 0;
#ifndef BUG_LIMIT_SILENT
        must_tell = true;
#endif
        publish()
    :: else -> streak = (streak < LIMIT -> streak + 1 : streak)
    fi
}

// The release script; also that of a number that leaves.
inline server_leaves(n) {
    if
#ifndef BUG_LEAVE_KEEPS
    :: holder == n + 1 ->
        take_out(n);
        holder = 0; ttl = 0; entered = false; nobodys = 0;
        if
#if LIMIT && !defined(BUG_NO_PLAIN)
        :: streak >= LIMIT -> streak = 0; is_plain = true; must_tell = true
#endif
        :: else -> must_hand_on = true
        fi
#endif
    :: queue[0] == n + 1 && holder != n + 1 -> pop(); must_tell = true
    :: else -> take_out(n)
    fi;
    assert(holder != n + 1 && !is_queued(n))
}

#define is_head_dead (queue[0] != 0 && slot[queue[0] - 1] == 0)

// Acquires or queues up. If it is answered, `c` knows the outcome.
inline server_asked(n, c) {
    if
    :: holder == n + 1 ->
#ifdef BUG_ASK_STRETCHES
        ttl = FULL;
#endif
        if :: answered -> enter(c) :: else fi
    :: holder == 0 ->
        hold(n); ttl = FULL;
        entered = true;
        streak = 0;
        must_tell = queue[0] == n + 1 || is_head_dead;
        take_out(n);
        if :: answered -> enter(c) :: else fi
    :: else ->
        if :: !is_queued(n) -> append(n); assert(use[n] != DONE) :: else fi;
        slot[n] = SLOT;
        must_tell = queue[0] != n + 1 && is_head_dead;
        if
        :: answered ->
            fresh[c] = PERIOD;
            ask_in[c] = (queue[0] == n + 1 -> ttl : NEVER);
            if :: queue[0] == n + 1 -> look_out(c) :: else fi
        :: else
        fi
    fi
}

// Finds the lock free, or the head of the queue dead.
inline server_refreshes(n, c) {
    if
    :: is_queued(n) -> slot[n] = SLOT
    :: else
    fi;
    if :: answered -> fresh[c] = PERIOD :: else fi;
#ifndef BUG_REFRESH_ONLY_TELLS
    must_hand_on = queue[0] != 0 && holder == 0 && !must_keep_out;
#endif
    must_tell = !must_hand_on && queue[0] != 0 && (holder == 0 || is_head_dead || queue[0] == n + 1)
}

#ifdef BUG_EARLY_ANSWER
#define is_gone (!is_queued(n) && !must_hand_on)
#else
#define is_gone (!is_queued(n))
#endif

// Executes `command` of the number `n`, in one step.
inline serve(n, c) {
    if
    :: command == QUEUE_UP -> server_asked(n, c)
    :: command == REFRESH -> server_refreshes(n, c)
    :: command == LEAVE -> server_leaves(n)
    :: else
    fi;
    if :: must_hand_on -> hand_on() :: else fi;
    if :: is_plain -> publish() :: else fi;
    if :: must_tell -> tell_head() :: else fi;
    // A refresh tells whether the place is still there when it has handed on.
    if :: command == REFRESH && answered && is_gone -> ask_in[c] = 0 :: else fi;
#ifdef JAVA
    if
    :: is_plain && queue[0] != 0 && waits_with(queue[0] - 1) && is_heard(queue[0] - 1) ->
        ask_in[client_of(queue[0] - 1)] = KEEP_OUT
    :: else
    fi;
#endif
    command = 0; answered = false; must_hand_on = false; must_tell = false; is_plain = false
}

inline enter(c) {
    assert(holder == number[c] + 1);
    phase[c] = HOLDS; valid[c] = ttl; renewed[c] = false; before[c] = false; entered = true; nobodys = 0;
    ask_in[c] = 0; fresh[c] = 0;
#ifdef JAVA
    hears[c] = 0
#else
    skip
#endif
}

inline rest(c) {
    phase[c] = NOTHING; valid[c] = 0; before[c] = false; ask_in[c] = 0; fresh[c] = 0; renewed[c] = false;
#ifdef JAVA
    hears[c] = 0;
#endif
    number[c] = 0
}

#ifdef BUG_LEAVE_ONCE
#define left_again(n) false
#else
#define left_again(n) (n < 2 && unsettled[n] > 1)
#endif

inline read_grant(n, c) {
    if
    :: phase[c] == WAITS && number[c] == n ->
        if
#ifdef BUG_VALID_FROM_RECEIPT
        :: true ->
            phase[c] = HOLDS; valid[c] = OFFER; before[c] = old_grant[n]; entered = holder == n + 1;
            ask_in[c] = 0; fresh[c] = 0
#else
        :: grant[n] > 1 ->
            assert(holder == n + 1 || old_grant[n]);
            phase[c] = HOLDS; valid[c] = grant[n] - 1; renewed[c] = false; before[c] = old_grant[n];
            entered = entered || holder == n + 1; ask_in[c] = 0; fresh[c] = 0;
#ifdef JAVA
            hears[c] = 0
#endif
        :: else -> ask_in[c] = 0  // too late: it has no place any more
#endif
        fi
    :: phase[c] == HOLDS && number[c] == n
    :: else ->
#ifdef BUG_GHOST_KEPT
        if :: use[n] == AGAIN && holder == n + 1 -> ttl = FULL :: else fi
#else
        if :: use[n] == AGAIN -> use[n] = UNWANTED :: else fi
#endif
    fi;
    grant[n] = 0; old_grant[n] = false
}

#define mine(c) (c == 0 -> 0 : c + 1)
#define has_grant(c) (grant[mine(c)] > 0 || c == 0 && grant[1] > 0)
#define has_unwanted(c) (use[mine(c)] == UNWANTED || c == 0 && use[1] == UNWANTED)
#define may_lose(c) (c == 0 && losses < LOSSES && copy == 0)

inline lose(n) {
    losses++; unsettled[n] = COMMAND + 1;
    if :: command == REFRESH -> fresh[c] = PERIOD :: else fi;
    if
    :: true
    :: command = 0
    :: copy = command; copy_of = n; copy_until = COMMAND; command = 0
    fi
}

#define may_ask(c) (phase[c] == WAITS && !frozen[c] && ask_in[c] == 0 && !must_keep_out)
#define may_refresh(c) (phase[c] == WAITS && !frozen[c] && fresh[c] == 0)
#define forget_grant(n) grant[n] = 0; old_grant[n] = false

proctype client(byte c) {
    byte n;
end:
    do
    :: atomic { phase[c] == NOTHING && !frozen[c] && (is_new(mine(c)) || c == 0 && is_new(1)) && !has_unwanted(c) ->
        if
        :: is_new(mine(c)) -> number[c] = mine(c)
        :: !is_new(mine(c)) -> number[c] = 1
        fi;
        use[number[c]] = USED; phase[c] = WAITS; ask_in[c] = 0; fresh[c] = PERIOD;
        if :: c == 0 -> unsettled[number[c]] = 0 :: else fi }
    // A command. One of the first client may be lost, or arrive later, or only its answer is lost.
    :: atomic {
        if
        :: may_ask(c) -> command = QUEUE_UP; n = number[c]
        :: may_refresh(c) -> command = REFRESH; n = number[c]
        :: has_unwanted(c) && phase[c] != DEAD && !frozen[c] ->
            command = LEAVE;
            if :: use[mine(c)] == UNWANTED -> n = mine(c) :: else -> n = 1 fi;
            use[n] = (left_again(n) -> AGAIN : DONE)
        fi;
        answered = true;
        if
        :: true
#if LOSSES
        :: command != LEAVE && may_lose(c) -> answered = false; lose(n)
#endif
        fi;
        serve(n, c); n = 0 }
#ifdef JAVA
    :: atomic { phase[c] == WAITS && !frozen[c] && hears[c] == 1 ->
        hears[c] = 2;
#ifndef BUG_SUBSCRIBED_IN_SILENCE
        ask_in[c] = 0
#endif
        }
#endif
    :: atomic { phase[c] == WAITS && !frozen[c] && leaves < LEAVES ->
        leaves++; use[number[c]] = UNWANTED; rest(c) }
    :: atomic { cut[c] && phase[c] != DEAD && !frozen[c] ->
        cut[c] = false;
        if :: phase[c] == WAITS -> ask_in[c] = 0 :: else fi;
        forget_grant(mine(c)); if :: c == 0 -> forget_grant(1) :: else fi }
    :: atomic { has_grant(c) && phase[c] != DEAD && !frozen[c] ->
        if :: grant[mine(c)] > 0 -> n = mine(c) :: else -> n = 1 fi;
        read_grant(n, c); n = 0 }
    :: atomic { phase[c] == HOLDS && !frozen[c] && valid[c] > 0 && valid[c] < FULL && !renewed[c] ->
        if
        :: holder == number[c] + 1 ->
            ttl = FULL; valid[c] = FULL; renewed[c] = true; before[c] = false; entered = true; nobodys = 0
        :: else -> use[number[c]] = UNWANTED; rest(c)
        fi }
    :: atomic { phase[c] == HOLDS && !frozen[c] -> use[number[c]] = UNWANTED; rest(c) }
    :: atomic { phase[c] != DEAD && deaths < DEATHS ->
        deaths++;
        if :: loud[c] = false :: LOUD -> loud[c] = true fi;
        if :: use[mine(c)] != DONE -> use[mine(c)] = LEFT :: else fi;
        if :: c == 0 && use[1] != DONE -> use[1] = LEFT :: else fi;
        if :: c == 0 -> unsettled[0] = 0; unsettled[1] = 0; grant[0] = 0; grant[1] = 0 :: else -> grant[c + 1] = 0 fi;
        rest(c); cut[c] = false; frozen[c] = false; phase[c] = DEAD; break }
    od
}

// --- Java -----------------------------------------------------------------------------------------------------------

#ifdef JAVA
proctype java() {
end:
    do
    :: atomic { java_valid == 0 && holder != J + 1 && (!java_waits || java_news || java_ask_in == 0) ->
        java_news = false;
        if
        :: holder == 0 -> hold(J); ttl = FULL; entered = true; java_valid = FULL; java_waits = false; java_ask_in = 0
        :: else -> java_waits = true; java_ask_in = ttl
        fi }
    :: atomic { java_valid > 0 ->
        java_valid = 0;
        if :: holder == J + 1 -> holder = 0; ttl = 0; publish() :: else fi }
    od
}
#define java_is_due (java_waits && (java_news || java_ask_in == 0))
#else
#define java_is_due false
#endif

// --- the network, time and faults --------------------------------------------------------------------------------------

#if LOSSES
proctype network() {
    byte n;
end:
    do
    :: atomic { copy != 0 ->
        if :: command = copy :: true fi;  // or it is dropped
        n = copy_of;
        serve(n, 0);
        copy = 0; copy_of = 0; copy_until = 0; n = 0 }
    od
}
#endif

#define run_down(x) if :: x > 0 -> x-- :: else fi
#define run_down_to_one(x) if :: x > 1 -> x-- :: else fi
#define count_down(x) if :: x > 0 && x < NEVER -> x-- :: else fi

#ifdef JAVA
#define must_subscribe(c) (hears[c] == 1)
#else
#define must_subscribe(c) false
#endif
#define is_due(c) (phase[c] != DEAD && !frozen[c] && (cut[c] || has_grant(c) || has_unwanted(c) || \
    phase[c] == WAITS && (ask_in[c] == 0 || fresh[c] == 0 || must_subscribe(c)) || phase[c] == HOLDS && valid[c] <= 1))
#define is_waiting(c) (phase[c] == WAITS && !frozen[c])
#if CLIENTS == 3
#define is_any_due (is_due(0) || is_due(1) || is_due(2) || java_is_due)
#define is_any_waiting (is_waiting(0) || is_waiting(1) || is_waiting(2))
#else
#define is_any_due (is_due(0) || is_due(1) || java_is_due)
#define is_any_waiting (is_waiting(0) || is_waiting(1))
#endif

#ifdef HEAD
#define is_counted (queue[0] != 0 && waits_with(queue[0] - 1) && !frozen[client_of(queue[0] - 1)])
#else
#define is_counted true
#endif

inline client_tick(c) { run_down(valid[c]); count_down(ask_in[c]); run_down(fresh[c]) }

inline number_tick(n) {
    run_down(slot[n]); run_down_to_one(grant[n]);
    if :: use[n] == LEFT && is_new(n) -> use[n] = DONE :: else fi
}

inline unsettled_tick(n) {
    run_down_to_one(unsettled[n]);
    if :: use[n] == AGAIN && unsettled[n] == 1 -> use[n] = UNWANTED; unsettled[n] = 0 :: else fi
}

proctype time() {
end:
    do
    :: atomic {
#ifdef URGENT
        !is_any_due;
        if
        :: holder == 0 && is_any_waiting && is_counted -> idle++; assert(idle <= IDLE)
        :: else -> idle = 0
        fi;
#endif
        if
        :: holder != 0 && !entered -> nobodys++; assert(nobodys <= OFFER)
        :: else -> nobodys = 0
        fi;
        if :: ttl == 1 -> holder = 0; entered = false; nobodys = 0 :: else fi;
        run_down(ttl); run_down(java_valid); run_down(java_ask_in);
        client_tick(0); client_tick(1);
        number_tick(0); number_tick(1); number_tick(2);
#if CLIENTS == 3
        client_tick(2); number_tick(3);
#endif
#if LOSSES
        unsettled_tick(0); unsettled_tick(1);
#ifndef BUG_NO_UNTIL
        run_down(copy_until);
        if :: copy != 0 && copy_until == 0 -> copy = 0; copy_of = 0 :: else fi
#endif
#endif
        }
    od
}

#define freeze(c) atomic { freezes < FREEZES && !frozen[c] && phase[c] == WAITS -> freezes++; frozen[c] = true }
#define wake(c) atomic { frozen[c] -> frozen[c] = false }
#define mark_before(c) before[c] = valid[c] > 0; cut[c] = phase[c] != DEAD
#define mark_grant(n) old_grant[n] = grant[n] > 0; slot[n] = 0

proctype faults() {
end:
    do
#if FREEZES
    :: freeze(0) :: wake(0)
    :: freeze(1) :: wake(1)
#if CLIENTS == 3
    :: freeze(2) :: wake(2)
#endif
#endif
#if FAILOVERS
    :: atomic { failovers < FAILOVERS ->
        failovers++;
        holder = 0; ttl = 0; entered = false; nobodys = 0; streak = 0; java_valid = 0;
        queue[0] = 0; queue[1] = 0; queue[2] = 0;
        mark_before(0); mark_before(1); mark_grant(0); mark_grant(1); mark_grant(2);
#if CLIENTS == 3
        queue[3] = 0; mark_before(2); mark_grant(3);
#endif
        }
#endif
#if FORCED
    :: atomic { forced < FORCED && holder != 0 && holder != J + 1 ->
        forced++;
        before[client_of(holder - 1)] = valid[client_of(holder - 1)] > 0; old_grant[holder - 1] = grant[holder - 1] > 0;
        holder = 0; ttl = 0; entered = false; nobodys = 0;
        publish() }
#endif
    :: false
    od
}

init {
    atomic {
        use[J] = USED;
        run client(0); run client(1); run time();
#if CLIENTS == 3
        run client(2);
#endif
#ifdef JAVA
        run java();
#endif
#if LOSSES
        run network();
#endif
        run faults()
    }
}

#ifdef JAVA
ltl java_served { [] (java_waits -> <> (java_valid > 0)) }
#else
ltl served { [] (phase[1] == WAITS -> <> (phase[1] != WAITS)) }
#endif
