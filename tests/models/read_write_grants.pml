// SPDX-License-Identifier: MIT
//
// Grants of the read-write lock: a release hands the lock to the next writer, or to all readers before the next writer.
//
// Models the queue, the look-out, the release and the acquire scripts of scripts/read_write_queue.hpp and those beside
// it on one server, and from lock/local_queue.hpp when waiters ask. What does not depend on the sides is in grants.pml
// alone: lost and late commands, a failover, a deleted key, receivers that a publish would count. How a grantee finds
// the end of its hold from the server's clock is in grants_clock.pml; here it knows what is left of a hold.
//
// The server is passive: a command is one step, with its reply. A client has one waiter, which reads or writes, and one
// place in the queue. WRITES and PRECEDES are bit masks of the clients that write, and of those whose waiting writer
// marks the lock, so that new readers stay out. Each wait has a number; the first client has two of them (AGAIN), so
// that it may wait again before the earlier number is given up. A number is reused when nothing carries it, which
// stands for "never again". A grant waits in a buffer until its client reads it. It may be lost with its connection or
// without a sign. Other messages are only lost while the client does not listen. Time is counted in ticks, which may
// come between any two steps: so every client may be paused anywhere. URGENT: time waits for clients that are due and
// not frozen, so that delays can be asserted.
//
// Java is a client of Redisson. It listens to the common channel, asks again when a lease ends that it saw, is not in
// the queue, and ignores the mark. JAVA: it reads (1), it writes (2), or it does now one and now the other (0). OLD: it
// is a client of an earlier version instead, which marks the lock as well. URGENT: when a release finds nobody in the
// queue, Java is not the last to ask.
//
// Bounds: CLIENTS clients; FULL, OFFER and SLOT ticks, MARK ticks of the mark; a waiter counts as asking STAND_IN ticks
// later, too; KEEP_OUT ticks for Java after LIMIT grants in a row (0: never); at most TRIES waiters in one script;
// DEATHS, LOUD (the receivers of a dead client are still counted), FREEZES, DEAF (lost grants), SILENT (those without a
// sign), LEAVES. COLD: two clients do not listen yet when they ask first. DOWNGRADE: the first client, which writes,
// also reads and stays a reader. At most one renewal of a hold.
//
// Properties:
//   - No write hold begins while another hold is believed in, and no read hold beside a writer that is another.
//   - While a client believes in a hold, the server has it for at least so long.
//   - No hold is written for Java, for a waiter without a receiver, or for a number that its client is done with.
//   - A release grants nothing to a reader behind a writer that it could grant the lock to.
//   - The server never holds a number for longer than the offer before its owner has entered.
//   - A number that left holds nothing, and has no place.
//   - The key lasts as long as the longest read hold.
//   - URGENT: the lock is not free for more than IDLE ticks while a client waits that is neither dead nor frozen. HEAD:
//     that counts only if the head of the queue is such a client.
//   - URGENT: no reader that is neither dead nor frozen waits for more than ASLEEP ticks behind readers alone, or
//     behind nobody, while readers have the lock and no writer has marked it. So readers enter together.
//   - Every waiting reader is served at last, and every waiting writer with precedence. Without precedence a writer is
//     served only when all readers leave: new ones enter beside those that are in (WRITER_STARVES).
//   - Java is served at last as a reader, and as a writer if our readers do not keep joining each other.
//
// Delays that the design accepts: one tick because a waiter asks soon anyway (STAND_IN); the turn of those who do not
// queue; with DEATHS up to half a lease more, because a reader that leaves tells those who wait only if the others have
// less than half of its time left. OLD: the head of the queue does not hear the release of a writer that has marked the
// lock and does not queue. So the lock may be free for STAND_IN ticks and one more.
//
// verify at length: safety -DLEAVES=1 -DDEAF=1 -DDEATHS=1
// verify: safety -DLEAVES=1 -DCOLD -DAGAIN -DLOUD=1 -DDEATHS=1 -DCLIENTS=2
// verify: safety -DWRITES=3 -DPRECEDES=1 -DLEAVES=1
// verify: safety -DWRITES=3 -DDOWNGRADE -DFULL=3 -DSLOT=4
// verify: safety -DJAVA=0 -DLIMIT=1 -DCLIENTS=2 -DSILENT=1
// verify: safety -DURGENT -DCLIENTS=4 -DTRIES=1
// verify: safety -DURGENT -DLEAVES=1 -DCLIENTS=4 -DWRITES=3
// verify: safety -DURGENT -DCOLD -DDEAF=1 -DLEAVES=1 -DAGAIN
// verify: safety -DURGENT -DPRECEDES=3 -DWRITES=3 -DLEAVES=1 -DCLIENTS=4
// verify: safety -DURGENT -DHEAD -DSILENT=1 -DFREEZES=1 -DCLIENTS=4 -DIDLE=1
// verify: safety -DURGENT -DFREEZES=1 -DCLIENTS=4 -DWRITES=3 -DIDLE=1
// verify at length: safety -DURGENT -DFREEZES=2 -DCLIENTS=4 -DWRITES=7 -DFULL=3 -DSLOT=4 -DIDLE=1
// verify at length: safety -DURGENT -DDOWNGRADE -DLEAVES=1 -DCLIENTS=4 -DIDLE=1
// verify: safety -DURGENT -DDEATHS=1 -DIDLE=2
// verify: safety -DURGENT -DDEATHS=2 -DLOUD=1 -DCLIENTS=4 -DIDLE=3
// verify: safety -DURGENT -DPRECEDES=1 -DDEATHS=1 -DMARK=4 -DIDLE=2
// verify: safety -DURGENT -DJAVA=0 -DIDLE=1
// verify: safety -DURGENT -DJAVA=0 -DLIMIT=1 -DWRITES=3 -DLEAVES=1 -DIDLE=1 -DASLEEP=1
// verify: safety -DURGENT -DJAVA=0 -DLIMIT=1 -DPRECEDES=1 -DLEAVES=1 -DIDLE=2 -DASLEEP=1
// verify: safety -DURGENT -DJAVA=2 -DOLD -DIDLE=2
// verify: liveness java_served -DURGENT -DJAVA=1 -DLIMIT=2 -DIDLE=1 -DASLEEP=1
// verify: liveness java_served -DURGENT -DJAVA=2 -DLIMIT=2 -DWRITES=3 -DIDLE=1 -DASLEEP=1
// verify: liveness served -DURGENT -DWHO=1
// verify: liveness served -DURGENT -DWHO=0 -DPRECEDES=1
// verify: liveness served -DURGENT -DWHO=2 -DPRECEDES=3 -DWRITES=3
// bug: BUG_VALID_FROM_RECEIPT safety    the offer counts from the receipt of the message
// bug: BUG_FULL_LEASE safety    a grant has the full lease, though its waiter may be frozen
// bug: BUG_WRITER_BESIDE_READERS safety -DURGENT -DWRITES=3    a writer is granted the lock beside readers
// bug: BUG_READERS_FIRST safety -DURGENT -DWRITES=3    readers behind a writer are granted the lock before it
// bug: BUG_FIRST_READER_ONLY safety -DURGENT    only the first reader is granted the lock, and the next are not told
// bug: BUG_LAST_READER_SILENT safety -DURGENT    the last reader that leaves grants nothing
// bug: BUG_LEAVE_KEEPS safety -DLEAVES=1    a number that leaves keeps what it was granted
// bug: BUG_HOLD_FIRST safety -DURGENT -DDEATHS=1 -DIDLE=2    a hold is written before the receivers are counted
// bug: BUG_NOBODY_ASKS safety -DURGENT -DFREEZES=1 -DCLIENTS=4 -DWRITES=3 -DIDLE=1    the end of a grant tells nobody
// bug: BUG_NO_STAND_IN safety -DURGENT -DFREEZES=2 -DCLIENTS=4 -DWRITES=7 -DFULL=3 -DSLOT=4 -DIDLE=1    one is told
// bug: BUG_SHORTER_SILENT safety -DURGENT -DDEATHS=1 -DIDLE=2    a reader that leaves tells nobody of the shorter lease
// bug: BUG_ENTRY_SILENT safety -DURGENT -DFREEZES=1 -DCLIENTS=4 -DWRITES=3 -DIDLE=1    a reader enters silently
// bug: BUG_DOWNGRADE_SILENT safety -DURGENT -DDOWNGRADE -DIDLE=1    a writer that becomes a reader tells nobody
// bug: BUG_GIVE_UP_SILENT safety -DURGENT -DLEAVES=1 -DCLIENTS=4 -DWRITES=3    a writer that gives up tells no readers
// bug: BUG_DEAF_AT_FIRST safety -DURGENT -DCOLD -DDEAF=1 -DLEAVES=1 -DAGAIN    it does not ask when it listens
// bug: BUG_MARK_OF_THE_DEAD safety -DURGENT -DPRECEDES=1 -DDEATHS=1 -DMARK=4 -DIDLE=2    the dead one's mark stays
// bug: BUG_GRANT_KEEPS_MARK safety -DURGENT -DPRECEDES=3 -DWRITES=3 -DLEAVES=1 -DCLIENTS=4    so does that of a grantee
// bug: BUG_FOREIGN_UNKNOWN safety -DURGENT -DJAVA=0 -DIDLE=1    nobody learns that only Java is left
// bug: BUG_NOT_LISTENING safety -DURGENT -DJAVA=0 -DIDLE=1    nobody listens to the common channel while Java holds
// bug: BUG_SUBSCRIBED_IN_SILENCE safety -DURGENT -DJAVA=0 -DIDLE=1    it does not ask when that subscription stands
// bug: BUG_WAITS_FOR_MARK safety -DURGENT -DJAVA=2 -DOLD -DIDLE=2    the head waits for the end of another's mark
// bug: BUG_NO_PLAIN liveness java_served -DURGENT -DJAVA=1 -DLIMIT=2 -DIDLE=1 -DASLEEP=1    no release is plain
// bug: BUG_NO_KEEP_OUT liveness java_served -DURGENT -DJAVA=1 -DLIMIT=2 -DIDLE=1 -DASLEEP=1    nobody keeps out
// bug: BUG_NO_MARK liveness served -DURGENT -DWHO=0 -DPRECEDES=1    readers do not yield to a mark
// bug: WRITER_STARVES liveness served -DURGENT -DWHO=0    no bug: what is not promised to a writer without precedence

