// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "socket.hpp"

namespace redlatch::test {

namespace detail {

inline constexpr const char* temp_dir_prefix = "redlatch-test.";

/// Short, because the path of a unix socket must not exceed 107 bytes.
inline std::string temp_base() {
    const char* wanted = std::getenv("TMPDIR");
    const std::string base = wanted != nullptr ? wanted : "";
    return base.empty() || base.size() > 60 || base[0] != '/' ? "/tmp" : base;
}

/// Removes the directories of test processes that were killed: the lock on their owner file is free. A directory
/// without an owner file belongs to a process that is just creating it.
inline void sweep_temp_dirs(const std::string& base) {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator{base, ignored}) {
        if (!entry.path().filename().string().starts_with(temp_dir_prefix)) continue;
        const Fd owner{::open((entry.path() / "owner").c_str(), O_RDWR | O_CLOEXEC)};
        if (owner && ::flock(owner.get(), LOCK_EX | LOCK_NB) == 0) std::filesystem::remove_all(entry.path(), ignored);
    }
}

}  // namespace detail

/// A new private directory. The destructor removes it with everything in it. If the process is killed instead, the next
/// process that creates or removes such a directory removes it. A forked child does not remove its parent's.
class TempDir {
public:
    TempDir() {
        const std::string base = detail::temp_base();
        [[maybe_unused]] static const bool swept = (detail::sweep_temp_dirs(base), true);
        path_ = base + "/" + detail::temp_dir_prefix + "XXXXXX";
        if (::mkdtemp(path_.data()) == nullptr) throw_errno("mkdtemp " + path_);
        // Lock the file before giving it its name, so that a sweep in another process never finds it unlocked.
        const std::string unnamed = file("owner.new");
        owner_.reset(::open(unnamed.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
        if (!owner_) throw_errno("open " + unnamed);
        if (::flock(owner_.get(), LOCK_EX | LOCK_NB) != 0) throw_errno("flock " + unnamed);
        if (::rename(unnamed.c_str(), file("owner").c_str()) != 0) throw_errno("rename " + unnamed);
    }
    TempDir(const TempDir&) = delete;
    TempDir& operator=(const TempDir&) = delete;
    ~TempDir() {
        if (::getpid() != process_) return;
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
        detail::sweep_temp_dirs(detail::temp_base());  // those of children that this process has killed
    }

    const std::string& path() const { return path_; }
    std::string file(const std::string& name) const { return path_ + "/" + name; }

private:
    pid_t process_ = ::getpid();
    std::string path_;
    Fd owner_;
};

}  // namespace redlatch::test
