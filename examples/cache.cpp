// SPDX-License-Identifier: MIT
//
// A cache that many processes read and one refreshes: a file on a disk that they share. Readers do not exclude each
// other. When the file is too old, one of them loads it anew, and the others wait for that instead of loading it, too.

#include <redlatch/redlatch.hpp>

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace std::chrono_literals;

namespace {

// [readme]
class Cache {
public:
    Cache(redlatch::Client& redis, std::filesystem::path file, std::function<int()> load)
        : lock_(redis, "example:cache", {.writer_preference = true}), file_(std::move(file)), load_(std::move(load)) {}

    // Returns the value of this edition.
    int get(int edition) {
        {
            const std::shared_lock reading{lock_};
            if (const auto value = read(edition)) return *value;
        }
        const std::lock_guard writing{lock_};  // a reader cannot become a writer: it lets go first, and asks again
        if (const auto value = read(edition)) return *value;
        const int value = load_();
        if (std::chrono::steady_clock::now() >= lock_.valid_until()) throw std::runtime_error("the lock is lost");
        std::ofstream{file_} << edition << ' ' << value << " end\n";
        return value;
    }

private:
    // A writer that died half-way has left no "end".
    std::optional<int> read(int edition) const {
        std::ifstream file{file_};
        int of = 0, value = 0;
        std::string end;
        return file >> of >> value >> end && of == edition && end == "end" ? std::optional(value) : std::nullopt;
    }

    redlatch::ReadWriteLock lock_;
    const std::filesystem::path file_;
    const std::function<int()> load_;
};
// [/readme]

}  // namespace

int main() {
    const char* env = std::getenv("REDLATCH_URL");
    const char* url = env ? env : "redis://127.0.0.1:6379";
    redlatch::Client one{url}, two{url};  // stand for two processes
    const auto file = std::filesystem::temp_directory_path() / ("example_cache." + std::to_string(::getpid()));
    std::atomic<int> loads{0}, wrong{0}, reads{0};
    const auto load = [&] {
        std::this_thread::sleep_for(50ms);  // a slow query
        return 100 * ++loads;
    };
    Cache here{one, file, load}, there{two, file, load};
    for (int edition = 1; edition <= 3; ++edition) {
        std::vector<std::jthread> readers;
        for (Cache* cache : {&here, &there, &here, &there, &here, &there})
            readers.emplace_back([&, cache] {
                for (int i = 0; i < 10; ++i, ++reads) wrong += cache->get(edition) != 100 * edition;
            });
    }
    std::filesystem::remove(file);
    std::cout << reads << " reads, " << loads << " loads, " << wrong << " wrong values\n";
    return reads == 180 && loads == 3 && wrong == 0 ? 0 : 1;
}