#ifndef CLIENTS
#define CLIENTS 3
#endif
#ifndef WRITES
#define WRITES 1
#endif
#ifndef PRECEDES
#define PRECEDES 0
#endif
#ifndef FULL
#define FULL 4
#endif
#ifndef OFFER
#define OFFER 1
#endif
#ifndef SLOT
#define SLOT 5
#endif
#ifndef STAND_IN
#define STAND_IN 1
#endif
#ifndef MARK
#define MARK 2
#endif
#ifndef KEEP_OUT
#define KEEP_OUT 1
#endif
#ifndef LIMIT
#define LIMIT 0
#endif
#ifndef TRIES
#define TRIES 4
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
#ifndef IDLE
#define IDLE 0
#endif
#ifndef ASLEEP
#define ASLEEP 0
#endif
#define NUMBERS (CLIENTS + 1)
#define D NUMBERS        // the number under which the first client reads as well, if it writes
#define J (NUMBERS + 1)  // Java's number

#define client_of(n) (n < 2 -> 0 : n - 1)
#define is_writer(c) ((WRITES >> (c)) & 1)
#define precedes(c) ((PRECEDES >> (c)) & 1)

// --- the server -----------------------------------------------------------------------------------------------------

byte writer;              // the number + 1
byte reads[NUMBERS + 2];  // what is left of the read hold of a number
byte ttl;                 // of the key; 0: the lock is free
byte queue[4];            // clients + 1, the next one first
byte place[CLIENTS + 1];  // the number + 1 that the place is for
byte slot[CLIENTS];       // how long the place counts
byte asks[CLIENTS];       // when the client asks by itself, + 1, as far as the server knows; 0: it should have asked
byte mark, marker;        // what is left of the mark, and the client + 1 that set it
byte streak, turn;        // grants beside those who do not queue; for how long our waiters keep out

