// SPDX-License-Identifier: MIT
#include "instantiated.hpp"

template class redlatch::Runtime<redlatch::HiredisTransport>;
template class redlatch::Core<redlatch::HiredisTransport>;
template class redlatch::Client<redlatch::HiredisTransport>;
template class redlatch::HoldKeeper<redlatch::HiredisTransport, redlatch::RLockWire>;
template class redlatch::LockState<redlatch::HiredisTransport, redlatch::RLockWire>;
template class redlatch::LockState<redlatch::HiredisTransport, redlatch::FencedWire>;
template class redlatch::RLock<redlatch::HiredisTransport>;
template class redlatch::SpinLock<redlatch::HiredisTransport>;
template class redlatch::FencedLock<redlatch::HiredisTransport>;
template class redlatch::LockState<redlatch::HiredisTransport, redlatch::MutexWire>;
template class redlatch::Mutex<redlatch::HiredisTransport>;
template class redlatch::SynchronizerState<redlatch::HiredisTransport, redlatch::CountDownLatchWire>;
template class redlatch::CountDownLatch<redlatch::HiredisTransport>;
template class redlatch::SynchronizerState<redlatch::HiredisTransport, redlatch::SemaphoreWire>;
template class redlatch::Semaphore<redlatch::HiredisTransport>;
template class redlatch::SynchronizerState<redlatch::HiredisTransport, redlatch::PermitWire>;
template class redlatch::PermitState<redlatch::HiredisTransport>;
template class redlatch::PermitExpirableSemaphore<redlatch::HiredisTransport>;
template class redlatch::Permit<redlatch::HiredisTransport>;
template class redlatch::LockState<redlatch::HiredisTransport, redlatch::ReadWire>;
template class redlatch::LockState<redlatch::HiredisTransport, redlatch::WriteWire>;
template class redlatch::ReadWriteLock<redlatch::HiredisTransport>;
template class redlatch::HoldKeeper<redlatch::HiredisTransport, redlatch::FairWire>;
template class redlatch::FairLockState<redlatch::HiredisTransport>;
template class redlatch::FairLock<redlatch::HiredisTransport>;
template class redlatch::QuorumLock<redlatch::MultiLock>;
template class redlatch::QuorumLock<redlatch::RedLock>;
template class redlatch::LockMemberOf<redlatch::RLock<redlatch::HiredisTransport>>;
// On the transport of the unit tests.
template class redlatch::Runtime<redlatch::test::ScriptedTransport>;
template class redlatch::Core<redlatch::test::ScriptedTransport>;
template class redlatch::HoldKeeper<redlatch::test::ScriptedTransport, redlatch::RLockWire>;
template class redlatch::LockState<redlatch::test::ScriptedTransport, redlatch::RLockWire>;
template class redlatch::RLock<redlatch::test::ScriptedTransport>;
// What tests start in threads.
template std::future<void> redlatch::test::start_erased(std::function<void()>);
template std::future<bool> redlatch::test::start_erased(std::function<bool()>);
template std::future<std::error_code> redlatch::test::start_erased(std::function<std::error_code()>);
