// SPDX-License-Identifier: MIT
//
// The flash sale: four processes of eight threads sell 500 units to 2,000 customers, at most one unit per customer.
// Stock, orders and "has bought" marks are in Redis. Sellers read and write them in plain separate steps. Only the
// redlatch lock around these steps keeps them consistent. Half-way the program kills one of the sellers while it holds
// the lock.
//
// With --segments n the sellers share no lock. The stock is a SegmentedSemaphore, whose segments a cluster spreads over its
// nodes. A seller reserves a unit, which is a permit with a lease, and sells it when it is paid. A StripedLock over the
// customers keeps each from buying twice. The units that the killed seller has reserved come back by themselves. Of those
// that it has sold, the others record the orders, because it has noted each payment before.
//
// With a redis-sentinel:// or redis-cluster:// URL you may also kill the master. A seller that loses its connection
// checks the outcome of its attempt at the new master, and serves the customer again. This requires two replicas: after
// a failover one is left to confirm the writes on the other.
//
// The first part, down to run_seller(), uses redlatch. The rest starts processes, kills, counts and cleans up.

#include <redlatch/redlatch.hpp>

#include <hiredis/hiredis.h>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;
using Instant = std::chrono::steady_clock::time_point;
using Words = std::vector<std::string>;

constexpr long long units = 500;
constexpr int customers = 2'000;
constexpr int seller_processes = 4;
constexpr int threads_per_seller = 8;
constexpr milliseconds think_time = 10ms;
constexpr milliseconds lease = 2s;  // the lock of a killed seller is free again after this time

struct Sale {
    std::string url;
    std::string prefix;  // of every key; unique per run, and in braces, so a cluster keeps the keys on one node
    bool locked = true;
    std::size_t segments = 0;  // of the stock; 0 if the stock is a number under one lock

    std::string key(std::string_view name) const { return prefix + std::string(name); }

    std::string way() const {
        if (segments > 0) return "from " + std::to_string(segments) + " segments";
        return locked ? "under one lock" : "without a lock";
    }

    // Returns the prefix without its braces.
    std::string id() const { return prefix.substr(1, prefix.find('}') - 1); }

    // Returns a name without a {tag}, so that a cluster spreads its keys.
    std::string spread(std::string_view name) const { return id() + ':' + std::string(name); }
};

// One bare hiredis connection for one thread. It carries the data of the sale, one command at a time.
class Redis {
public:
    struct Free {
        void operator()(redisReply* reply) const { freeReplyObject(reply); }
        void operator()(redisContext* context) const { redisFree(context); }
    };
    using Reply = std::unique_ptr<redisReply, Free>;

    // `key`: on a cluster, connects to the node that has this key.
    explicit Redis(std::string_view address, std::string key = {})
        : url_(redlatch::Url::parse(address)), key_(std::move(key)) {
        connect(url_);
    }

    // Connects again after the connection has ended, if another master may replace this one. Returns true on success.
    bool reconnect() {
        const auto deadline = std::chrono::steady_clock::now() + 60s;
        while (follows() && std::chrono::steady_clock::now() < deadline) {
            std::this_thread::sleep_for(50ms);
            try {
                connect(url_);
                return true;
            } catch (const std::runtime_error&) {
            }
        }
        return false;
    }

    bool follows() const { return !url_.sentinels.empty() || !url_.cluster.empty(); }

    // Waits until every replica that could take over has all writes so far.
    void secure() {
        if (follows() && number({"WAIT", std::to_string(replicas_), "1000"}) < replicas_)
            throw std::runtime_error("a replica is missing");
    }

    Reply command(const Words& words) {
        std::vector<const char*> texts;
        std::vector<std::size_t> sizes;
        for (const auto& word : words) {
            texts.push_back(word.data());
            sizes.push_back(word.size());
        }
        Reply reply{static_cast<redisReply*>(
            redisCommandArgv(context_.get(), static_cast<int>(words.size()), texts.data(), sizes.data()))};
        if (!reply) throw std::runtime_error(words[0] + ": " + context_->errstr);
        if (reply->type == REDIS_REPLY_ERROR) throw std::runtime_error(words[0] + ": " + reply->str);
        return reply;
    }

    std::optional<std::string> text(const Words& words) {
        const auto reply = command(words);
        return reply->str ? std::optional(std::string(reply->str, reply->len)) : std::nullopt;
    }