// --- the clients ----------------------------------------------------------------------------------------------------

mtype = { NOTHING, WAITS, HOLDS, DEAD };
mtype phase[CLIENTS] = NOTHING;
byte number[CLIENTS];
byte valid[CLIENTS];      // how long the hold is certain
byte ask_in[CLIENTS];     // when it asks again, if no message comes before
bool renewed[CLIENTS];
bool withdraws[CLIENTS];  // its mark is to be withdrawn
bool cut[CLIENTS];        // its subscription is broken, or not there yet
bool frozen[CLIENTS];
bool loud[CLIENTS];       // dead, but its receivers are counted
byte hears[CLIENTS];      // the common channel: 1 is to be subscribed to, 2 is subscribed to
byte also;                // for how long the first client reads under D

// The state of a number at its client.
#define DONE 0
#define USED 1
#define RELEASED 2        // its hold is to be released
#define UNWANTED 3        // its client does not know whether it has a hold or a place
#define LEFT 4            // its client is dead
byte use[NUMBERS + 1];
byte grant[NUMBERS];      // a grant in the buffer: what is left of it + 1

bool java_waits, java_news, java_writes;
bool java_first;          // ghost: the lock is free, nobody queues, and Java is not the last to hear of it
byte java_valid, java_ask_in;

byte unseen[NUMBERS];     // ghost: for how long a number has held without its owner's knowledge, + 1
byte idle, asleep;        // ghosts: see URGENT
byte deaths, freezes, deaf, silent, leaves;

// Of a command.
mtype = { ASK, RELEASE, GIVE_UP };
mtype command;
bool enters, waits, waits_for_foreign;        // its answer; if it waits, it asks again in `left`
byte left;
bool must_hand_on, must_publish, must_tell;   // it is told in how many ticks: `tell_in`
bool must_tell_readers, fair;
byte tell_in;
byte tries, next, first, found, i, longest, before, length, lasts;
bool is_done, others, is_behind, had_a_hold;

#define has_foreign (writer == J + 1 || reads[J] > 0)
#define waits_with(n) (phase[client_of(n)] == WAITS && number[client_of(n)] == n)
#define has_subscription(c) (!cut[c] && (phase[c] != DEAD || loud[c]))
#define is_new(n) (use[n] == DONE && writer != n + 1 && reads[n] == 0 && place[client_of(n)] != n + 1 && grant[n] == 0)

#define w(c) (is_writer(c) && valid[c] > 0)
#define r(c) (!is_writer(c) && valid[c] > 0)
#define java_w (java_writes && java_valid > 0)
#define java_r (!java_writes && java_valid > 0)
#if CLIENTS == 2
#define writers_in (w(0) + w(1) + java_w)
#define readers_in (r(0) + r(1) + java_r + (also > 0 && !w(0)))
#elif CLIENTS == 3
#define writers_in (w(0) + w(1) + w(2) + java_w)
#define readers_in (r(0) + r(1) + r(2) + java_r + (also > 0 && !w(0)))
#else
#define writers_in (w(0) + w(1) + w(2) + w(3) + java_w)
#define readers_in (r(0) + r(1) + r(2) + r(3) + java_r + (also > 0 && !w(0)))
#endif
#define expect_no_overlap assert(writers_in == 0 || writers_in == 1 && readers_in == 0)

#define raise(x, y) if :: x < (y) -> x = (y) :: else fi

// --- the queue ------------------------------------------------------------------------------------------------------

// Removes the place of a client.
inline drop(q) {
    if
    :: place[q] != 0 ->
        place[q] = 0; slot[q] = 0; asks[q] = 0;
        i = (queue[0] == q + 1 -> 0 : (queue[1] == q + 1 -> 1 : (queue[2] == q + 1 -> 2 : 3)));
        queue[0] = (i == 0 -> queue[1] : queue[0]);
        queue[1] = (i <= 1 -> queue[2] : queue[1]);
        queue[2] = (i <= 2 -> queue[3] : queue[2]);
        queue[3] = 0; i = 0
    :: else
    fi
}

