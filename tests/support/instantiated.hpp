// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include "scripted_transport.hpp"
#include "start.hpp"

// Precompiled and read before every test source, so that a test compiles in a third of the time. instantiated.cpp
// compiles the templates declared here, once. It also proves that each of their members compiles.
extern template class redlatch::detail::Session<redlatch::HiredisTransport>;
extern template class redlatch::detail::SessionHandle<redlatch::HiredisTransport>;
extern template class redlatch::BasicClient<redlatch::HiredisTransport>;
extern template class redlatch::detail::LockState<redlatch::HiredisTransport, redlatch::detail::RLockProtocol>;
extern template class redlatch::detail::LockState<redlatch::HiredisTransport, redlatch::detail::FencedProtocol>;
extern template class redlatch::BasicRLock<redlatch::HiredisTransport>;
extern template class redlatch::BasicSpinLock<redlatch::HiredisTransport>;
extern template class redlatch::BasicFencedLock<redlatch::HiredisTransport>;
extern template class redlatch::detail::LockState<redlatch::HiredisTransport, redlatch::detail::MutexProtocol>;
extern template class redlatch::BasicMutex<redlatch::HiredisTransport>;
extern template class redlatch::detail::Synchronizer<redlatch::HiredisTransport, redlatch::detail::LatchProtocol>;
extern template class redlatch::BasicCountDownLatch<redlatch::HiredisTransport>;
extern template class redlatch::detail::Synchronizer<redlatch::HiredisTransport, redlatch::detail::SemaphoreProtocol>;
extern template class redlatch::BasicSemaphore<redlatch::HiredisTransport>;
extern template class redlatch::detail::Synchronizer<redlatch::HiredisTransport, redlatch::detail::PermitProtocol,
                                                     redlatch::detail::PermitLeases<redlatch::HiredisTransport>>;
extern template class redlatch::BasicPermitExpirableSemaphore<redlatch::HiredisTransport>;
extern template class redlatch::BasicPermit<redlatch::HiredisTransport>;
extern template class redlatch::detail::LockState<redlatch::HiredisTransport, redlatch::detail::ReadProtocol>;
extern template class redlatch::detail::LockState<redlatch::HiredisTransport, redlatch::detail::WriteProtocol>;
extern template class redlatch::BasicReadWriteLock<redlatch::HiredisTransport>;
extern template class redlatch::detail::LockState<redlatch::HiredisTransport, redlatch::detail::FairProtocol,
                                                  redlatch::detail::ServerQueue<redlatch::HiredisTransport>>;
extern template class redlatch::BasicFairLock<redlatch::HiredisTransport>;
extern template class redlatch::detail::QuorumApi<redlatch::MultiLock>;
extern template class redlatch::detail::QuorumApi<redlatch::RedLock>;
extern template class redlatch::detail::QuorumMemberOf<redlatch::RLock>;
// For the transport of the unit tests.
extern template class redlatch::detail::Session<redlatch::test::ScriptedTransport>;
extern template class redlatch::detail::SessionHandle<redlatch::test::ScriptedTransport>;
extern template class redlatch::detail::LockState<redlatch::test::ScriptedTransport, redlatch::detail::RLockProtocol>;
extern template class redlatch::BasicRLock<redlatch::test::ScriptedTransport>;
