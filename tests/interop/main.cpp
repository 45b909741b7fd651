// SPDX-License-Identifier: MIT
// Checks that an unchanged Redisson and redlatch share their locks.
// redlatch_interop <java> <class path> [text [seconds [single|sharded|classic]]]
//
// Runs the table of table.hpp: each row with Java and C++ in all combinations of holder and waiter. Leaves out rows
// whose kind and title do not contain the text. If seconds are given, each crowd consists of four processes of each
// language for that time. Runs the table on single servers, and twice on a cluster, with each kind of pub/sub. Exits
// with 1 if a cell differs.
#include <algorithm>
#include <atomic>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "support/cluster_servers.hpp"
#include "support/process.hpp"
#include "support/redis_server.hpp"
#include "support/temp_dir.hpp"
#include "table.hpp"

namespace redlatch::test {

namespace {

/// One agent of each language on the same servers.
struct Agents {
    Agents(const std::vector<Remote::Kind>& kinds, const std::vector<std::string>& urls)
        : java(kinds.at(0), urls), cpp(kinds.at(1), urls) {}

    Remote java;
    Remote cpp;
};

/// The languages of holder and waiter, in the order of the columns.
struct Column {
    const char* title;
    const char* letters;
    Remote Agents::*holder;
    Remote Agents::*waiter;
};

constexpr Column columns[] = {
    {"Java>Java", "jj", &Agents::java, &Agents::java},
    {"Java>C++", "jc", &Agents::java, &Agents::cpp},
    {"C++>Java", "cj", &Agents::cpp, &Agents::java},
    {"C++>C++", "cc", &Agents::cpp, &Agents::cpp},
};

std::set<std::string> kinds_of(Remote& agent) {
    std::set<std::string> kinds;
    std::istringstream list{agent.send("main", "kinds - -").get().text};
    for (std::string kind; std::getline(list, kind, ',');) kinds.insert(kind);
    return kinds;
}

enum class ReplyClass { pass, differs, absent };

struct Cell {
    ReplyClass verdict = ReplyClass::absent;
    std::string difference = {};
};

std::string padded(std::string text, std::size_t width) {
    text.resize(std::max(width, text.size()), ' ');
    return text;
}

/// The servers that agents share.
struct Ground {
    std::string title;
    std::vector<std::string> urls;     // for the agents: mostly the first one; the others are for a RedLock only
    std::vector<std::string> masters;  // for this program: all servers that may have keys
    std::function<Place(const std::string&)> place;  // returns the place of a name
    std::function<void()> restart = nullptr;         // restarts and keeps the data
};

Ground one_server(RedisServer& server) {
    return {"", {server.tcp_url()}, {server.url()}, [&](const std::string&) {
                return Place{server.url(), {server.url()}};
            }};
}

Ground cluster_of(ClusterServers& cluster, bool sharded) {
    const std::string pubsub = sharded ? "sharded" : "classic";
    std::vector<std::string> masters;
    std::vector<std::string> nodes;
    for (std::size_t i = 0; i < cluster.size(); ++i) {
        nodes.push_back(cluster.node(i).url());
        if (i < cluster.size() / 2) masters.push_back(cluster.node(i).url());
    }
    return {"Cluster, " + pubsub + " pub/sub",
            {cluster.url() + "?pubsub=" + pubsub},
            masters,
            [&cluster, nodes, sharded](const std::string& name) {
                static std::mutex mutex;  // one thread at a time may use the cluster
                const std::lock_guard guard{mutex};
                return Place{cluster.master_of(name).url(), nodes, sharded};
            }};
}

class Run {
public:
    /// Without a lasting ground, rows with a restart are left out.
    Run(std::vector<Remote::Kind> kinds, std::string words, milliseconds soak, Ground ground,
        std::optional<Ground> lasting)
        : words_(std::move(words)),
          soak_(soak),
          kinds_(std::move(kinds)),
          ground_(std::move(ground)),
          lasting_(std::move(lasting)),
          agents_(kinds_, ground_.urls),
          doomed_(kinds_, ground_.urls) {
        if (lasting_) lasting_agents_ = std::make_unique<Agents>(kinds_, lasting_->urls);
        for (int i = 0; i < 3 && soak > soak.zero(); ++i)
            soaking_.push_back(std::make_unique<Agents>(kinds_, ground_.urls));
    }

