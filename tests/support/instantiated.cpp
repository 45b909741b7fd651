// SPDX-License-Identifier: MIT
#include "instantiated.hpp"

template class redlatch::Session<redlatch::HiredisTransport>;
template class redlatch::SessionHandle<redlatch::HiredisTransport>;
template class redlatch::BasicClient<redlatch::HiredisTransport>;
template class redlatch::LockState<redlatch::HiredisTransport, redlatch::RLockProtocol>;
template class redlatch::LockState<redlatch::HiredisTransport, redlatch::FencedProtocol>;
template class redlatch::BasicRLock<redlatch::HiredisTransport>;
template class redlatch::BasicSpinLock<redlatch::HiredisTransport>;
template class redlatch::BasicFencedLock<redlatch::HiredisTransport>;
template class redlatch::LockState<redlatch::HiredisTransport, redlatch::MutexProtocol>;
template class redlatch::BasicMutex<redlatch::HiredisTransport>;
template class redlatch::Synchronizer<redlatch::HiredisTransport, redlatch::LatchProtocol>;
template class redlatch::BasicCountDownLatch<redlatch::HiredisTransport>;
template class redlatch::Synchronizer<redlatch::HiredisTransport, redlatch::SemaphoreProtocol>;
template class redlatch::BasicSemaphore<redlatch::HiredisTransport>;
template class redlatch::Synchronizer<redlatch::HiredisTransport, redlatch::PermitProtocol,
                                      redlatch::PermitLeases<redlatch::HiredisTransport>>;
template class redlatch::BasicPermitExpirableSemaphore<redlatch::HiredisTransport>;
template class redlatch::BasicPermit<redlatch::HiredisTransport>;
template class redlatch::LockState<redlatch::HiredisTransport, redlatch::ReadProtocol>;
template class redlatch::LockState<redlatch::HiredisTransport, redlatch::WriteProtocol>;
template class redlatch::BasicReadWriteLock<redlatch::HiredisTransport>;
template class redlatch::LockState<redlatch::HiredisTransport, redlatch::FairProtocol,
                                   redlatch::ServerQueue<redlatch::HiredisTransport>>;
template class redlatch::BasicFairLock<redlatch::HiredisTransport>;
template class redlatch::QuorumApi<redlatch::MultiLock>;
template class redlatch::QuorumApi<redlatch::RedLock>;
template class redlatch::QuorumMemberOf<redlatch::RLock>;
// For the transport of the unit tests.
template class redlatch::Session<redlatch::test::ScriptedTransport>;
template class redlatch::SessionHandle<redlatch::test::ScriptedTransport>;
template class redlatch::LockState<redlatch::test::ScriptedTransport, redlatch::RLockProtocol>;
template class redlatch::BasicRLock<redlatch::test::ScriptedTransport>;
// For functions that tests run in threads.
template std::future<void> redlatch::test::start_erased(std::function<void()>);
template std::future<bool> redlatch::test::start_erased(std::function<bool()>);
template std::future<std::error_code> redlatch::test::start_erased(std::function<std::error_code()>);