    long long number(const Words& words) {
        const auto reply = command(words);
        return reply->str ? std::stoll(reply->str) : reply->integer;
    }

private:
    void connect(const redlatch::Url& url) {
        if (!url.sentinels.empty()) return connect_to_master(url);
        if (!url.cluster.empty()) return connect_to_owner(url);
        const timeval limit{5, 0};
        context_.reset(url.path.empty() ? redisConnectWithTimeout(url.host.c_str(), url.port, limit)
                                        : redisConnectUnixWithTimeout(url.path.c_str(), limit));
        if (!context_ || context_->err) throw std::runtime_error("no Redis server at " + url.display());
        ::fcntl(context_->fd, F_SETFD, FD_CLOEXEC);
        redisSetTimeout(context_.get(), limit);
        if (!url.user.empty()) {
            command({"AUTH", url.user, url.password});
        } else if (!url.password.empty()) {
            command({"AUTH", url.password});
        }
        if (url.database != 0) command({"SELECT", std::to_string(url.database)});
    }

    void connect_to_master(const redlatch::Url& url) {
        for (const auto& sentinel : url.sentinels) {
            try {
                redlatch::Url one;
                one.host = sentinel.host;
                one.port = sentinel.port;
                connect(one);
                const auto master = command({"SENTINEL", "GET-MASTER-ADDR-BY-NAME", url.master});
                if (master->elements != 2) continue;
                const auto port = static_cast<std::uint16_t>(std::stoi(master->element[1]->str));
                connect(url.at({master->element[0]->str, port}));
                if (is_at_master()) return;
            } catch (const std::runtime_error&) {
            }
        }
        throw std::runtime_error("no sentinel leads to " + url.display());
    }

    void connect_to_owner(const redlatch::Url& url) {
        for (const auto& node : url.cluster) {
            try {
                connect(url.at(node));
                try {
                    command({"STRLEN", key_});
                } catch (const std::runtime_error& error) {
                    // STRLEN: MOVED <slot> <host>:<port>
                    std::istringstream said{error.what()};
                    std::string word, slot, place;
                    said >> word >> word >> slot >> place;
                    const auto colon = place.rfind(':');
                    if (word != "MOVED" || colon == std::string::npos) continue;
                    const auto port = static_cast<std::uint16_t>(std::stoi(place.substr(colon + 1)));
                    connect(url.at({place.substr(0, colon), port}));
                    command({"STRLEN", key_});
                }
                if (is_at_master()) return;
            } catch (const std::runtime_error&) {
            }
        }
        throw std::runtime_error("no node leads to the part of " + url.display() + " that has the sale");
    }

    bool is_at_master() {
        const auto role = command({"ROLE"});
        if (role->element[0]->str != std::string_view("master")) return false;
        replicas_ = std::max(1LL, static_cast<long long>(role->element[2]->elements));
        return true;
    }

    const redlatch::Url url_;
    const std::string key_;
    std::unique_ptr<redisContext, Free> context_;
    long long replicas_ = 0;
};

// The upper half holds the seconds since 2024, the lower half the number of the order within its day.
long long next_order_id(Redis& redis, const Sale& sale) {
    const auto now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
    const auto days = std::chrono::floor<std::chrono::days>(now).time_since_epoch().count();
    const auto seconds = now - std::chrono::sys_days(std::chrono::year(2024) / 1 / 1);
    return (static_cast<long long>(seconds.count()) << 32) |
           redis.number({"INCR", sale.key("day:" + std::to_string(days))});
}

std::string new_order(Redis& redis, const Sale& sale, int seller, const std::string& customer) {
    const auto id = next_order_id(redis, sale);
    const auto time = std::chrono::floor<milliseconds>(std::chrono::steady_clock::now().time_since_epoch());
    return customer + ' ' + std::to_string(id) + ' ' + std::to_string(time.count()) + ' ' + std::to_string(seller);
}

