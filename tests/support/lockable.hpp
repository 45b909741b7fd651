// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <concepts>
#include <ratio>

namespace redlatch::test {

// The standard's named requirements of a lock, as far as a compiler can check them.

template <class L>
concept BasicLockable = requires(L& lock) {
    { lock.lock() } -> std::same_as<void>;
    { lock.unlock() } -> std::same_as<void>;
};

template <class L>
concept Lockable = BasicLockable<L> && requires(L& lock) {
    { lock.try_lock() } -> std::same_as<bool>;
};

template <class L>
concept TimedLockable = Lockable<L> &&
    requires(L& lock, std::chrono::duration<float, std::ratio<60>> relative,
             std::chrono::time_point<std::chrono::system_clock, std::chrono::hours> absolute) {
    { lock.try_lock_for(relative) } -> std::same_as<bool>;
    { lock.try_lock_until(absolute) } -> std::same_as<bool>;
};

template <class L>
concept SharedTimedLockable = TimedLockable<L> &&
    requires(L& lock, std::chrono::duration<float, std::ratio<60>> relative,
             std::chrono::time_point<std::chrono::system_clock, std::chrono::hours> absolute) {
    { lock.lock_shared() } -> std::same_as<void>;
    { lock.unlock_shared() } -> std::same_as<void>;
    { lock.try_lock_shared() } -> std::same_as<bool>;
    { lock.try_lock_shared_for(relative) } -> std::same_as<bool>;
    { lock.try_lock_shared_until(absolute) } -> std::same_as<bool>;
};

}  // namespace redlatch::test
