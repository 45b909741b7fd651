// SPDX-License-Identifier: MIT
//
// The read-write lock on one server: modes, leases of single readers, the mark of a waiting writer, downgrade.
//
// Models scripts/read_write_lock.hpp, and from lock/local_queue.hpp when waiters ask again.
//
// A command is one step, including its reply. So all holds of an owner are the same (lease_lock.pml models what may
// happen in between, and the number of each hold that protects against it). Owners 0 and 1 read, 2 and 3 write. Owner 3
// also acquires the read side before it releases the write side. A hold ends by a release, by its lease, or with its
// owner, which may die.
//
// Bounds: 2 readers and WRITERS writers that return indefinitely; RENEWALS renewals for each hold; DEATHS owners that
// die; LEASE and MARK ticks.
//
// Properties:
//   - A writer is never together with another owner, except for its own read hold.
//   - The key outlives every read hold.
//   - When a reader's lease or life ends, the other reader's hold stays.
//   - An owner that sleeps although it could enter has a message, or asks again soon.
//   - With precedence for writers (time waits for those that are due) no writer starves.
//
// verify: safety
// verify: liveness writer_enters -DWRITERS=1 -DDEATHS=0 -DURGENT
// bug: BUG_SHORTENED safety                 a second reader's acquire sets the lease of the key to its own
// bug: BUG_ONE_ENDS_ALL safety              a reader that releases deletes the key
// bug: BUG_STALE_READER safety              a writer checks the TTL of the key instead of the leases of the readers
// bug: BUG_SILENT_DOWNGRADE safety          a downgrade wakes no waiter
// bug: BUG_READ_BESIDE_WRITER safety        any reader may join a writer
// bug: BUG_NO_MARK liveness writer_enters -DWRITERS=1 -DDEATHS=0 -DURGENT    readers do not yield

#ifndef LEASE
#define LEASE 3
#endif
#ifndef MARK
#define MARK 2
#endif
#ifndef RENEWALS
#define RENEWALS 1
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef WRITERS
#define WRITERS 2
#endif

mtype = { READ, WRITE };

// --- the server -----------------------------------------------------------------------------------------------------

mtype mode;         // 0: the key is absent
byte ttl;           // of the key
bool reads[4];      // the owner's field as a reader
byte timeout_[4];   // the timeout key of its hold
byte writer;        // the owner that has the writer's field, + 1
byte mark;          // the remaining time of the mark of a waiting writer

// --- the owners -----------------------------------------------------------------------------------------------------

byte read_valid[4];
byte write_valid[4];
bool sleeps[4];
bool news[4];
byte ask_again[4];
byte deaths;

#define raise(x, y) if :: x < (y) -> x = (y) :: else fi

inline look_at(o) {
    if
    :: timeout_[o] == 0 -> reads[o] = false
    :: timeout_[o] > 0 && reads[o] -> raise(left, timeout_[o])
    :: else
    fi
}

// read_lease: `left` is the remaining lease of the longest read hold, 0 if there is none.
inline read_lease() {
    left = 0; look_at(0); look_at(1); look_at(2); look_at(3)
}

inline delete_key() {
    mode = 0; ttl = 0; writer = 0;
    reads[0] = false; reads[1] = false; reads[2] = false; reads[3] = false
}

inline publish() {
    news[0] = sleeps[0]; news[1] = sleeps[1]; news[2] = sleeps[2]; news[3] = sleeps[3]
}

inline blocked(o, told) { sleeps[o] = true; news[o] = false; ask_again[o] = told + 1 }

inline awake(o) { sleeps[o] = false; news[o] = false; ask_again[o] = 0 }

inline expect_alone(o) {
    assert(write_valid[0] + write_valid[1] + write_valid[2] + write_valid[3] == write_valid[o])
}
inline expect_no_reader_but(o) {
    assert(read_valid[0] + read_valid[1] + read_valid[2] + read_valid[3] == read_valid[o])
}

inline read_acquire(o) {
    if
#ifndef BUG_NO_MARK
    :: !reads[o] && mode != WRITE && mark > 0 -> blocked(o, mark)
#endif
#ifndef BUG_READ_BESIDE_WRITER
    :: !reads[o] && mode == WRITE && writer != o + 1 -> blocked(o, ttl)
#endif
    :: else ->
        timeout_[o] = LEASE; reads[o] = true;
        if :: mode == 0 -> mode = READ :: else fi;
#ifdef BUG_SHORTENED
        ttl = LEASE - 1;
#else
        raise(ttl, LEASE);
#endif
        awake(o);
        expect_alone(o);
        read_valid[o] = LEASE
    fi
}