// The critical section. Each step alone is harmless, but two threads inside at once sell the same unit twice. Returns
// false if the lock may be lost (for example, because this machine slept). Then nothing was written.
bool sell(Redis& redis, const Sale& sale, int seller, const std::string& customer, Instant valid_until) {
    const long long stock = redis.number({"GET", sale.key("stock")});
    if (stock <= 0 || redis.text({"GET", sale.key("bought:" + customer)})) return true;

    if (sale.locked && stock == units / 2 && !redis.text({"GET", sale.key("victim")})) {
        redis.command({"SET", sale.key("victim"), std::to_string(seller)});
        for (;;) ::pause();  // the parent kills this process here: it holds the lock and has sold nothing
    }

    std::this_thread::sleep_for(think_time);  // the payment
    if (std::chrono::steady_clock::now() >= valid_until) return false;

    // In this order, so that settle() can detect a half-done sale.
    redis.command({"SET", sale.key("stock"), std::to_string(stock - 1)});
    redis.command({"SET", sale.key("bought:" + customer), "1"});
    redis.command({"RPUSH", sale.key("orders"), new_order(redis, sale, seller, customer)});
    redis.secure();
    return true;
}

// Repairs the data under the lock, after a connection has ended in the middle of a sale. The list of orders shows the
// sold units. A purchase without an order does not count.
void settle(Redis& redis, const Sale& sale, const std::string& customer) {
    const auto orders = redis.command({"LRANGE", sale.key("orders"), "0", "-1"});
    redis.command({"DEL", sale.key("bought:" + customer)});
    for (std::size_t i = 0; i < orders->elements; ++i)
        if (std::string_view(orders->element[i]->str).starts_with(customer + ' '))
            redis.command({"SET", sale.key("bought:" + customer), "1"});
    redis.command({"SET", sale.key("stock"), std::to_string(units - static_cast<long long>(orders->elements))});
    redis.secure();
}

// Returns the next customer. A failure may lose one on the way here, which is fine: nothing was promised yet.
std::optional<std::string> next_customer(Redis& redis, const Sale& sale) {
    for (;;) {
        try {
            return redis.text({"LPOP", sale.key("queue")});
        } catch (const std::runtime_error&) {
            if (!redis.reconnect()) throw;
        }
    }
}

// One thread of a seller. The threads of all processes take their customers from one queue.
void serve_customers(redlatch::Client& client, const Sale& sale, int seller) {
    Redis redis{sale.url, sale.prefix};
    redlatch::RLock lock{client, sale.key("lock")};
    bool failed = false;  // in the middle of a sale: settle() comes before the next one
    std::optional<std::string> again;
    while (const auto customer = again ? std::exchange(again, {}) : next_customer(redis, sale)) {
        try {
            bool served = true;
            if (sale.locked) {
                std::lock_guard guard{lock};
                if (failed) settle(redis, sale, *customer);
                failed = false;
                served = sell(redis, sale, seller, *customer, lock.valid_until());
            } else {
                served = sell(redis, sale, seller, *customer, Instant::max());
            }
            if (!served) again = customer;
        } catch (const std::runtime_error&) {
            if (!sale.locked || !redis.reconnect()) throw;
            failed = true;
            again = customer;
        }
    }
}

// Does something that may be done twice. Does it again if the connection ends meanwhile.
template <class Function>
void persist(Redis& redis, Function&& function) {
    for (;;) {
        try {
            function();
            return redis.secure();
        } catch (const std::runtime_error&) {
            if (!redis.reconnect()) throw;
        }
    }
}

// Records the order of a unit that is paid and sold. It is recorded once, however many sellers try.
void record_order(Redis& redis, const Sale& sale, int seller, const std::string& unit, const std::string& customer) {
    static const std::string once =
        "if redis.call('hdel', KEYS[1], ARGV[1]) == 1 then redis.call('rpush', KEYS[2], ARGV[2]) end";
    persist(redis, [&] {
        redis.command(
            {"EVAL", once, "2", sale.key("paid"), sale.key("orders"), unit, new_order(redis, sale, seller, customer)});
    });
}

// Records the orders of sellers that were killed after they had sold a unit. A unit that was not sold comes back.
void record_orders_of_others(Redis& redis, const Sale& sale, redlatch::SegmentedSemaphore& stock, int seller) {
    const auto paid = redis.command({"HGETALL", sale.key("paid")});
    for (std::size_t i = 0; i + 1 < paid->elements; i += 2) {
        const std::string unit = paid->element[i]->str, customer = paid->element[i + 1]->str;
        const auto space = unit.find(' ');
        const auto left = stock.remaining_lease(
            {std::stoul(unit.substr(0, space)), redlatch::PermitId::parse(unit.substr(space + 1))});
        if (left == milliseconds::max()) record_order(redis, sale, seller, unit, customer);
    }
}

