// SPDX-License-Identifier: MIT
//
// The marks by which a request of a semaphore or latch takes effect once, however late its copies arrive.
//
// Models scripts/request_marks.hpp, protocol/request_marks.hpp, idempotent_sender.hpp and request_deliveries.hpp:
//   - A client sends one request at a time in a lane, with growing numbers. All copies of it are wanted until the same
//     time, a window after the first sending.
//   - The server keeps the last request of the lane and its outcome, for a margin longer than it is wanted.
//   - A copy that finds a mark of its request, or of a later one, repeats that outcome. One that comes too late and
//     finds none changes nothing.
//   - A client without a reply sends the request again, or gives it up: then it takes back what the request took. That
//     overwrites the mark, so that neither a copy of the request nor of the taking back takes effect again.
//   - A reply that says "too late" proves that the request has had no effect, if its mark would still exist. Otherwise
//     the outcome is unknown, and reported as such.
//
// Time is counted in ticks. A request or its reply may be lost, and a request may arrive at any later time, when its
// sender has done other things.
//
// Bounds: one lane; REQUESTS requests, each of them sent SENDS times and taken back up to SENDS times; TICKS of time; a
// window of one tick and a margin of two.
//
// Properties: what the client believes of a request that it has settled is true, then and later. No request takes effect
// twice, nor is it taken back without an effect.
//
// verify: safety
// verify: safety -DREQUESTS=1 -DSENDS=3 -DTICKS=7
// bug: BUG_NO_WINDOW safety              a request takes effect however late it comes
// bug: BUG_SHORT_MARK safety             the mark expires while the request is wanted
// bug: BUG_LONGER_WANTED safety          a copy is wanted for longer than the first one
// bug: BUG_NEW_NUMBER safety             a resend is a new request
// bug: BUG_NO_VOID safety                taking back leaves no mark if the request had not come
// bug: BUG_MARK_KEPT safety              taking back does not overwrite the mark
// bug: BUG_UNKNOWN_IS_NO safety          a request that came too late counts as without effect, mark or not

#ifndef REQUESTS
#define REQUESTS 2
#endif
#ifndef SENDS
#define SENDS 2
#endif
#ifndef TICKS
#define TICKS 5
#endif
#define WINDOW 1
#define MARGIN 2
#define COPIES 8  // at least REQUESTS * SENDS * 2

// --- the server -----------------------------------------------------------------------------------------------------

byte now;
byte mark_number;   // the last request of the lane; 0: there is no mark
bit mark_outcome;   // whether it took something
byte mark_ends;
short effect[REQUESTS];  // how often a request of the program has taken something, less how often that was taken back

// --- the network: copies that arrive later ----------------------------------------------------------------------------

typedef Copy {
    bit under_way;
    bit takes_back;
    byte what;    // the request of the program
    byte number;  // in the lane
    byte until;
}
Copy copies[COPIES];
byte copies_so_far;

// --- the client -----------------------------------------------------------------------------------------------------

mtype = {open, done, not_done, unknown};
mtype belief[REQUESTS];

// The reply to a copy.
mtype = {took, nothing, too_late};
mtype reply;

inline leave_mark(mark_of, took_something, wanted) {
    mark_number = mark_of;
    mark_outcome = took_something;
#ifdef BUG_SHORT_MARK
    mark_ends = now;
#else
    if
    :: mark_ends < wanted + MARGIN -> mark_ends = wanted + MARGIN
    :: else
    fi
#endif
}

#ifdef BUG_NO_WINDOW
#define IS_LATE(until_) false
#else
#define IS_LATE(until_) (now > until_)
#endif

// What the scripts do with a copy.
inline carry_out(takes_back_, what_, number_, until_) {
    if
    :: !takes_back_ && mark_number >= number_ ->
        reply = (mark_outcome -> took : nothing)
    :: !takes_back_ && mark_number < number_ && IS_LATE(until_) -> reply = too_late
    :: !takes_back_ && mark_number < number_ && !IS_LATE(until_) ->
        effect[what_]++;
        leave_mark(number_, 1, until_);
        reply = took
    :: takes_back_ && mark_number == number_ ->
        if
        :: mark_outcome ->
            effect[what_]--;
#ifndef BUG_MARK_KEPT
            leave_mark(number_, 0, until_)
#endif
        :: else
        fi;
        reply = nothing
    :: takes_back_ && mark_number > number_ -> reply = nothing
    :: takes_back_ && mark_number < number_ && now > until_ -> reply = too_late
    :: takes_back_ && mark_number < number_ && now <= until_ ->
#ifndef BUG_NO_VOID
        leave_mark(number_, 0, until_);
#endif
        reply = nothing
    fi;
    check()
}

