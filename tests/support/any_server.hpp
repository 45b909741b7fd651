// SPDX-License-Identifier: MIT
#pragma once

// The cases of a source with the line `// ctest: in_memory` run twice: on a redis-server, and on the in-memory server of
// redlatch/testing.hpp. For that, the second program sees other types under the names of the first, so this header is the
// last that such a source includes. Cases that need a real server stand between `#ifndef REDLATCH_TEST_IN_MEMORY` and
// `#endif`.
#include "raw_redis.hpp"
#include "redis_server.hpp"

#ifdef REDLATCH_TEST_IN_MEMORY
#include "in_memory_redis.hpp"

#define RedisServer InMemoryRedisServer
#define RawRedis InMemoryRawRedis
#define Messages InMemoryMessages
#endif