// Sells a unit to the customer, whose lock is held. Returns false if the unit came back before it was sold.
bool sell_reserved(Redis& redis, const Sale& sale, redlatch::SegmentedSemaphore& stock, int seller,
                   const std::string& customer) {
    if (redis.text({"GET", sale.key("bought:" + customer)})) return true;
    std::optional<redlatch::SegmentPermit> reserved;
    while (!reserved) {
        // Reserved units may come back, so the stock is sold out only when there is an order of each.
        if (redis.number({"LLEN", sale.key("orders")}) >= units) return true;
        reserved = stock.try_acquire_for(200ms, redlatch::Lease{lease});
        if (!reserved) record_orders_of_others(redis, sale, stock, seller);
    }

    if (redis.number({"LLEN", sale.key("orders")}) >= units / 2 &&
        redis.command({"SET", sale.key("victim"), std::to_string(seller), "NX"})->type != REDIS_REPLY_NIL)
        for (;;) ::pause();  // the parent kills this process here: it has reserved a unit and has not sold it

    std::this_thread::sleep_for(think_time);  // the payment
    // Whenever this process ends: what is noted is sold or comes back, and what is sold gets its order.
    const std::string unit = std::to_string(reserved->segment) + ' ' + reserved->id.text().c_str();
    persist(redis, [&] {
        redis.command({"SET", sale.key("bought:" + customer), "1"});
        redis.command({"HSET", sale.key("paid"), unit, customer});
    });
    std::error_code ec;
    stock.update_lease(*reserved, redlatch::Lease::forever(), ec);
    if (ec && ec != redlatch::errc::unknown_permit) throw std::system_error(ec);
    if (ec) {
        persist(redis, [&] {
            redis.command({"HDEL", sale.key("paid"), unit});
            redis.command({"DEL", sale.key("bought:" + customer)});
        });
        return false;
    }
    record_order(redis, sale, seller, unit, customer);
    return true;
}

// One thread of a seller in a sale with segments.
void serve_from_segments(redlatch::Client& client, const Sale& sale, int seller) {
    Redis redis{sale.url, sale.prefix};
    redlatch::SegmentedSemaphore stock{client, sale.spread("stock"), sale.segments};
    redlatch::StripedLock locks{client, sale.spread("customer"), 256};
    std::optional<std::string> again;
    while (const auto customer = again ? std::exchange(again, {}) : next_customer(redis, sale)) {
        try {
            const std::lock_guard guard{locks.lock_for(*customer)};
            if (!sell_reserved(redis, sale, stock, seller, *customer)) again = customer;
        } catch (const std::runtime_error&) {
            if (!redis.reconnect()) throw;
            again = customer;
        }
    }
}

void run_seller(const Sale& sale, int seller) {
    redlatch::ClientOptions options;
    options.watchdog_timeout = lease;
    // A failover must not lose the lock.
    if (const auto url = redlatch::Url::parse(sale.url); !url.sentinels.empty() || !url.cluster.empty())
        options.require_replicas = redlatch::all_replicas;
    redlatch::Client client{sale.url, options};
    std::vector<std::future<void>> threads;
    for (int i = 0; i < threads_per_seller; ++i)
        threads.push_back(std::async(std::launch::async, [&] {
            sale.segments > 0 ? serve_from_segments(client, sale, seller) : serve_customers(client, sale, seller);
        }));
    for (auto& thread : threads) thread.get();
}

// ---- Starting, killing, counting

volatile std::sig_atomic_t signalled = 0;

// All waits of the parent use this function, so a signal unwinds the stack and everything is cleaned up.
void pause_briefly() {
    std::this_thread::sleep_for(20ms);
    if (signalled != 0) throw std::runtime_error("interrupted");
}

// A process that never outlives this one. It has its own process group, so Ctrl-C reaches only the parent, which then
// ends the others in order.
class Child {
public:
    explicit Child(Words words) {
        std::vector<char*> argv;
        for (auto& word : words) argv.push_back(word.data());
        argv.push_back(nullptr);
        const pid_t parent = ::getpid();
        pid_ = ::fork();
        if (pid_ < 0) throw std::runtime_error("fork failed");
        if (pid_ > 0) return;
        ::setpgid(0, 0);
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (::getppid() == parent) ::execvp(argv[0], argv.data());
        ::_exit(127);
    }

    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;

    ~Child() {
        if (status_) return;
        kill();
        ::waitpid(pid_, nullptr, 0);
    }

