// SPDX-License-Identifier: MIT
#include "start.hpp"

template std::future<void> redlatch::test::start_erased(std::function<void()>);
template std::future<bool> redlatch::test::start_erased(std::function<bool()>);
template std::future<std::error_code> redlatch::test::start_erased(std::function<std::error_code()>);
