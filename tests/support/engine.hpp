// SPDX-License-Identifier: MIT
#pragma once

// The parts of the library with coroutines, for the tests that call them. See internals.hpp.
#include "support/internals.hpp"

#ifdef REDLATCH_COMPILED
#include <redlatch/around/record_state.hpp>
#include <redlatch/lock/lock_state.hpp>
#include <redlatch/lock/server_queue.hpp>
#include <redlatch/quorum/lock_member.hpp>
#include <redlatch/quorum/quorum_state.hpp>
#include <redlatch/semaphore/permit_leases.hpp>
#include <redlatch/semaphore/registrations.hpp>
#include <redlatch/semaphore/synchronizer.hpp>
#endif