inline read_release(o) {
    read_valid[o] = 0;
    if
    :: mode != 0 && reads[o] ->
        timeout_[o] = 0; reads[o] = false;
        if
        :: mode == WRITE
        :: mode == READ ->
            read_lease();
#ifdef BUG_ONE_ENDS_ALL
            left = 0;
#endif
            if
            :: left == 0 -> delete_key(); publish()
            :: else ->
                if :: left * 2 < ttl -> publish() :: else fi;
                ttl = left
            fi;
            left = 0
        fi
    :: else
    fi
}

inline write_acquire(o) {
    if
    :: mode == WRITE && writer == o + 1 -> raise(ttl, LEASE); awake(o)
    :: mode == WRITE && writer != o + 1 -> blocked(o, ttl)
    :: else ->
        if :: mode == READ -> read_lease() :: else fi;
#ifdef BUG_STALE_READER
        if :: left > 1 :: else -> left = 0 fi;
#endif
        if
        :: left > 0 -> mark = MARK; if :: left > MARK / 2 -> left = MARK / 2 :: else fi; blocked(o, left - 1)
        :: else ->
            delete_key();
            mode = WRITE; writer = o + 1; ttl = LEASE; mark = 0;
            awake(o);
            expect_alone(o); expect_no_reader_but(o);
            write_valid[o] = LEASE
        fi;
        left = 0
    fi
}

inline write_release(o) {
    write_valid[o] = 0;
    if
    :: mode == WRITE && writer == o + 1 ->
        read_lease();
        if
        :: left == 0 -> delete_key(); publish()
        :: else ->
            ttl = left; writer = 0; mode = READ;
#ifndef BUG_SILENT_DOWNGRADE
            publish()
#endif
        fi;
        left = 0
    :: else
    fi
}

inline read_renew(o) {
    if
    :: mode != 0 && reads[o] && timeout_[o] > 0 ->
        timeout_[o] = LEASE; raise(ttl, LEASE); read_valid[o] = LEASE
    :: else -> read_valid[o] = 0
    fi
}

#define due(o) (!sleeps[o] || news[o] || ask_again[o] == 0)

proctype reader(byte o) {
    byte left, renewals;
end:
    do
    :: atomic { due(o) -> read_acquire(o); if :: read_valid[o] == 0 -> goto next :: else fi }
        do
        :: atomic { renewals < RENEWALS && read_valid[o] > 0 -> renewals++; read_renew(o) }
        :: atomic { renewals = 0; read_release(o); break }
        :: atomic { deaths < DEATHS -> deaths++; read_valid[o] = 0; goto dead }
        od;
next:   skip
    od;
dead: skip
}

proctype writes(byte o) {
    byte left, renewals;
end:
    do
    :: atomic { due(o) -> write_acquire(o); if :: write_valid[o] == 0 -> goto next :: else fi }
        do
        :: atomic { renewals < RENEWALS && write_valid[o] > 0 ->
            renewals++;
            if :: mode == WRITE && writer == o + 1 -> raise(ttl, LEASE); write_valid[o] = LEASE :: else -> write_valid[o] = 0 fi }
        // Downgrade.
        :: atomic { o == 3 && write_valid[o] > 0 && read_valid[o] == 0 -> read_acquire(o) }
        :: atomic { renewals = 0; write_release(o); break }
        :: atomic { deaths < DEATHS -> deaths++; write_valid[o] = 0; read_valid[o] = 0; goto dead }
        od;
        atomic { if :: read_valid[o] > 0 -> read_release(o) :: else fi };
next:   skip
    od;
dead: skip
}

// --- time -----------------------------------------------------------------------------------------------------------

#define run_down(x) if :: x > 0 -> x-- :: else fi
#define owner_time(o) run_down(timeout_[o]); run_down(read_valid[o]); run_down(write_valid[o]); run_down(ask_again[o])

#define may_read(o) (mode == 0 && mark == 0 || mode == READ && mark == 0)
// Sleeps beside an open lock, and nothing wakes it soon.
#define forgotten(o) (sleeps[o] && !news[o] && ask_again[o] > 1 && may_read(o))

#define outlives_key(o) (reads[o] && timeout_[o] > ttl)
#define served(o) (!sleeps[o] || !news[o] && ask_again[o] > 0)
#define due_is_served (served(0) && served(1) && served(2))

proctype time() {
end:
    do
    :: atomic {
#ifdef URGENT
        due_is_served;
#endif
        if :: ttl == 1 -> delete_key() :: else fi;
        run_down(ttl); run_down(mark);
        owner_time(0); owner_time(1); owner_time(2); owner_time(3);
        assert(!outlives_key(0) && !outlives_key(1) && !outlives_key(2) && !outlives_key(3));
        assert(!forgotten(0) && !forgotten(1)) }
    od
}

init {
    atomic {
        run reader(0); run reader(1); run writes(2); run time();
#if WRITERS == 2
        run writes(3)
#endif
    }
}

ltl writer_enters { [] (sleeps[2] -> <> (write_valid[2] > 0)) }
