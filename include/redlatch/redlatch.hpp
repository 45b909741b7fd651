// SPDX-License-Identifier: MIT
#pragma once

// Includes every primitive.
#include "redlatch/barrier.hpp"
#include "redlatch/base/version.hpp"
#include "redlatch/client.hpp"
#include "redlatch/condition_variable.hpp"
#include "redlatch/count_down_latch.hpp"
#include "redlatch/fair_lock.hpp"
#include "redlatch/fenced_lock.hpp"
#include "redlatch/fwd.hpp"
#include "redlatch/inspection.hpp"
#include "redlatch/leader_election.hpp"
#include "redlatch/multi_lock.hpp"
#include "redlatch/mutex.hpp"
#include "redlatch/non_reentrant_fair_lock.hpp"
#include "redlatch/non_reentrant_lock.hpp"
#include "redlatch/once_flag.hpp"
#include "redlatch/permit_expirable_semaphore.hpp"
#include "redlatch/read_write_lock.hpp"
#include "redlatch/red_lock.hpp"
#include "redlatch/rlock.hpp"
#include "redlatch/segmented_semaphore.hpp"
#include "redlatch/semaphore.hpp"
#include "redlatch/single_flight.hpp"
#include "redlatch/spin_lock.hpp"
#include "redlatch/striped_lock.hpp"

#if __has_include(<hiredis/read.h>)
#include "redlatch/redis/hiredis_transport.hpp"
#endif
