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
