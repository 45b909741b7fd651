// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include "socket.hpp"

namespace redlatch::test {

/// Records in a file that any number of processes and threads append to. The file outlives them all.
///
/// An append is one write with O_APPEND. A record is complete or absent, even if its writer is killed at that moment:
/// the kernel interrupts a write between two pages only, and no record lies across the boundary of a page.
template <class Record>
class RecordFile {
    static_assert(std::is_trivially_copyable_v<Record>);
    static_assert(4096 % sizeof(Record) == 0, "a record must not lie across the boundary of a page");

public:
    /// Creates the file if it does not exist.
    explicit RecordFile(const std::string& path)
        : fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600)) {
        if (!fd_) throw_errno("open " + path);
    }

    void append(const Record& record) const {
        const ssize_t written = without_eintr([&] { return ::write(fd_.get(), &record, sizeof record); });
        if (written != static_cast<ssize_t>(sizeof record)) throw_errno("append to a file of records");
    }

    /// Returns all records appended so far, in order.
    std::vector<Record> read() const {
        struct stat about {};
        if (::fstat(fd_.get(), &about) != 0) throw_errno("fstat");
        std::vector<Record> records(static_cast<std::size_t>(about.st_size) / sizeof(Record));
        std::size_t bytes = 0;
        const std::size_t wanted = records.size() * sizeof(Record);
        while (bytes < wanted) {
            char* to = reinterpret_cast<char*>(records.data()) + bytes;
            const ssize_t got =
                without_eintr([&] { return ::pread(fd_.get(), to, wanted - bytes, static_cast<off_t>(bytes)); });
            if (got <= 0) throw_errno("read a file of records");
            bytes += static_cast<std::size_t>(got);
        }
        return records;
    }

private:
    Fd fd_;
};

}  // namespace redlatch::test