inline append(q) {
    i = (queue[0] == 0 -> 0 : (queue[1] == 0 -> 1 : (queue[2] == 0 -> 2 : 3)));
    assert(queue[i] == 0);
    queue[i] = q + 1; i = 0
}

// The message "look": a client that hears it asks in `t`.
inline look(q, t) {
    if :: phase[q] == WAITS && !cut[q] && ask_in[q] > (t) -> ask_in[q] = t :: else fi
}

// Drops the first of the queue, which seems to be gone. If it is there after all, it asks.
inline turn_away(q) { drop(q); look(q, 0) }

#ifdef BUG_NO_STAND_IN
#define ASKING 1
#else
#define ASKING 2
#endif

#define is_asking(q, t) (asks[q] > 0 && asks[q] - 1 <= (t) + STAND_IN)

// Tells the head of the queue that a lease ends in `tell_in`, and the next one that it ends a little later. Who asks
// about then anyway is not told.
inline tell_head() {
    found = 0;
    do
    :: found == ASKING || queue[found] == 0 -> break
    :: found < ASKING && queue[found] != 0 ->
        first = queue[found] - 1;
        if
        :: slot[first] > 0 && is_asking(first, tell_in) -> found++
        :: slot[first] > 0 && !is_asking(first, tell_in) && has_subscription(first) ->
            left = tell_in + found * STAND_IN;
            asks[first] = left + 1;
            look(first, left);
            found++
        :: else -> turn_away(first)
        fi
    od;
    found = 0; first = 0; left = 0
}

// Tells the readers that they may enter, and writers with precedence to ask. `fair`: only the readers before the next
// writer.
inline tell_readers() {
    do
    :: found == TRIES || found == CLIENTS || queue[found] == 0 -> break
    :: found < TRIES && found < CLIENTS && queue[found] != 0 ->
        first = queue[found] - 1;
        is_behind = is_behind || fair && is_writer(first);
        if :: slot[first] > 0 && (precedes(first) || !is_writer(first) && !is_behind) -> look(first, 0) :: else fi;
        found++
    od;
    found = 0; first = 0; is_behind = false
}

// Somebody left while others hold the lock. Those who have to know are told.
inline tell_waiters() {
#ifndef BUG_FOREIGN_UNKNOWN
    // One of those who wait has to listen to the end of a hold that tells nobody in the queue.
    if :: has_foreign -> must_tell = true; tell_in = 0 :: else fi
#else
    skip
#endif
}

#define hears_all(c) (hears[c] == 2 && !cut[c] && phase[c] == WAITS)

inline wake_one(q) { if :: hears_all(q) -> ask_in[q] = 0 :: else fi }

// Publishes to the common channel.
inline publish() {
    java_news = java_waits;
    wake_one(0); wake_one(1);
#if CLIENTS > 2
    wake_one(2);
#endif
#if CLIENTS > 3
    wake_one(3);
#endif
    skip
}

#if CLIENTS == 2
#define is_listened_to (java_waits || hears_all(0) || hears_all(1))
#elif CLIENTS == 3
#define is_listened_to (java_waits || hears_all(0) || hears_all(1) || hears_all(2))
#else
#define is_listened_to (java_waits || hears_all(0) || hears_all(1) || hears_all(2) || hears_all(3))
#endif

// --- releasing ------------------------------------------------------------------------------------------------------

// Our waiters keep out for a while.
inline give_turn() {
    streak = 0;
#ifndef BUG_NO_KEEP_OUT
    turn = KEEP_OUT;
#endif
    do
    :: found == CLIENTS || queue[found] == 0 -> break
    :: found < CLIENTS && queue[found] != 0 -> first = queue[found] - 1; look(first, turn); found++
    od;
    found = 0; first = 0
}

// A writer that could be granted the lock.
#define is_writer_at(k) \
    (queue[k] != 0 && is_writer(queue[k] - 1) && slot[queue[k] - 1] > 0 && has_subscription(queue[k] - 1))

// Writes the hold of a waiter, and tells it.
inline grant_to(q) {
    next = q; first = place[q] - 1;
    assert(has_subscription(q));
    assert(use[first] != DONE);
    assert(is_writer(q) || !is_writer_at(0));
#ifdef BUG_FULL_LEASE
    length = FULL;
#else
    length = (slot[q] < OFFER -> slot[q] : OFFER);
#endif
    drop(q);
    if
    :: is_writer(q) ->
        assert(writers_in == 0 && readers_in == 0 && writer == 0 && ttl == 0);
        writer = first + 1; ttl = length;
#ifndef BUG_GRANT_KEEPS_MARK
        mark = 0; marker = 0
#endif
    :: else ->
        assert(writers_in == 0 && writer == 0);
        reads[first] = length; raise(ttl, length)
    fi;
    unseen[first] = 1; idle = 0;
    if
    :: grant[first] = length + 1
    :: deaf < DEAF -> deaf++; cut[q] = true
    :: silent < SILENT -> silent++
    fi;
    first = 0
}

#ifdef BUG_HOLD_FIRST
#define is_served(q) (slot[q] > 0)
#else
#define is_served(q) (slot[q] > 0 && has_subscription(q))
#endif

