// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/version.hpp"

// Declares the names of the public types, for headers that mention them only by reference or pointer.
namespace redlatch {
inline namespace REDLATCH_ABI {

class Client;
class CountDownLatch;
class Error;
class FairLock;
class FencedLock;
class HiredisTransport;
class Hold;
class Lease;
class MultiLock;
class Mutex;
class NonReentrantFairLock;
class NonReentrantLock;
class Owner;
class Permit;
class PermitExpirableSemaphore;
class PermitId;
class RedLock;
class ReadWriteLock;
class RLock;
class Semaphore;
class SpinLock;
struct ClientOptions;
struct Credentials;
struct Event;
struct HeldPermit;
struct Histogram;
struct Holder;
struct Inspection;
struct LatchInspection;
struct MemberInspection;
struct ObjectOptions;
struct Queued;
struct ReadWriteOptions;
struct RedLockOptions;
struct SemaphoreInspection;
struct SpinOptions;
struct Stats;
struct TlsOptions;
enum class PubSub;
enum class errc;

}  // namespace REDLATCH_ABI
}  // namespace redlatch
