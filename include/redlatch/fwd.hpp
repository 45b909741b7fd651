// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/version.hpp"

// Declares the names of the public types, for headers that mention them only by reference or pointer.
namespace redlatch {
inline namespace REDLATCH_ABI {

class AnyExecutor;
class Barrier;
class Client;
class ConditionVariable;
class CountDownLatch;
class Error;
class FairLock;
class FencedLock;
class HeldLock;
class HiredisTransport;
class Hold;
class LeaderElection;
class Lease;
class Listener;
class MultiLock;
class Mutex;
class NonReentrantFairLock;
class NonReentrantLock;
class OnceFlag;
class Owner;
class Permit;
class PermitExpirableSemaphore;
class PermitId;
class Permits;
class RedLock;
class ReadWriteLock;
class RLock;
class SegmentedSemaphore;
class Semaphore;
class SingleFlight;
class SpinLock;
class StripedLock;
class Term;
struct BarrierInspection;
struct ClientOptions;
struct Command;
struct Credentials;
struct Event;
struct FlightValue;
struct HeldPermit;
struct Histogram;
struct Holder;
struct HostPort;
struct Inspection;
struct LatchInspection;
struct Leader;
struct MemberInspection;
struct ObjectOptions;
struct OnceOptions;
struct Queued;
struct ReadWriteOptions;
struct RedLockOptions;
struct Reply;
struct SegmentPermit;
struct SemaphoreInspection;
struct SpinOptions;
struct Stats;
struct TlsOptions;
struct Url;
enum class PubSub;
enum class TlsVersion;
enum class errc;
template <class R>
class Operation;

}  // namespace REDLATCH_ABI
}  // namespace redlatch