// The next in line: a writer with precedence that has marked the lock, or the first in the queue; 0 for none.
inline choose_next() {
    tell_in = 0;
    if
    :: lasts > 0 || mark == 0 -> next = queue[0]
    :: lasts == 0 && mark > 0 && place[marker - 1] != 0 -> next = marker
#ifndef BUG_WAITS_FOR_MARK
    :: lasts == 0 && mark > 0 && place[marker - 1] == 0 -> next = 0; tell_in = (mark < STAND_IN -> mark : STAND_IN)
#else
    :: lasts == 0 && mark > 0 && place[marker - 1] == 0 -> next = 0; tell_in = mark
#endif
    fi
#ifdef BUG_READERS_FIRST
    ;
    if
    :: next != 0 && is_writer(next - 1) && queue[1] != 0 && !is_writer(queue[1] - 1) -> next = queue[1]
    :: else
    fi
#endif
}

// Grants the free lock to the first waiters that listen, or notifies whoever listens. `before`: how long the released
// hold would have lasted.
inline hand_on() {
    assert(ttl == 0 && writer == 0);
    asleep = 0;
    do
    :: is_done || tries == TRIES -> break
    :: !is_done && tries < TRIES ->
        tries++;
        choose_next();
        if
        :: next == 0 -> is_done = true
        :: next != 0 && !is_served(next - 1) ->
            next--;
#ifndef BUG_MARK_OF_THE_DEAD
            // A writer that is gone keeps nobody out.
            if :: precedes(next) -> mark = 0; marker = 0 :: else fi;
#endif
            turn_away(next)
#ifndef BUG_WRITER_BESIDE_READERS
        :: next != 0 && is_served(next - 1) && lasts > 0 && is_writer(next - 1) -> is_done = true
        :: next != 0 && is_served(next - 1) && !(lasts > 0 && is_writer(next - 1)) ->
#else
        :: next != 0 && is_served(next - 1) ->
#endif
            next--;
            others = is_listened_to;
            if
#if LIMIT && !defined(BUG_NO_PLAIN)
            :: lasts == 0 && others && streak >= LIMIT -> is_done = true; must_publish = true; give_turn()
            :: !(lasts == 0 && others && streak >= LIMIT) ->
                if :: lasts == 0 && others -> streak++ :: else fi;
#else
            :: true ->
#endif
                grant_to(next);
                raise(lasts, length);
                if
                :: is_writer(next) -> is_done = true
                :: else ->
#ifdef BUG_FIRST_READER_ONLY
                    is_done = true
#else
                    must_tell_readers = true; fair = true
#endif
                fi
            fi
        fi
    od;
    if
    :: lasts > 0 ->
#ifndef BUG_NOBODY_ASKS
        must_tell = true; tell_in = lasts;
#endif
        // Readers of clients that do not queue may share the lock. A shorter lease than they know of, which none of the
        // queue asks about, is told to all, too.
        must_publish = others && (writer == 0 || lasts < before && queue[0] == 0)
    :: lasts == 0 && !must_publish -> must_tell = true; must_publish = true
    :: else  // a turn
    fi;
    tries = 0; lasts = 0; others = false; is_done = false; next = 0; length = 0
}

inline look_at(n) { raise(longest, reads[n]) }

// What is left of the longest read hold.
inline read_lease() {
    longest = 0;
    look_at(0); look_at(1); look_at(2);
#if CLIENTS > 2
    look_at(3);
#endif
#if CLIENTS > 3
    look_at(4);
#endif
    look_at(D); look_at(J)
}

inline forget_unseen(n) { if :: n < NUMBERS -> unseen[n] = 0 :: else fi }

// The release script.
inline server_releases(n) {
    read_lease();
    before = ttl;
    if
    :: reads[n] > 0 ->
        had_a_hold = true;
        reads[n] = 0; forget_unseen(n);
        read_lease();
        if
        :: writer == 0 && longest == 0 -> ttl = 0; must_publish = true;
#ifndef BUG_LAST_READER_SILENT
            must_hand_on = queue[0] != 0; must_publish = queue[0] == 0;
#endif
            skip
        :: writer == 0 && longest > 0 ->
            ttl = longest;
#ifndef BUG_SHORTER_SILENT
            // Those who wait rely on the earlier lease.
            if :: longest * 2 < before -> must_publish = true; must_tell = true; tell_in = longest :: else fi;
#endif
            tell_waiters()
        :: else
        fi
    :: reads[n] == 0 && writer == n + 1 ->
        had_a_hold = true;
        writer = 0; forget_unseen(n);
        ttl = longest;
        if
        :: longest == 0 -> must_hand_on = queue[0] != 0; must_publish = queue[0] == 0
        // The writer still reads.
        :: longest > 0 ->
            must_publish = true;
#ifndef BUG_DOWNGRADE_SILENT
            must_tell_readers = true; must_tell = true; tell_in = longest;
            tell_waiters()
#endif
        fi
    :: else
    fi;
    longest = 0
}

// The script of a number which its client is not certain of.
inline server_is_left(n, c) {
    if :: place[c] == n + 1 -> drop(c) :: else fi;
#ifndef BUG_LEAVE_KEEPS
    server_releases(n);
#endif
    if
#ifndef BUG_GIVE_UP_SILENT
    :: !had_a_hold && queue[0] != 0 && ttl > 0 ->
        must_tell_readers = writer == 0; must_tell = true; tell_in = ttl;
        tell_waiters()
#endif
    // A hold that expired has woken nobody.
    :: !had_a_hold && queue[0] != 0 && ttl == 0 && turn == 0 -> must_hand_on = true; before = 0
    :: !had_a_hold && queue[0] != 0 && ttl == 0 && turn > 0 -> must_tell = true; tell_in = turn
    :: else
    fi;
    had_a_hold = false;
    assert(writer != n + 1 && reads[n] == 0 && place[c] != n + 1)
}

