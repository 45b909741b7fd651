// SPDX-License-Identifier: MIT
#include "instantiated.hpp"

template class redlatch::detail::Session<redlatch::HiredisTransport>;
template class redlatch::detail::SessionHandle<redlatch::HiredisTransport>;
template class redlatch::BasicClient<redlatch::HiredisTransport>;
template class redlatch::detail::LockState<redlatch::HiredisTransport, redlatch::detail::RLockProtocol>;
template class redlatch::detail::LockState<redlatch::HiredisTransport, redlatch::detail::FencedProtocol>;
template class redlatch::BasicRLock<redlatch::HiredisTransport>;
template class redlatch::BasicSpinLock<redlatch::HiredisTransport>;
template class redlatch::BasicFencedLock<redlatch::HiredisTransport>;
template class redlatch::detail::LockState<redlatch::HiredisTransport, redlatch::detail::MutexProtocol>;
template class redlatch::BasicMutex<redlatch::HiredisTransport>;
template class redlatch::detail::Synchronizer<redlatch::HiredisTransport, redlatch::detail::LatchProtocol>;
template class redlatch::BasicCountDownLatch<redlatch::HiredisTransport>;
template class redlatch::detail::Synchronizer<redlatch::HiredisTransport, redlatch::detail::SemaphoreProtocol>;
template class redlatch::BasicSemaphore<redlatch::HiredisTransport>;
template class redlatch::detail::Synchronizer<redlatch::HiredisTransport, redlatch::detail::PermitProtocol,
                                              redlatch::detail::PermitLeases<redlatch::HiredisTransport>>;
template class redlatch::BasicPermitExpirableSemaphore<redlatch::HiredisTransport>;
template class redlatch::BasicPermit<redlatch::HiredisTransport>;
template class redlatch::detail::LockState<redlatch::HiredisTransport, redlatch::detail::ReadProtocol>;
template class redlatch::detail::LockState<redlatch::HiredisTransport, redlatch::detail::WriteProtocol>;
template class redlatch::BasicReadWriteLock<redlatch::HiredisTransport>;
template class redlatch::detail::LockState<redlatch::HiredisTransport, redlatch::detail::FairProtocol,
                                           redlatch::detail::ServerQueue<redlatch::HiredisTransport>>;
template class redlatch::BasicFairLock<redlatch::HiredisTransport>;
template class redlatch::detail::QuorumApi<redlatch::MultiLock>;
template class redlatch::detail::QuorumApi<redlatch::RedLock>;
template class redlatch::detail::QuorumMemberOf<redlatch::RLock>;
// For the transport of the unit tests.
template class redlatch::detail::Session<redlatch::test::ScriptedTransport>;
template class redlatch::detail::SessionHandle<redlatch::test::ScriptedTransport>;
template class redlatch::detail::LockState<redlatch::test::ScriptedTransport, redlatch::detail::RLockProtocol>;
template class redlatch::BasicRLock<redlatch::test::ScriptedTransport>;
// For functions that tests run in threads.
template std::future<void> redlatch::test::start_erased(std::function<void()>);
template std::future<bool> redlatch::test::start_erased(std::function<bool()>);
template std::future<std::error_code> redlatch::test::start_erased(std::function<std::error_code()>);