inline check() {
    for (check_what : 0 .. REQUESTS - 1) {
        assert(effect[check_what] == 0 || effect[check_what] == 1);
        assert(belief[check_what] != done || effect[check_what] == 1);
        assert(belief[check_what] != not_done || effect[check_what] == 0)
    };
    check_what = 0
}

// Sends a copy. It arrives at once or later, and the sender gets the reply or not.
inline send(takes_back_) {
    has_reply = false;
    if
    :: carry_out(takes_back_, what, number, until); has_reply = true
    :: carry_out(takes_back_, what, number, until); has_reply = false
    :: copies[copies_so_far].under_way = 1;
       copies[copies_so_far].takes_back = takes_back_;
       copies[copies_so_far].what = what;
       copies[copies_so_far].number = number;
       copies[copies_so_far].until = until;
       copies_so_far++
    fi;
    sends++
}

// Reads a reply "too late".
inline note_too_late() {
#ifdef BUG_UNKNOWN_IS_NO
    belief[what] = not_done
#else
    belief[what] = (may_be_done && now > until + MARGIN -> unknown : not_done)
#endif
}

active proctype Client() {
    byte what, number, until, sends, check_what;
    bool has_reply, may_be_done, gives_up;
    for (check_what : 0 .. REQUESTS - 1) { belief[check_what] = open };
    check_what = 0;
    do
    :: what < REQUESTS ->
        atomic {
            number++;
            until = now + WINDOW;
            sends = 0;
            may_be_done = false;
            gives_up = false
        };
        do
        :: atomic {
            belief[what] == open && !gives_up && sends < SENDS ->
#ifdef BUG_LONGER_WANTED
            until = now + WINDOW;
#endif
            send(false);
            if
            :: !has_reply ->
                may_be_done = true;
#ifdef BUG_NEW_NUMBER
                number++
#endif
            :: has_reply && reply == took -> belief[what] = done
            :: has_reply && reply == nothing -> belief[what] = not_done
            :: has_reply && reply == too_late -> note_too_late()
            fi;
            check()
           }
        :: atomic { belief[what] == open && !gives_up && may_be_done -> gives_up = true; sends = 0 }
        :: atomic {
            belief[what] == open && gives_up && sends < SENDS ->
            send(true);
            if
            :: !has_reply
            :: has_reply && reply == nothing -> belief[what] = not_done
            :: has_reply && reply == too_late -> note_too_late()
            fi;
            check()
           }
        :: belief[what] != open -> break
        :: belief[what] == open && gives_up && sends == SENDS -> goto end_unsettled
        od;
        what++
    :: else -> break
    od;
end_unsettled:
    skip
}

inline arrive(i) {
    atomic {
        copies[i].under_way ->
        copies[i].under_way = 0;
        takes_back = copies[i].takes_back;
        what = copies[i].what;
        number = copies[i].number;
        until = copies[i].until;
        copies[i].takes_back = 0;
        copies[i].what = 0;
        copies[i].number = 0;
        copies[i].until = 0;
        carry_out(takes_back, what, number, until);
        takes_back = 0;
        what = 0;
        number = 0;
        until = 0
    }
}

active proctype Network() {
    byte what, number, until, check_what;
    bit takes_back;
end:
    do
    :: arrive(0)
    :: arrive(1)
    :: arrive(2)
    :: arrive(3)
    :: arrive(4)
    :: arrive(5)
    :: arrive(6)
    :: arrive(7)
    od
}

active proctype Time() {
    do
    :: atomic {
        now < TICKS ->
        now++;
        if
        :: mark_number != 0 && now > mark_ends -> mark_number = 0; mark_outcome = 0; mark_ends = 0
        :: else
        fi
       }
    :: now == TICKS -> break
    od
}