// --- acquiring ------------------------------------------------------------------------------------------------------

#define wait_for(t, foreign) waits = true; left = t; waits_for_foreign = foreign

inline server_reads(n, c) {
    if
    :: reads[n] > 0 -> reads[n] = FULL; enters = true
#ifndef BUG_NO_MARK
    :: reads[n] == 0 && writer == 0 && mark > 0 -> wait_for(mark, true)
    :: reads[n] == 0 && writer == 0 && mark == 0 && ttl == 0 && turn > 0 -> wait_for(turn, false)
    :: reads[n] == 0 && writer == 0 && mark == 0 && !(ttl == 0 && turn > 0) ->
#else
    :: reads[n] == 0 && writer == 0 ->
#endif
        reads[n] = FULL; enters = true;
        // The readers behind it may enter, too.
        if
#ifndef BUG_ENTRY_SILENT
        :: place[c] == n + 1 || ttl == 0 -> must_tell_readers = true; must_tell = true; tell_in = FULL; tell_waiters()
#endif
        :: else
        fi;
        if :: place[c] == n + 1 -> drop(c) :: else fi
    :: reads[n] == 0 && writer != 0 -> wait_for(ttl, has_foreign)
    fi
}

inline server_writes(n, c) {
    if
    :: writer == n + 1 -> enters = true
    :: writer != 0 && writer != n + 1 -> wait_for(ttl, has_foreign)
    :: writer == 0 && ttl > 0 ->
        wait_for(ttl, has_foreign);
        // It asks again in time to renew the mark.
        if :: precedes(c) -> mark = MARK; marker = c + 1; left = (ttl < MARK / 2 -> ttl : MARK / 2) :: else fi
    :: writer == 0 && ttl == 0 && turn > 0 -> wait_for(turn, false)
    :: writer == 0 && ttl == 0 && turn == 0 ->
        writer = n + 1; mark = 0; marker = 0; enters = true;
        if :: place[c] == n + 1 -> drop(c) :: else fi;
        must_tell = true; tell_in = FULL
    fi
}

inline enter(n, c, lease) {
    phase[c] = HOLDS; valid[c] = lease; renewed[c] = false; unseen[n] = 0; ask_in[c] = 0; hears[c] = 0;
    idle = 0;
    expect_no_overlap
}

// Gives a waiter a place. It asks again in `left`.
inline wait(n, c) {
    if :: place[c] == 0 -> append(c) :: else fi;
    place[c] = n + 1; slot[c] = SLOT; asks[c] = left + 1;
    ask_in[c] = left;
#ifndef BUG_NOT_LISTENING
    hears[c] = (waits_for_foreign -> (hears[c] == 0 -> 1 : hears[c]) : 0);
#endif
    left = 0; waits = false; waits_for_foreign = false
}

// Executes `command` of the number `n`, in one step.
inline serve(n, c) {
    if
    :: command == ASK && is_writer(c) -> server_writes(n, c)
    :: command == ASK && !is_writer(c) -> server_reads(n, c)
    :: command == GIVE_UP -> server_is_left(n, c)
    :: command == RELEASE -> server_releases(n); had_a_hold = false
    fi;
    if :: waits -> wait(n, c) :: else fi;
    if :: enters -> raise(ttl, FULL); enter(n, c, FULL); enters = false :: else fi;
    if :: must_hand_on -> hand_on() :: else fi;
    if :: must_tell_readers -> tell_readers() :: else fi;
    if :: must_tell -> tell_head() :: else fi;
    if :: must_publish -> publish(); java_first = java_waits && ttl == 0 && queue[0] == 0 :: else fi;
    command = 0; before = 0; must_hand_on = false; must_tell_readers = false; fair = false;
    must_tell = false; tell_in = 0; must_publish = false
}

inline rest(c) {
    phase[c] = NOTHING; valid[c] = 0; ask_in[c] = 0; renewed[c] = false; hears[c] = 0; number[c] = 0
}

inline read_grant(n, c) {
    if
    :: phase[c] == WAITS && number[c] == n ->
        if
#ifdef BUG_VALID_FROM_RECEIPT
        :: true -> enter(n, c, OFFER)
#else
        :: grant[n] > 1 ->
            assert(writer == n + 1 || reads[n] > 0);
            enter(n, c, grant[n] - 1)
        :: else -> ask_in[c] = 0  // too late: it has no place any more
#endif
        fi
    :: else
    fi;
    grant[n] = 0
}

#define mine(c) (c == 0 -> 0 : c + 1)
#define is_left(n) (use[n] == UNWANTED || use[n] == RELEASED)
#ifdef AGAIN
#define has_grant(c) (grant[mine(c)] > 0 || c == 0 && grant[1] > 0)
#define has_left(c) (is_left(mine(c)) || c == 0 && is_left(1))
#define may_start(c) (is_new(mine(c)) || c == 0 && is_new(1))
#else
#define has_grant(c) (grant[mine(c)] > 0)
#define has_left(c) is_left(mine(c))
#define may_start(c) is_new(mine(c))
#endif
#define lives(c) (phase[c] != DEAD && !frozen[c])

#if defined(URGENT) && defined(JAVA)
#define must_let_java java_first
#else
#define must_let_java false
#endif