    void kill() const { ::kill(pid_, SIGKILL); }

    // Returns the wait status once the process has ended.
    std::optional<int> status() {
        int status = 0;
        if (!status_ && ::waitpid(pid_, &status, WNOHANG) == pid_) status_ = status;
        return status_;
    }

private:
    pid_t pid_ = 0;
    std::optional<int> status_;
};

class TemporaryDirectory {
public:
    TemporaryDirectory() : path_((std::filesystem::temp_directory_path() / "flash_sale.XXXXXX").string()) {
        if (!::mkdtemp(path_.data())) throw std::runtime_error("cannot make a directory like " + path_);
    }
    TemporaryDirectory(const TemporaryDirectory&) = delete;
    TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
    ~TemporaryDirectory() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }

    const std::string& path() const { return path_; }

private:
    std::string path_;
};

// A private redis-server, behind a unix socket that other users cannot open.
class PrivateServer {
public:
    PrivateServer() {
        while (!answers()) {
            if (process_.status())
                throw std::runtime_error("redis-server does not start: install it, or set REDLATCH_URL to a server");
            pause_briefly();
        }
    }

    std::string url() const { return "unix://" + socket_; }

private:
    bool answers() const try {
        Redis{url()}.command({"PING"});
        return true;
    } catch (const std::runtime_error&) {
        return false;
    }

    TemporaryDirectory directory_;  // created first, removed last
    std::string socket_ = directory_.path() + "/redis.sock";
    Child process_{{"redis-server", "--port", "0", "--unixsocket", socket_, "--unixsocketperm", "700", "--save", "",
                    "--appendonly", "no", "--dir", directory_.path(), "--logfile", directory_.path() + "/log"}};
};

// Removes the keys of the sale from Redis, including those of the library.
class KeyRemover {
public:
    KeyRemover(Redis& redis, const Sale& sale) : redis_(redis), pattern_('*' + sale.id() + '*') {}
    KeyRemover(const KeyRemover&) = delete;
    KeyRemover& operator=(const KeyRemover&) = delete;
    ~KeyRemover() {
        try {
            std::string cursor = "0";
            do {
                const auto page = redis_.command({"SCAN", cursor, "MATCH", pattern_, "COUNT", "1000"});
                cursor = page->element[0]->str;
                Words del{"DEL"};
                for (std::size_t i = 0; i < page->element[1]->elements; ++i)
                    del.emplace_back(page->element[1]->element[i]->str);
                if (del.size() > 1) redis_.command(del);
            } while (cursor != "0");
        } catch (const std::exception& error) {
            std::fprintf(stderr, "flash_sale: keys of this run may be left: %s\n", error.what());
        }
    }

private:
    Redis& redis_;
    std::string pattern_;
};

// An entry of the list of orders.
struct Order {
    int customer = 0;
    long long id = 0;
    long long time = 0;  // in ms of the steady clock, which the processes of a machine share
    std::size_t seller = 0;
};

// Returns the orders after the first `known` ones.
std::vector<Order> read_orders(Redis& redis, const Sale& sale, std::size_t known = 0) {
    std::vector<Order> orders;
    const auto list = redis.command({"LRANGE", sale.key("orders"), std::to_string(known), "-1"});
    for (std::size_t i = 0; i < list->elements; ++i) {
        std::istringstream text{list->element[i]->str};
        Order& order = orders.emplace_back();
        text >> order.customer >> order.id >> order.time >> order.seller;
    }
    return orders;
}

// Returns for how many ms nothing was sold, at most.
long long longest_stall(const std::vector<Order>& orders) {
    std::vector<long long> times;
    for (const Order& order : orders) times.push_back(order.time);
    std::sort(times.begin(), times.end());
    long long stall = 0;
    for (std::size_t i = 1; i < times.size(); ++i) stall = std::max(stall, times[i] - times[i - 1]);
    return stall;
}

// On a terminal a bar in place, with what each seller has sold and the longest stall; otherwise a line every `step` sales.
class Progress {
public:
    explicit Progress(long long step) : step_(step) {}