    int operator()() {
        java_kinds_ = kinds_of(agents_.java);
        cpp_kinds_ = kinds_of(agents_.cpp);
        RawRedis redis{ground_.masters.front()};
        if (!ground_.title.empty()) std::cout << ground_.title << ": ";
        std::cout << agents_.java.send("main", "hello - -").get().text << ", "
                  << agents_.cpp.send("main", "hello - -").get().text << ", Redis "
                  << redis.info("server", "redis_version") << "; holder>waiter:\n";
        std::cout << padded("", 60);
        for (const Column& column : columns) std::cout << padded(column.title, 11);
        std::cout << std::endl;

        std::vector<Row> rows = lock_rows();
        for (auto* more : {read_write_rows, mixed_kind_rows, multi_rows, semaphore_rows, latch_rows}) {
            for (Row& row : more()) rows.push_back(std::move(row));
        }
        std::erase_if(rows, [&](const Row& row) { return !wanted(row.pairing.title, row.title); });

        std::erase_if(rows, [&](const Row& row) { return row.pairing.hold == "red" && ground_.urls.size() < 3; });

        for (Agents* agents : {&agents_, &doomed_, lasting_agents_.get()})
            if (agents != nullptr) warm_up(*agents);
        run_all(rows);
        run_crowds();
        run_around(rows, ground_,
                   {{Row::Event::killed, {&doomed_, &agents_}}, {Row::Event::waiter_killed, {&agents_, &doomed_}}},
                   [&] {
                       doomed_.java.kill();
                       doomed_.cpp.kill();
                   });
        if (lasting_)
            run_around(rows, *lasting_, {{Row::Event::restarted, {lasting_agents_.get(), lasting_agents_.get()}}},
                       lasting_->restart);
        look_for_leftovers();

        std::set<std::string> absent;
        std::set_difference(java_kinds_.begin(), java_kinds_.end(), cpp_kinds_.begin(), cpp_kinds_.end(),
                            std::inserter(absent, absent.end()));
        if (!absent.empty()) {
            std::cout << "not in this build of redlatch:";
            for (const std::string& kind : absent) std::cout << ' ' << kind;
            std::cout << '\n';
        }
        std::cout << passed_ << " passed, " << failed_ << " differ" << std::endl;
        return failed_ > 0 || passed_ == 0 ? 1 : 0;
    }

private:
    /// A Java process that still loads its classes is too slow for the time limits.
    void warm_up(Agents& agents) {
        const std::string name = "interop-first-" + std::to_string(++names_);
        const Actor first{agents.java, "first", "rlock", name};
        first.start("lock").get("ok", std::chrono::minutes{2});
        Actor{agents.java, "second", "rlock", name}.must("try", "false", "wait=50");
        first.must("unlock", "ok");
    }

    bool wanted(const std::string& kind, const std::string& title) const {
        return (kind + " " + title).find(words_) != std::string::npos;
    }

    bool has(const Remote& agent, const std::string& kind) const {
        return (agent.is_java() ? java_kinds_ : cpp_kinds_).contains(kind);
    }

    bool can(const Row& row, const Column& column) const {
        return has(agents_.*column.holder, row.pairing.hold) && has(agents_.*column.waiter, row.pairing.want);
    }

    /// Runs the function. An exception is a difference.
    static Cell judged(const std::function<void()>& function) {
        try {
            function();
            return {ReplyClass::pass};
        } catch (const std::exception& error) {
            return {ReplyClass::differs, error.what()};
        }
    }

    std::string new_name(const Pairing& pairing, const Column& column) {
        return "interop-" + pairing.hold + "-" + column.letters + "-" + std::to_string(++names_);
    }

    void print(const std::string& kind, const std::string& title, const std::vector<Cell>& cells,
               const std::string& note = "", const std::string& remark = "") {
        static const std::map<ReplyClass, std::string> words{
            {ReplyClass::pass, "pass"}, {ReplyClass::differs, "DIFFERS"}, {ReplyClass::absent, "-"}};
        std::cout << padded(kind, 16) << padded(title, 44);
        for (const Cell& cell : cells) {
            std::cout << padded(words.at(cell.verdict), 11);
            passed_ += cell.verdict == ReplyClass::pass ? 1 : 0;
            failed_ += cell.verdict == ReplyClass::differs ? 1 : 0;
        }
        std::cout << remark << '\n';
        if (!note.empty()) std::cout << "    Redisson: " << note << '\n';
        for (std::size_t i = 0; i < cells.size(); ++i) {
            if (cells[i].verdict != ReplyClass::differs) continue;
            std::cout << "    " << (cells.size() > 1 ? std::string{columns[i].title} + ": " : "") << cells[i].difference
                      << '\n';
        }
        std::cout.flush();
    }

