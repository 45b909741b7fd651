// SPDX-License-Identifier: MIT
#pragma once

// The parts of the library. In the compiled form the public headers do not lead to them. Those with coroutines are in
// engine.hpp: g++ compiles the body of every coroutine that a source can see, whether it is called or not.
#include "support/protocols.hpp"

#ifdef REDLATCH_COMPILED
#include <redlatch/lock/acquire_attempt.hpp>
#include <redlatch/lock/leases.hpp>
#include <redlatch/lock/lock_queue.hpp>
#include <redlatch/lock/turn_queue.hpp>
#include <redlatch/lock/watched_key.hpp>
#include <redlatch/quorum/member.hpp>
#include <redlatch/quorum/round.hpp>
#include <redlatch/redis/cluster.hpp>
#include <redlatch/redis/connection.hpp>
#include <redlatch/redis/sentinel_deployment.hpp>
#include <redlatch/redis/standalone.hpp>
#include <redlatch/semaphore/pending_requests.hpp>
#include <redlatch/semaphore/permit_records.hpp>
#include <redlatch/semaphore/request_queue.hpp>
#include <redlatch/semaphore/upkeep.hpp>
#include <redlatch/session/server_check.hpp>
#include <redlatch/session/session_handle.hpp>
#endif