proctype client(byte c) {
    byte n;
    do
    :: atomic { phase[c] == NOTHING && !frozen[c] && may_start(c) && (c != 0 || also == 0) ->
        if
        :: is_new(mine(c)) -> number[c] = mine(c)
        :: !is_new(mine(c)) -> number[c] = 1
        fi;
        use[number[c]] = USED; phase[c] = WAITS; ask_in[c] = 0 }
    :: atomic {
        if
        :: phase[c] == WAITS && !frozen[c] && ask_in[c] == 0 && !must_let_java -> command = ASK; n = number[c]
        :: has_left(c) && !withdraws[c] && lives(c) ->
            if :: is_left(mine(c)) -> n = mine(c) :: else -> n = 1 fi;
            command = (use[n] == RELEASED -> RELEASE : GIVE_UP);
            use[n] = DONE
#ifdef DOWNGRADE
        :: c == 0 && use[D] == RELEASED && lives(0) -> use[D] = DONE; command = RELEASE; n = D
#endif
        fi;
        serve(n, c); n = 0 }
#if PRECEDES
    :: atomic { withdraws[c] && lives(c) ->
        withdraws[c] = false;
        if :: marker == c + 1 -> mark = 0; marker = 0; publish() :: else fi }
#endif
    :: atomic { phase[c] == WAITS && !frozen[c] && hears[c] == 1 ->
        hears[c] = 2;
#ifndef BUG_SUBSCRIBED_IN_SILENCE
        ask_in[c] = 0
#endif
        }
#if LEAVES
    :: atomic { phase[c] == WAITS && !frozen[c] && leaves < LEAVES ->
        leaves++; use[number[c]] = UNWANTED; withdraws[c] = precedes(c); rest(c) }
#endif
    :: atomic { cut[c] && lives(c) ->
        cut[c] = false;
#ifndef BUG_DEAF_AT_FIRST
        if :: phase[c] == WAITS -> ask_in[c] = 0 :: else fi;
#endif
        grant[mine(c)] = 0; if :: c == 0 -> grant[1] = 0 :: else fi }
    :: atomic { has_grant(c) && lives(c) ->
        if :: grant[mine(c)] > 0 -> n = mine(c) :: else -> n = 1 fi;
        read_grant(n, c); n = 0 }
    :: atomic { phase[c] == HOLDS && !frozen[c] && valid[c] > 0 && valid[c] < FULL && !renewed[c] ->
        n = number[c];
        if
        :: reads[n] > 0 -> reads[n] = FULL; raise(ttl, FULL); valid[c] = FULL; renewed[c] = true
        :: writer == n + 1 -> raise(ttl, FULL); valid[c] = FULL; renewed[c] = true
        :: else -> use[n] = UNWANTED; rest(c)
        fi;
        n = 0;
        expect_no_overlap }
#ifdef DOWNGRADE
    // The writer reads as well.
    :: atomic { c == 0 && is_writer(0) && phase[0] == HOLDS && !frozen[0] && valid[0] > 0 &&
            writer == number[0] + 1 && reads[D] == 0 && also == 0 && use[D] == DONE ->
        reads[D] = FULL; raise(ttl, FULL); also = FULL;
        expect_no_overlap }
    :: atomic { c == 0 && also > 0 && lives(0) -> also = 0; use[D] = RELEASED }
#endif
    :: atomic { phase[c] == HOLDS && !frozen[c] ->
        if
        :: valid[c] > 0 -> use[number[c]] = RELEASED
        :: valid[c] == 0 && is_writer(c) -> use[number[c]] = UNWANTED
        :: valid[c] == 0 && !is_writer(c) -> use[number[c]] = DONE
        fi;
        rest(c) }
#if DEATHS
    :: atomic { phase[c] != DEAD && deaths < DEATHS ->
        deaths++;
        if :: loud[c] = false :: LOUD -> loud[c] = true fi;
        use[mine(c)] = LEFT; grant[mine(c)] = 0;
        if :: c == 0 -> use[1] = LEFT; use[D] = LEFT; grant[1] = 0; also = 0 :: else fi;
        rest(c); cut[c] = false; frozen[c] = false; withdraws[c] = false; phase[c] = DEAD; break }
#endif
    od
}

// --- Java -----------------------------------------------------------------------------------------------------------

#ifdef JAVA
proctype java() {
    do
    :: atomic { java_valid == 0 && writer != J + 1 && reads[J] == 0 && (!java_waits || java_news || java_ask_in == 0) ->
        java_news = false; java_first = false;
        if
        :: !java_waits && JAVA != 2 -> java_writes = false
        :: !java_waits && JAVA != 1 -> java_writes = true
        :: java_waits
        fi;
        if
        :: java_writes && ttl == 0 ->
#ifdef OLD
            mark = 0; marker = 0;
#endif
            writer = J + 1; ttl = FULL; java_valid = FULL; java_waits = false; java_ask_in = 0; idle = 0
        #ifdef OLD
        :: !java_writes && writer == 0 && mark == 0 ->
#else
        :: !java_writes && writer == 0 ->
#endif
            reads[J] = FULL; raise(ttl, FULL); java_valid = FULL; java_waits = false; java_ask_in = 0; idle = 0
#ifdef OLD
        // A writer with precedence of an earlier version.
        :: java_writes && writer == 0 && ttl > 0 ->
            mark = MARK; marker = CLIENTS + 1;
            java_waits = true; java_ask_in = (ttl < MARK / 2 -> ttl : MARK / 2)
        :: !java_writes && writer == 0 && mark > 0 -> java_waits = true; java_ask_in = mark
#endif
        :: else -> java_waits = true; java_ask_in = ttl
        fi;
        expect_no_overlap }
    :: atomic { java_valid > 0 ->
        java_valid = 0;
        if
        :: writer == J + 1 -> writer = 0; ttl = 0; asleep = 0; publish()
        :: reads[J] > 0 ->
            reads[J] = 0; read_lease(); ttl = longest; longest = 0;
            if :: ttl == 0 -> asleep = 0; publish() :: else fi
        fi }
    od
}
#define java_is_due (java_waits && (java_news || java_ask_in == 0))
#else
#define java_is_due false
#endif

