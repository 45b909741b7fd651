// SPDX-License-Identifier: MIT
//
// A non-reentrant lock is the same lock as an RLock with that name, but refuses its own holder. Here a function is called
// from inside of the section that it protects: with an RLock it would run twice, in the midst of its own work.

#include <redlatch/redlatch.hpp>

#include <cstdlib>
#include <iostream>
#include <mutex>
#include <system_error>

namespace {

// Closes the accounts once. Returns false if that is already under way, also further up in this very thread.
bool close_books(redlatch::NonReentrantLock& books, int& closings, bool audit) {
    const std::unique_lock guard{books, std::try_to_lock};
    if (!guard) return false;
    ++closings;
    if (audit)
        std::cout << "the audit closes the books: " << (close_books(books, closings, false) ? "yes" : "no") << '\n';
    return true;
}

}  // namespace

int main() {
    const char* url = std::getenv("REDLATCH_URL");
    redlatch::Client redis{url ? url : "redis://127.0.0.1:6379"};
    redlatch::NonReentrantLock books{redis, "example:books"};
    int closings = 0;
    const bool closed = close_books(books, closings, true);

    books.lock();
    std::error_code ec;
    books.lock(ec);  // fails instead of waiting for itself
    std::cout << "again: " << ec.message() << '\n';
    books.unlock();
    return closed && closings == 1 && ec == redlatch::errc::would_deadlock ? 0 : 1;
}
