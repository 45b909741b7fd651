// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include "scripted_transport.hpp"
#include "start.hpp"

// Precompiled, and read before every test source: with it a test compiles in a third of the time. What it declares
// here is compiled once, in instantiated.cpp, which shows besides that every member of it compiles.
extern template class redlatch::Runtime<redlatch::HiredisTransport>;
extern template class redlatch::Core<redlatch::HiredisTransport>;
extern template class redlatch::Client<redlatch::HiredisTransport>;
extern template class redlatch::HoldKeeper<redlatch::HiredisTransport, redlatch::RLockWire>;
extern template class redlatch::LockState<redlatch::HiredisTransport, redlatch::RLockWire>;
extern template class redlatch::LockState<redlatch::HiredisTransport, redlatch::FencedWire>;
extern template class redlatch::RLock<redlatch::HiredisTransport>;
extern template class redlatch::SpinLock<redlatch::HiredisTransport>;
extern template class redlatch::FencedLock<redlatch::HiredisTransport>;
extern template class redlatch::LockState<redlatch::HiredisTransport, redlatch::MutexWire>;
extern template class redlatch::Mutex<redlatch::HiredisTransport>;
extern template class redlatch::SynchronizerState<redlatch::HiredisTransport, redlatch::CountDownLatchWire>;
extern template class redlatch::CountDownLatch<redlatch::HiredisTransport>;
extern template class redlatch::SynchronizerState<redlatch::HiredisTransport, redlatch::SemaphoreWire>;
extern template class redlatch::Semaphore<redlatch::HiredisTransport>;
extern template class redlatch::SynchronizerState<redlatch::HiredisTransport, redlatch::PermitWire>;
extern template class redlatch::PermitState<redlatch::HiredisTransport>;
extern template class redlatch::PermitExpirableSemaphore<redlatch::HiredisTransport>;
extern template class redlatch::Permit<redlatch::HiredisTransport>;
extern template class redlatch::LockState<redlatch::HiredisTransport, redlatch::ReadWire>;
extern template class redlatch::LockState<redlatch::HiredisTransport, redlatch::WriteWire>;
extern template class redlatch::ReadWriteLock<redlatch::HiredisTransport>;
extern template class redlatch::HoldKeeper<redlatch::HiredisTransport, redlatch::FairWire>;
extern template class redlatch::FairLockState<redlatch::HiredisTransport>;
extern template class redlatch::FairLock<redlatch::HiredisTransport>;
extern template class redlatch::QuorumLock<redlatch::MultiLock>;
extern template class redlatch::QuorumLock<redlatch::RedLock>;
extern template class redlatch::LockMemberOf<redlatch::RLock<redlatch::HiredisTransport>>;
// On the transport of the unit tests.
extern template class redlatch::Runtime<redlatch::test::ScriptedTransport>;
extern template class redlatch::Core<redlatch::test::ScriptedTransport>;
extern template class redlatch::HoldKeeper<redlatch::test::ScriptedTransport, redlatch::RLockWire>;
extern template class redlatch::LockState<redlatch::test::ScriptedTransport, redlatch::RLockWire>;
extern template class redlatch::RLock<redlatch::test::ScriptedTransport>;