    /// Runs the rows without an event, many at a time, because mostly they sleep.
    void run_all(const std::vector<Row>& rows) {
        constexpr std::size_t at_a_time = 8;
        std::vector<const Row*> plain;
        for (const Row& row : rows) {
            if (row.event == Row::Event::none) plain.push_back(&row);
        }
        std::vector<std::vector<Cell>> cells(plain.size(), std::vector<Cell>(std::size(columns)));
        std::vector<std::atomic<int>> left(plain.size());
        for (auto& count : left) count = static_cast<int>(std::size(columns));
        std::atomic<std::size_t> next{0};
        std::vector<std::jthread> threads;
        for (std::size_t number = 0; number < at_a_time; ++number) {
            threads.emplace_back([&] {
                while (true) {
                    const std::size_t task = next++;
                    if (task >= plain.size() * std::size(columns)) return;
                    const std::size_t row = task / std::size(columns);
                    const Column& column = columns[task % std::size(columns)];
                    if (can(*plain[row], column)) {
                        cells[row][task % std::size(columns)] = judged([&] {
                            const std::string name = new_name(plain[row]->pairing, column);
                            Match match{agents_.*column.holder, agents_.*column.waiter, plain[row]->pairing,
                                        ground_.place(name), name};
                            plain[row]->run(match);
                        });
                    }
                    --left[row];
                    left[row].notify_one();
                }
            });
        }
        for (std::size_t row = 0; row < plain.size(); ++row) {
            for (int count = left[row]; count > 0; count = left[row]) left[row].wait(count);
            print(plain[row]->pairing.title, plain[row]->title, cells[row], plain[row]->note);
        }
    }

    /// The agents that hold and those that wait.
    using Parties = std::pair<Agents*, Agents*>;

    /// Runs the rows with these events. An event affects all of them at once.
    void run_around(const std::vector<Row>& rows, const Ground& ground, const std::map<Row::Event, Parties>& events,
                    const std::function<void()>& make_it_happen) {
        struct Open {
            const Row* row;
            std::vector<std::unique_ptr<Match>> matches;
            std::vector<Cell> cells;
        };
        std::vector<Open> all;
        for (const Row& row : rows) {
            if (!events.contains(row.event)) continue;
            const auto& [holders, waiters] = events.at(row.event);
            Open open{&row, {}, std::vector<Cell>(std::size(columns))};
            for (std::size_t i = 0; i < std::size(columns); ++i) {
                const Column& column = columns[i];
                open.matches.emplace_back();
                if (!can(row, column)) continue;
                const std::string name = new_name(row.pairing, column);
                open.matches[i] = std::make_unique<Match>(holders->*column.holder, waiters->*column.waiter, row.pairing,
                                                          ground.place(name), name);
                open.cells[i] = judged([&] { row.run(*open.matches[i]); });
            }
            all.push_back(std::move(open));
        }
        if (all.empty()) return;
        until_quiet(ground);
        make_it_happen();
        for (Open& open : all) {
            for (std::size_t i = 0; i < std::size(columns); ++i) {
                if (open.cells[i].verdict != ReplyClass::pass) continue;
                if (open.row->event == Row::Event::restarted) open.matches[i]->redis.reconnect();
                open.cells[i] = judged([&] { open.row->after(*open.matches[i]); });
            }
            print(open.row->pairing.title, open.row->title, open.cells, open.row->note);
        }
    }

    /// Waits until no client sends scripts any more: Redisson does not resend a script whose reply is lost, but throws.
    static void until_quiet(const Ground& ground) {
        const auto script_calls = [&] {
            long long all = 0;
            for (const std::string& master : ground.masters) all += RawRedis{master}.script_calls();
            return all;
        };
        long long calls = script_calls();
        Stopwatch quiet;
        const auto is_quiet = [&] {
            if (const long long now = script_calls(); now != calls) {
                calls = now;
                quiet.restart();
            }
            return quiet.elapsed_ms() >= milliseconds{300};
        };
        eventually(is_quiet, std::chrono::seconds{3}, milliseconds{10});
    }

