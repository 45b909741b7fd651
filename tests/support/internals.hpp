// SPDX-License-Identifier: MIT
#pragma once

// The whole library. In the compiled form the public headers do not lead to the parts behind them.
#include <redlatch/redlatch.hpp>

#ifdef REDLATCH_COMPILED
#include <redlatch/around/record_state.hpp>
#include <redlatch/base/names.hpp>
#include <redlatch/lock/lock_state.hpp>
#include <redlatch/lock/server_queue.hpp>
#include <redlatch/protocol/barrier.hpp>
#include <redlatch/protocol/condition_variable.hpp>
#include <redlatch/protocol/count_down_latch.hpp>
#include <redlatch/protocol/fenced_lock.hpp>
#include <redlatch/protocol/mutex.hpp>
#include <redlatch/protocol/read_write_lock.hpp>
#include <redlatch/protocol/rlock.hpp>
#include <redlatch/protocol/semaphore.hpp>
#include <redlatch/quorum/lock_member.hpp>
#include <redlatch/quorum/quorum_state.hpp>
#include <redlatch/redis/cluster.hpp>
#include <redlatch/redis/sentinel_deployment.hpp>
#include <redlatch/redis/standalone.hpp>
#include <redlatch/semaphore/permit_leases.hpp>
#include <redlatch/semaphore/registrations.hpp>
#include <redlatch/semaphore/synchronizer.hpp>
#include <redlatch/session/server_check.hpp>
#include <redlatch/session/session_handle.hpp>
#endif