    void show(const std::vector<Order>& orders) {
        const auto sold = static_cast<long long>(orders.size());
        const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
        if (terminal_) {
            // Fits into 80 columns.
            const auto filled = static_cast<std::size_t>(std::min(sold, units) * 16 / units);
            const std::string bar = std::string(filled, '#') + std::string(16 - filled, '.');
            std::array<int, seller_processes> shares{};
            for (const Order& order : orders) ++shares.at(order.seller);
            std::string sellers;
            for (const int share : shares) sellers += ' ' + std::to_string(share);
            std::printf("\r[%s] %lld of %lld in %.1f s; sellers%s; stall %.2f s\033[K", bar.c_str(), sold, units,
                        seconds, sellers.c_str(), static_cast<double>(longest_stall(orders)) / 1000);
        } else if (sold / step_ != shown_ / step_) {
            std::printf("%5.1f s  %lld of %lld sold\n", seconds, sold, units);
        }
        shown_ = sold;
        std::fflush(stdout);
    }

    void say(const std::string& line) const { std::printf("%s%s\n", terminal_ ? "\r\033[K" : "", line.c_str()); }

private:
    long long step_;
    bool terminal_ = ::isatty(STDOUT_FILENO) == 1;
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
    long long shown_ = 0;
};

// Every second customer is impatient and comes twice, the second time soon after the first.
void open_sale(Redis& redis, const Sale& sale) {
    std::mt19937 random{500};
    std::vector<std::pair<unsigned long, int>> visits;  // time, customer
    for (int customer = 0; customer < customers; ++customer) {
        const auto time = random() % customers;
        visits.emplace_back(time, customer);
        if (customer % 2 == 0) visits.emplace_back(time + random() % 20, customer);
    }
    std::sort(visits.begin(), visits.end());
    Words queue{"RPUSH", sale.key("queue")};
    for (const auto& visit : visits) queue.push_back(std::to_string(visit.second));
    redis.command({"SET", sale.key("stock"), std::to_string(units)});
    redis.command(queue);
    redis.secure();
}

// Follows the sale until the last seller ends. Kills the seller that marked itself as the victim. Returns the number of
// killed sellers.
int watch(Redis& redis, const Sale& sale, std::deque<Child>& sellers) {
    const auto deadline = std::chrono::steady_clock::now() + 120s;
    Progress progress{sale.locked ? 50 : 500};
    std::vector<Order> orders;
    bool killing = false;
    const auto ended = [](Child& seller) { return seller.status().has_value(); };
    while (!std::all_of(sellers.begin(), sellers.end(), ended)) {
        pause_briefly();
        try {
            for (const Order& order : read_orders(redis, sale, orders.size())) orders.push_back(order);
            progress.show(orders);
        } catch (const std::runtime_error&) {
            if (!redis.reconnect()) throw;
            progress.say("the master is lost, and another is found");
        }
        if (const auto victim = redis.text({"GET", sale.key("victim")}); victim && !killing) {
            killing = true;
            sellers.at(std::stoul(*victim)).kill();
            progress.say("seller " + *victim +
                         (sale.segments > 0 ? " is killed while it has a unit reserved, whose lease ends within " +
                                                  std::to_string(lease.count()) + " ms"
                                            : " is killed while it holds the lock, whose lease ends in " +
                                                  std::to_string(redis.number({"PTTL", sale.key("lock")})) + " ms"));
        }
        if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error("the sale does not come to its end");
    }
    progress.say("the queue is empty");

    int killed = 0;
    for (auto& seller : sellers) {
        const int status = *seller.status();
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
            ++killed;
        } else if (status != 0) {
            throw std::runtime_error("a seller failed");
        }
    }
    return killed;
}

// Evaluates only the list of orders. Returns true if all went well.
bool report(Redis& redis, const Sale& sale, int killed) {
    std::set<int> buyers;
    std::set<long long> ids;
    const std::vector<Order> orders = read_orders(redis, sale);
    for (const Order& order : orders) {
        buyers.insert(order.customer);
        ids.insert(order.id);
    }
    const long long stall = longest_stall(orders);
    const auto sold = static_cast<long long>(orders.size());
    const auto oversold = std::max(0LL, sold - units);
    const auto twice = sold - static_cast<long long>(buyers.size());
    const auto same_ids = sold - static_cast<long long>(ids.size());
    if (!sale.locked)
        std::printf(
            "Without the lock %lld units were sold %lld times: %lld too many, and %lld to customers who had one.\n",
            units, sold, oversold, twice);
    if (sold > 1) {
        const auto [first, last] = std::minmax_element(orders.begin(), orders.end(),
                                                       [](const Order& a, const Order& b) { return a.time < b.time; });
        const auto rate = [&](long long ms) {
            return static_cast<double>(sold - 1) * 1000 / static_cast<double>(std::max(1LL, ms));
        };
        std::printf("throughput: %.0f units a second %s; %.0f without the longest stall\n",
                    rate(last->time - first->time), sale.way().c_str(), rate(last->time - first->time - stall));
    }
    std::printf(
        "result: stock=%lld sold=%lld oversold=%lld duplicate_customers=%lld duplicate_order_ids=%lld "
        "killed_sellers=%d longest_stall_ms=%lld\n",
        units, sold, oversold, twice, same_ids, killed, stall);
    return sold == units && twice == 0 && same_ids == 0 && killed == 1 &&
           stall < (lease + (redis.follows() ? 30s : 1s)).count();
}

