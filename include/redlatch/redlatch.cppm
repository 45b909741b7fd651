// SPDX-License-Identifier: MIT
module;

// The module interface, for programs that say `import redlatch;`. It exports the public names of redlatch.hpp; tls.hpp,
// testing.hpp and asio.hpp are not part of it. Build it with the CMake target redlatch::module, which exists with
// -DREDLATCH_MODULE=ON or find_package(redlatch COMPONENTS module).
#include <redlatch/redlatch.hpp>

export module redlatch;

export namespace redlatch {

// Clients
using redlatch::all_replicas;
using redlatch::Client;
using redlatch::ClientOptions;
using redlatch::Credentials;
using redlatch::Event;
using redlatch::Histogram;
using redlatch::ObjectOptions;
using redlatch::PubSub;
using redlatch::Stats;
using redlatch::TlsOptions;
using redlatch::TlsVersion;
using redlatch::to_string;

// Locks
using redlatch::FairLock;
using redlatch::FencedLock;
using redlatch::Hold;
using redlatch::Lease;
using redlatch::MultiLock;
using redlatch::Mutex;
using redlatch::NonReentrantFairLock;
using redlatch::NonReentrantLock;
using redlatch::Owner;
using redlatch::ReadWriteLock;
using redlatch::ReadWriteOptions;
using redlatch::RedLock;
using redlatch::RedLockOptions;
using redlatch::RLock;
using redlatch::SpinLock;
using redlatch::SpinOptions;
using redlatch::StripedLock;

// Semaphores and latches
using redlatch::Barrier;
using redlatch::ConditionVariable;
using redlatch::CountDownLatch;
using redlatch::HeldLock;
using redlatch::Permit;
using redlatch::PermitExpirableSemaphore;
using redlatch::PermitId;
using redlatch::Permits;
using redlatch::SegmentedSemaphore;
using redlatch::SegmentPermit;
using redlatch::Semaphore;

// Around the lock
using redlatch::call_once;
using redlatch::FlightValue;
using redlatch::Leader;
using redlatch::LeaderElection;
using redlatch::OnceFlag;
using redlatch::OnceOptions;
using redlatch::SingleFlight;
using redlatch::Term;

// Operations
using redlatch::AnyExecutor;
using redlatch::Operation;

// What is on the server
using redlatch::BarrierInspection;
using redlatch::HeldPermit;
using redlatch::Holder;
using redlatch::Inspection;
using redlatch::LatchInspection;
using redlatch::MemberInspection;
using redlatch::Queued;
using redlatch::SemaphoreInspection;

// Errors and the version
using redlatch::errc;
using redlatch::Error;
using redlatch::error_category;
using redlatch::make_error_code;
using redlatch::version;
using redlatch::version_major;
using redlatch::version_minor;
using redlatch::version_patch;

// Transports
using redlatch::CallsAndWaits;
using redlatch::CallsSeveral;
using redlatch::Clock;
using redlatch::Command;
using redlatch::Completion;
using redlatch::HiredisTransport;
using redlatch::HostPort;
using redlatch::Instant;
using redlatch::LetsAttend;
using redlatch::LetsWatch;
using redlatch::Listener;
using redlatch::Milliseconds;
using redlatch::never;
using redlatch::Posts;
using redlatch::PostsSeveral;
using redlatch::Reply;
using redlatch::Routes;
using redlatch::Subscribes;
using redlatch::SurvivesFork;
using redlatch::TellsServer;
using redlatch::Tracks;
using redlatch::Transport;
using redlatch::Url;

}  // namespace redlatch
