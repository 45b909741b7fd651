// SPDX-License-Identifier: MIT
#pragma once

// The definitions of the library. Include this header in exactly one source file of a program whose files all define
// REDLATCH_COMPILED. With CMake, link to redlatch::compiled instead, which does both. Without REDLATCH_COMPILED this
// header adds nothing: each file has the definitions already.
#include "redlatch/client.ipp"
#include "redlatch/count_down_latch.ipp"
#include "redlatch/fair_lock.ipp"
#include "redlatch/fenced_lock.ipp"
#include "redlatch/lock/hold.ipp"
#include "redlatch/lock/named_lock.ipp"
#include "redlatch/multi_lock.ipp"
#include "redlatch/mutex.ipp"
#include "redlatch/non_reentrant_fair_lock.ipp"
#include "redlatch/non_reentrant_lock.ipp"
#include "redlatch/permit_expirable_semaphore.ipp"
#include "redlatch/quorum/quorum_api.ipp"
#include "redlatch/read_write_lock.ipp"
#include "redlatch/red_lock.ipp"
#include "redlatch/redis/hiredis_transport.ipp"
#include "redlatch/rlock.ipp"
#include "redlatch/semaphore.ipp"
#include "redlatch/session/continuations.ipp"
#include "redlatch/session/notifier.ipp"
#include "redlatch/session/state_handle.ipp"
#include "redlatch/session/under_way.ipp"
#include "redlatch/spin_lock.ipp"