    /// Runs threads of both languages at once, for some seconds.
    void run_crowds() {
        for (const CrowdRow& row : crowd_rows()) {
            if (!wanted(row.kind_title, row.title)) continue;
            bool possible = row.look.empty() || cpp_kinds_.contains(row.look);
            for (const std::string& kind : row.add) possible = possible && cpp_kinds_.contains(kind);
            std::string shares;
            const Cell cell = possible ? judged([&] { shares = crowd(row); }) : Cell{};
            print(row.kind_title, row.title, {cell}, "", shares);
        }
    }

    /// Returns the agents of two threads of each language, or for a soak of four processes of each.
    std::vector<Agents*> crowd_of_agents() {
        if (soak_ == soak_.zero()) return {&agents_, &agents_};
        std::vector<Agents*> all{&agents_};
        for (const auto& more : soaking_) all.push_back(more.get());
        return all;
    }

    /// What the threads of one language did in a crowd.
    struct Part {
        std::string sections;
        long long longest_wait = 0;  // in ms
    };

    /// Returns the number of sections of each thread, and the longest waits.
    std::string crowd(const CrowdRow& row) {
        const std::string name = "interop-crowd-" + std::to_string(++names_);
        const std::string counter = "plain-" + name;
        const milliseconds time = soak_ > soak_.zero() ? soak_ : std::chrono::seconds{3};
        const std::string server = ground_.place(counter).url;
        std::string arguments = name + " ms=" + std::to_string(time.count()) + " counter=" + counter +
                                " server=" + server + " grants=" + (row.grants ? "1" : "0");
        // Others wait for the lease of a killed holder.
        if (row.kills != Kills::none) arguments += " wd=3000";
        RawRedis redis{server};
        if (row.permits > 0)
            Actor{agents_.java, "main", row.add[0], name}.must("set", "true", "n=" + std::to_string(row.permits));
        std::unique_ptr<Agents> doomed;
        std::vector<Agents*> all = crowd_of_agents();
        if (row.kills != Kills::none) {
            doomed = std::make_unique<Agents>(kinds_, ground_.urls);
            warm_up(*doomed);
            all.push_back(doomed.get());
        }
        std::vector<Pending> adding;
        std::vector<Pending> looking;
        std::vector<std::string> own;  // the counters of the threads
        for (Agents* agents : all) {
            for (Remote* agent : {&agents->java, &agents->cpp}) {
                const std::size_t next = own.size();
                const std::string thread = name + "-" + std::to_string(next);
                const std::size_t kind = next / 2 % row.add.size();
                own.push_back("{" + counter + "}-" + std::to_string(next));  // at the same node
                // One client of redlatch would refuse a second kind on one name.
                const std::string client = kind > 0 && !agent->is_java() ? " wd=29000" : "";
                adding.push_back(
                    agent->send(thread, "stress " + row.add[kind] + " " + arguments + " own=" + own.back() + client));
                if (!row.look.empty())
                    looking.push_back(agent->send(thread + "-look", "look " + row.look + " " + arguments));
            }
        }
        // Those of the last pair are killed.
        if (row.kills != Kills::none) {
            std::this_thread::sleep_for(time / 2);
            doomed->cpp.kill();
            if (row.kills == Kills::one_of_each) doomed->java.kill();
        }
        const std::size_t killed = static_cast<std::size_t>(row.kills);
        const std::size_t survivors = adding.size() - killed;
        Part parts[2];  // Java, C++
        for (std::size_t i = 0; i < survivors; ++i) {
            const std::string text = adding[i].get(time + std::chrono::seconds{20}).text;
            if (text.starts_with("!")) throw Difference(text);
            const auto blank = text.find(' ');
            Part& part = parts[i % 2];
            part.sections += " " + text.substr(0, blank);
            part.longest_wait = std::max(part.longest_wait, std::stoll(text.substr(blank + 1)));
            if (std::stoll(text) == 0) throw Difference("one never came in:" + part.sections);
        }
        for (Pending& one : looking) {
            const std::string text = one.get(time + std::chrono::seconds{20}).text;
            if (text.starts_with("!") || text == "0") throw Difference("a reader: " + text);
        }
        const std::string shares = "sections (longest wait): Java" + parts[0].sections + " (" +
                                   std::to_string(parts[0].longest_wait) + " ms), C++" + parts[1].sections + " (" +
                                   std::to_string(parts[1].longest_wait) + " ms)";
        long long sections = 0;
        for (const std::string& one : own) sections += redis.exists(one) ? redis.integer("GET", one) : 0;
        const long long counted = redis.integer("GET", counter);
        redis.integer("DEL", counter);
        for (const std::string& one : own) redis.integer("DEL", one);
        if (row.permits > 0) RawRedis{ground_.place(name).url}.integer("DEL", name);
        // A killed thread may have added to the common counter and not to its own.
        if (counted < sections || counted > sections + static_cast<long long>(killed))
            throw Difference("counted " + std::to_string(counted) + " in " + std::to_string(sections) + " " + shares);
        const auto [least, most] = std::minmax(parts[0].longest_wait, parts[1].longest_wait);
        if (soak_ > soak_.zero() && row.most_unfair > 0 &&
            static_cast<double>(most) > row.most_unfair * static_cast<double>(std::max(least, 1LL)))
            throw Difference("one language waits longer: " + shares);
        return shares;
    }