// --- time and faults ------------------------------------------------------------------------------------------------

#define run_down(x) if :: x > 0 -> x-- :: else fi
#define run_down_to_one(x) if :: x > 1 -> x-- :: else fi

#define is_due(c) (lives(c) && (cut[c] || has_grant(c) || has_left(c) || withdraws[c] || \
    c == 0 && use[D] == RELEASED || phase[c] == WAITS && (ask_in[c] == 0 || hears[c] == 1) || \
    phase[c] == HOLDS && valid[c] <= 1))
#define is_waiting(c) (phase[c] == WAITS && !frozen[c])
#if CLIENTS == 2
#define is_any_due (is_due(0) || is_due(1) || java_is_due)
#define is_any_waiting (is_waiting(0) || is_waiting(1))
#elif CLIENTS == 3
#define is_any_due (is_due(0) || is_due(1) || is_due(2) || java_is_due)
#define is_any_waiting (is_waiting(0) || is_waiting(1) || is_waiting(2))
#else
#define is_any_due (is_due(0) || is_due(1) || is_due(2) || is_due(3) || java_is_due)
#define is_any_waiting (is_waiting(0) || is_waiting(1) || is_waiting(2) || is_waiting(3))
#endif

#ifdef HEAD
#define is_counted (queue[0] != 0 && is_waiting(queue[0] - 1))
#else
#define is_counted true
#endif

// A waiting reader at this position has only readers before it.
#define is_reader_at(i) (queue[i] != 0 && !is_writer(queue[i] - 1))
#define sleeps_at(i) (queue[i] != 0 && is_waiting(queue[i] - 1))
#define is_asleep \
    (is_reader_at(0) && (sleeps_at(0) || is_reader_at(1) && (sleeps_at(1) || is_reader_at(2) && sleeps_at(2))))

#define is_backed(c) (valid[c] == 0 || is_writer(c) && writer == number[c] + 1 && ttl >= valid[c] || \
    !is_writer(c) && reads[number[c]] >= valid[c])

inline client_tick(c) {
    run_down(valid[c]); run_down(ask_in[c]); run_down(slot[c]); run_down(asks[c])
}

inline number_tick(n) {
    run_down(reads[n]); run_down_to_one(grant[n]);
    if
    :: unseen[n] > 0 ->
        assert(unseen[n] <= OFFER);
        if :: writer == n + 1 || reads[n] > 0 -> unseen[n] = unseen[n] + 1 :: else -> unseen[n] = 0 fi
    :: else
    fi
}

proctype time() {
    do
    :: atomic {
#ifdef URGENT
        !is_any_due;
        if
        :: ttl == 0 && is_any_waiting && is_counted -> idle++; assert(idle <= IDLE)
        :: else -> idle = 0
        fi;
        if
        :: ttl > 0 && writer == 0 && mark == 0 && is_asleep -> asleep++; assert(asleep <= ASLEEP)
        :: else -> asleep = 0
        fi;
#endif
        assert(is_backed(0) && is_backed(1) && reads[D] >= also);
#if CLIENTS > 2
        assert(is_backed(2));
#endif
#if CLIENTS > 3
        assert(is_backed(3));
#endif
        if :: ttl == 1 -> writer = 0 :: else fi;
        run_down(ttl); run_down(turn);
        run_down(mark); if :: mark == 0 -> marker = 0 :: else fi;
        run_down(also); run_down(reads[D]); run_down(reads[J]);
        run_down(java_valid); run_down(java_ask_in);
        client_tick(0); client_tick(1);
        number_tick(0); number_tick(1); number_tick(2);
#if CLIENTS > 2
        client_tick(2); number_tick(3);
#endif
#if CLIENTS > 3
        client_tick(3); number_tick(4);
#endif
        read_lease();
        assert(longest <= ttl && (writer != 0 || longest == ttl));
        longest = 0 }
    od
}

#define freeze(c) atomic { freezes < FREEZES && !frozen[c] && phase[c] == WAITS -> freezes++; frozen[c] = true }
#define wake(c) atomic { frozen[c] -> frozen[c] = false }

#if FREEZES
proctype faults() {
    do
    :: freeze(0) :: wake(0)
    :: freeze(1) :: wake(1)
#if CLIENTS > 2
    :: freeze(2) :: wake(2)
#endif
#if CLIENTS > 3
    :: freeze(3) :: wake(3)
#endif
    od
}
#endif

init {
    atomic {
#ifdef COLD
        cut[0] = true; cut[1] = true;
#endif
        run client(0); run client(1); run time();
#if CLIENTS > 2
        run client(2);
#endif
#if CLIENTS > 3
        run client(3);
#endif
#ifdef JAVA
        run java();
#endif
#if FREEZES
        run faults()
#endif
    }
}

#ifdef WHO
ltl served { [] (phase[WHO] == WAITS -> <> (phase[WHO] != WAITS)) }
#elif defined(JAVA)
ltl java_served { [] (java_waits -> <> (java_valid > 0)) }
#endif
