// SPDX-License-Identifier: MIT
#pragma once

#include <hiredis/hiredis.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace redlatch::bench {

/// A command whose words do not change, already encoded.
class Words {
public:
    explicit Words(std::vector<std::string> words);
    Words(const Words&) = delete;
    Words& operator=(const Words&) = delete;

    int count() const { return static_cast<int>(pointers_.size()); }
    const char** pointers() { return pointers_.data(); }
    const std::size_t* sizes() const { return sizes_.data(); }

private:
    std::vector<std::string> words_;
    std::vector<const char*> pointers_;
    std::vector<std::size_t> sizes_;
};

/// The code that a program with hiredis and no lock library would contain. Throws on errors.
class Connection {
public:
    explicit Connection(const std::string& url);

    using Reply = std::unique_ptr<redisReply, decltype(&freeReplyObject)>;

    Reply call(Words& words);   // one round trip
    void append(Words& words);  // sends it with the next receive()
    void flush();               // or sends it now
    Reply receive();

private:
    Reply checked(void* reply) const;

    std::unique_ptr<redisContext, decltype(&redisFree)> context_;
};

/// The commands that an RLock sends for a first hold and its release: the same scripts and arguments.
struct BareScripts {
    BareScripts(const std::string& name, std::size_t thread);

    Words acquire;
    Words release;
};

/// Loads the scripts into the server, so that EVALSHA finds them.
void load_scripts(Connection& connection);

/// A lock without any library, one key for each user: the reference for everything that does not wait.
class BareLock {
public:
    BareLock(const std::string& url, const std::string& name, std::size_t thread);

    void lock();
    void unlock();

private:
    Connection connection_;
    BareScripts scripts_;
};

/// The lock that programs write by hand: SET NX PX, and a script that deletes the key if it still has their value.
class HandmadeLock {
public:
    HandmadeLock(const std::string& url, const std::string& name, std::size_t thread);

    void lock();
    void unlock();

private:
    Connection connection_;
    Words set_;
    Words release_;
};

/// A list with one element, which is the lock: the client that pops it holds it. Redis itself wakes the next one, so no
/// lock built on Redis hands over faster. It is not fit for use: the token is lost with its holder.
class Token {
public:
    Token(const std::string& url, const std::string& name);

    void lock() { connection_.call(pop_); }
    void unlock() { connection_.call(push_); }

    static std::vector<std::string> make(const std::string& name, std::size_t tokens = 1) {
        std::vector<std::string> words{"LPUSH", name};
        words.insert(words.end(), tokens, "1");
        return words;
    }

private:
    Connection connection_;
    Words pop_;
    Words push_;
};

/// The scripts of many locks in two writes and two reads: the fastest way over one connection.
class Pipeline {
public:
    Pipeline(const std::string& url, const std::vector<std::string>& names);

    void lock_and_unlock_all();

private:
    Connection connection_;
    std::vector<std::unique_ptr<BareScripts>> scripts_;
};

}  // namespace redlatch::bench
