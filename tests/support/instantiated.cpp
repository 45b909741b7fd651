// SPDX-License-Identifier: MIT
#include "instantiated.hpp"

template class redlatch::Session<redlatch::HiredisTransport>;
template class redlatch::SessionHandle<redlatch::HiredisTransport>;
template class redlatch::Client<redlatch::HiredisTransport>;
template class redlatch::LeaseManager<redlatch::HiredisTransport, redlatch::RLockProtocol>;
template class redlatch::LockState<redlatch::HiredisTransport, redlatch::RLockProtocol>;
template class redlatch::LockState<redlatch::HiredisTransport, redlatch::FencedProtocol>;
template class redlatch::RLock<redlatch::HiredisTransport>;
template class redlatch::SpinLock<redlatch::HiredisTransport>;
template class redlatch::FencedLock<redlatch::HiredisTransport>;
template class redlatch::LockState<redlatch::HiredisTransport, redlatch::MutexProtocol>;
template class redlatch::Mutex<redlatch::HiredisTransport>;
template class redlatch::Synchronizer<redlatch::HiredisTransport, redlatch::LatchProtocol>;
template class redlatch::CountDownLatch<redlatch::HiredisTransport>;
template class redlatch::Synchronizer<redlatch::HiredisTransport, redlatch::SemaphoreProtocol>;
template class redlatch::Semaphore<redlatch::HiredisTransport>;
template class redlatch::Synchronizer<redlatch::HiredisTransport, redlatch::PermitProtocol>;
template class redlatch::PermitLeases<redlatch::HiredisTransport>;
template class redlatch::PermitExpirableSemaphore<redlatch::HiredisTransport>;
template class redlatch::Permit<redlatch::HiredisTransport>;
template class redlatch::LockState<redlatch::HiredisTransport, redlatch::ReadProtocol>;
template class redlatch::LockState<redlatch::HiredisTransport, redlatch::WriteProtocol>;
template class redlatch::ReadWriteLock<redlatch::HiredisTransport>;
template class redlatch::LeaseManager<redlatch::HiredisTransport, redlatch::FairProtocol>;
template class redlatch::FairLockState<redlatch::HiredisTransport>;
template class redlatch::FairLock<redlatch::HiredisTransport>;
template class redlatch::QuorumApi<redlatch::MultiLock>;
template class redlatch::QuorumApi<redlatch::RedLock>;
template class redlatch::QuorumMemberOf<redlatch::RLock<redlatch::HiredisTransport>>;
// For the transport of the unit tests.
template class redlatch::Session<redlatch::test::ScriptedTransport>;
template class redlatch::SessionHandle<redlatch::test::ScriptedTransport>;
template class redlatch::LeaseManager<redlatch::test::ScriptedTransport, redlatch::RLockProtocol>;
template class redlatch::LockState<redlatch::test::ScriptedTransport, redlatch::RLockProtocol>;
template class redlatch::RLock<redlatch::test::ScriptedTransport>;
// For functions that tests run in threads.
template std::future<void> redlatch::test::start_erased(std::function<void()>);
template std::future<bool> redlatch::test::start_erased(std::function<bool()>);
template std::future<std::error_code> redlatch::test::start_erased(std::function<std::error_code()>);