    /// Checks that at the end only keys are left that stay by design.
    void look_for_leftovers() {
        const auto left = [&] {
            std::vector<std::string> all;
            for (const std::string& master : ground_.masters) {
                RawRedis redis{master};
                for (std::string& key : redis.keys("*interop*")) {
                    // A read hold that was ended by force leaves its own key until its TTL ends. So do the keys that
                    // redlatch adds.
                    const bool may_expire =
                        key.find(":rwlock_timeout:") != std::string::npos || key.starts_with("redlatch_");
                    const bool may_stay =
                        (may_expire && redis.pttl(key) != -1) || key.starts_with("redisson_lock_token:");
                    if (!may_stay) all.push_back(std::move(key));
                }
            }
            for (const std::string& channel : listened_to(ground_.place("interop"), "*interop*"))
                all.push_back("channel " + channel);
            return all;
        };
        eventually([&] { return left().empty(); }, std::chrono::seconds{15}, milliseconds{50});
        std::string text;
        for (const std::string& one : left()) text += " " + one;
        print("all", "no key, no subscription is left",
              {text.empty() ? Cell{ReplyClass::pass} : Cell{ReplyClass::differs, text}});
    }

    std::string words_;
    milliseconds soak_;
    std::vector<Remote::Kind> kinds_;
    Ground ground_;
    std::optional<Ground> lasting_;  // its server is restarted
    Agents agents_;
    Agents doomed_;                           // these are killed
    std::unique_ptr<Agents> lasting_agents_;  // these use the lasting ground
    std::vector<std::unique_ptr<Agents>> soaking_;
    std::set<std::string> java_kinds_;
    std::set<std::string> cpp_kinds_;
    std::atomic<int> names_{0};
    int passed_ = 0;
    int failed_ = 0;
};

int interop_main(int count, char** values) {
    const std::vector<std::string> words(values + 1, values + count);
    if (words.size() < 2) {
        std::cerr << "redlatch_interop <java> <class path> [text [seconds [single|sharded|classic]]]\n";
        return 2;
    }
    const std::string log = "redlatch_interop.log";
    const Program java{.path = words[0],
                       .args = {"-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", words[1], "Agent"},
                       .output = log};
    const Program cpp{.path = "/proc/self/exe", .environment = {{detail::role_variable, "agent"}}, .output = log};
    const std::string text = words.size() > 2 ? words[2] : "";
    const std::chrono::seconds soak{words.size() > 3 ? std::stoi(words[3]) : 0};
    const std::string only = words.size() > 4 ? words[4] : "";
    const std::vector<Remote::Kind> kinds{{"Java", java}, {"C++", cpp}};
    int result = 0;
    if (only.empty() || only == "single") {
        RedisServer server{{.tcp = true}};
        RedisServer second{{.tcp = true}};
        RedisServer third{{.tcp = true}};
        RedisServer restarted{{.tcp = true, .appendonly = true}};
        Ground ground = one_server(server);
        ground.urls = {server.tcp_url(), second.tcp_url(), third.tcp_url()};
        Ground lasting = one_server(restarted);
        lasting.restart = [&] { restarted.restart(); };
        result |= Run{kinds, text, soak, ground, lasting}();
    }
    for (const bool sharded : {true, false}) {
        if (!only.empty() && only != (sharded ? "sharded" : "classic")) continue;
        ClusterServers cluster{{.node_timeout = std::chrono::seconds{60}}};  // no failover
        result |= Run{kinds, text, soak, cluster_of(cluster, sharded), std::nullopt}();
    }
    return result;
}

}  // namespace
}  // namespace redlatch::test

int main(int argc, char** argv) { return redlatch::test::role_main(argc, argv, redlatch::test::interop_main); }