bool run_sale(bool locked, std::size_t segments) {
    std::optional<PrivateServer> server;
    if (!std::getenv("REDLATCH_URL")) ::setenv("REDLATCH_URL", server.emplace().url().c_str(), 1);
    std::random_device random;
    const Sale sale{std::getenv("REDLATCH_URL"),
                    "{flash_sale:" + std::to_string(::getpid()) + '-' + std::to_string(random()) + "}:", locked,
                    segments};
    Redis redis{sale.url, sale.prefix};
    const KeyRemover remover{redis, sale};
    open_sale(redis, sale);
    std::optional<redlatch::Client> client;
    std::optional<redlatch::SegmentedSemaphore> stock;
    if (segments > 0) {
        stock.emplace(client.emplace(sale.url), sale.spread("stock"), segments);
        stock->try_set_permits(units, 1h);
    }
    std::printf("%d processes of %d threads sell %lld units %s\n", seller_processes, threads_per_seller, units,
                sale.way().c_str());
    std::fflush(stdout);
    std::deque<Child> sellers;
    for (int i = 0; i < seller_processes; ++i)
        sellers.emplace_back(Words{"/proc/self/exe", "--seller", std::to_string(i), sale.prefix, locked ? "1" : "0",
                                   std::to_string(segments)});
    const int killed = watch(redis, sale, sellers);
    bool well = report(redis, sale, killed);
    if (stock) {
        well = stock->acquired_permits() == units && well;
        stock->remove();
    }
    return well || !locked;
}

// Returns the number in the text; nothing if it is not from 1 to the most segments that there may be.
std::optional<std::size_t> segments_in(const std::string& text) {
    if (text.empty() || text.size() > 4 || text.find_first_not_of("0123456789") != std::string::npos) return {};
    const std::size_t number = std::stoul(text);
    if (number < 1 || number > redlatch::SegmentedSemaphore::max_segments()) return {};
    return number;
}

}  // namespace

int main(int argc, char** argv) try {
    const Words arguments(argv + 1, argv + argc);
    if (const char* url = std::getenv("REDLATCH_URL"); url && arguments.size() == 5 && arguments[0] == "--seller") {
        run_seller({url, arguments[2], arguments[3] == "1", std::stoul(arguments[4])}, std::stoi(arguments[1]));
        return 0;
    }
    const bool segmented = arguments.size() == 2 && arguments[0] == "--segments";
    const std::optional<std::size_t> segments = segmented ? segments_in(arguments[1]) : std::nullopt;
    const bool locked = arguments.empty() || segments;
    if (!locked && arguments != Words{"--without-lock"}) {
        const bool help = arguments[0] == "--help";
        std::fputs(
            "usage: flash_sale [--segments N | --without-lock | --help]\n"
            "Sells 500 units to 2,000 customers, on a redis-server of its own or on the one at REDLATCH_URL.\n"
            "  --segments N    the same sale without the one lock: from a stock of 1 to 1024 segments\n"
            "  --without-lock  the same sale unprotected: shows how much it oversells\n"
            "Exit status: 0 when everything was sold once and a killed seller held nobody up, else 1.\n",
            help ? stdout : stderr);
        return help ? 0 : 1;
    }
    std::signal(SIGPIPE, SIG_IGN);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, [](int number) { signalled = number; });
    return run_sale(locked, segments.value_or(0)) ? 0 : 1;
} catch (const std::exception& error) {
    std::fprintf(stderr, "flash_sale: %s\n", error.what());
    return signalled != 0 ? 128 + signalled : 1;
}
