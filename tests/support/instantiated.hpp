// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include "scripted_transport.hpp"
#include "start.hpp"

// Precompiled and read before every test source, so that a test compiles in a third of the time. instantiated.cpp
// compiles the templates declared here, once. It also proves that each of their members compiles.
extern template class redlatch::Session<redlatch::HiredisTransport>;
extern template class redlatch::SessionHandle<redlatch::HiredisTransport>;
extern template class redlatch::BasicClient<redlatch::HiredisTransport>;
extern template class redlatch::LockState<redlatch::HiredisTransport, redlatch::RLockProtocol>;
extern template class redlatch::LockState<redlatch::HiredisTransport, redlatch::FencedProtocol>;
extern template class redlatch::BasicRLock<redlatch::HiredisTransport>;
extern template class redlatch::BasicSpinLock<redlatch::HiredisTransport>;
extern template class redlatch::BasicFencedLock<redlatch::HiredisTransport>;
extern template class redlatch::LockState<redlatch::HiredisTransport, redlatch::MutexProtocol>;
extern template class redlatch::BasicMutex<redlatch::HiredisTransport>;
extern template class redlatch::Synchronizer<redlatch::HiredisTransport, redlatch::LatchProtocol>;
extern template class redlatch::BasicCountDownLatch<redlatch::HiredisTransport>;
extern template class redlatch::Synchronizer<redlatch::HiredisTransport, redlatch::SemaphoreProtocol>;
extern template class redlatch::BasicSemaphore<redlatch::HiredisTransport>;
extern template class redlatch::Synchronizer<redlatch::HiredisTransport, redlatch::PermitProtocol,
                                             redlatch::PermitLeases<redlatch::HiredisTransport>>;
extern template class redlatch::BasicPermitExpirableSemaphore<redlatch::HiredisTransport>;
extern template class redlatch::BasicPermit<redlatch::HiredisTransport>;
extern template class redlatch::LockState<redlatch::HiredisTransport, redlatch::ReadProtocol>;
extern template class redlatch::LockState<redlatch::HiredisTransport, redlatch::WriteProtocol>;
extern template class redlatch::BasicReadWriteLock<redlatch::HiredisTransport>;
extern template class redlatch::LockState<redlatch::HiredisTransport, redlatch::FairProtocol,
                                          redlatch::ServerQueue<redlatch::HiredisTransport>>;
extern template class redlatch::BasicFairLock<redlatch::HiredisTransport>;
extern template class redlatch::QuorumApi<redlatch::MultiLock>;
extern template class redlatch::QuorumApi<redlatch::RedLock>;
extern template class redlatch::QuorumMemberOf<redlatch::RLock>;
// For the transport of the unit tests.
extern template class redlatch::Session<redlatch::test::ScriptedTransport>;
extern template class redlatch::SessionHandle<redlatch::test::ScriptedTransport>;
extern template class redlatch::LockState<redlatch::test::ScriptedTransport, redlatch::RLockProtocol>;
extern template class redlatch::BasicRLock<redlatch::test::ScriptedTransport>;
