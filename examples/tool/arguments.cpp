// SPDX-License-Identifier: MIT
#include "arguments.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>
#include <utility>

namespace tool {

const std::string_view help_text = R"(redlatch: commands under distributed locks on Redis

usage:
  redlatch run --lock NAME [options] -- COMMAND [ARGUMENT...]
  redlatch try --lock NAME [options] -- COMMAND [ARGUMENT...]
  redlatch lead --lock NAME [options] -- COMMAND [ARGUMENT...]
  redlatch ls [PATTERN]
  redlatch who NAME
  redlatch unlock --force NAME
  redlatch top [PATTERN] [--interval TIME] [--count N]

commands:
  run      waits for the lock, runs the command while it is held, and gives it back
  try      the same without waiting
  lead     campaigns for the lock again and again, and runs the command whenever it leads
  ls       lists the locks that are held; PATTERN is that of SCAN, such as 'orders:*'
  who      shows who holds a lock and who waits for it
  unlock   ends the hold of anyone, with --force
  top      shows the locks that are held, again and again

options of run, try and lead:
  --lock NAME      the name of the lock
  --as NAME        lead: the name that who and observers show; else that of the host and the process
  --fair           run, try: waiters are served in the order of their arrival
  --shared         run, try: as one of many readers of a read-write lock
  --exclusive      run, try: as the writer of a read-write lock
  --permits N      run, try: at most N commands at a time
  --wait TIME      run: how long to wait for the lock; without it, as long as it takes
  --lease TIME     how long the lock outlives a tool that dies; renewed meanwhile (30s)
  --at-least TIME  run, try: the lock is free no earlier than this after it was acquired
  --at-most TIME   run, try: the command is ended this long after the lock was acquired
  --grace TIME     from the signal TERM to KILL when the lock is lost (a sixth of the lease)

options of top:
  --interval TIME  between two views (1s)
  --count N        ends after N views

options of all:
  --url URL        the server, as for the library (REDLATCH_URL, else redis://127.0.0.1:6379)
  --prefix TEXT    comes before each name on the server
  --help           prints this text
  --version        prints the version

A TIME is a number with ms, s, m, h or d, such as 250ms or 1.5h; without a unit, in seconds.

environment of the command:
  REDLATCH_LOCK    the name of the lock
  REDLATCH_TOKEN   the fencing token, which only grows; not with --fair, --shared, --exclusive and --permits

exit codes: that of the command, 128 plus the signal that ended it, or
  1    who, unlock: nobody holds the lock
  64   the command line makes no sense
  69   no server could be reached in time
  70   another error
  75   the lock was not free in time
  76   the lock was lost while the command ran
  126  the command cannot be executed
  127  there is no such command
)";

namespace {

long number_of(const std::string& option, std::string_view text) {
    long number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end != text.data() + text.size() || number < 1 || number > 1'000'000)
        throw UsageError(option + ": not a number from 1 to 1000000: " + std::string(text));
    return number;
}

Command command_of(const std::string& word) {
    static const std::pair<std::string_view, Command> all[] = {
        {"run", Command::run},     {"try", Command::attempt},   {"lead", Command::lead},        {"ls", Command::list},
        {"who", Command::who},     {"unlock", Command::unlock}, {"top", Command::top},          {"help", Command::help},
        {"--help", Command::help}, {"-h", Command::help},       {"--version", Command::version}};
    for (const auto& [text, command] : all)
        if (word == text) return command;
    throw UsageError("no such command: " + word);
}

bool runs(Command command) {
    return command == Command::run || command == Command::attempt || command == Command::lead;
}

// Takes the words one after another.
class Parser {
public:
    Parser(const std::vector<std::string>& words, Arguments& into) : words_(words), into_(into) {}

    void parse() {
        bool has_command = false;
        for (; at_ < words_.size(); ++at_) {
            const std::string& word = words_[at_];
            if (word == "--") {
                if (!has_command || !runs(into_.command)) throw UsageError("no command takes a program here");
                into_.program.assign(words_.begin() + static_cast<std::ptrdiff_t>(at_) + 1, words_.end());
                break;
            }
            if (word == "--help" || word == "-h" || word == "--version") {
                into_.command = command_of(word);
                return;
            }
            if (word.starts_with("-"))
                option(word);
            else if (!std::exchange(has_command, true))
                into_.command = command_of(word);
            else
                operand(word);
        }
        if (!has_command) throw UsageError("no command");
    }

    bool has_grace() const { return has_grace_; }

private:
    void option(const std::string& word) {
        // --option=value or --option value
        const auto equals = word.find('=');
        const std::string name = word.substr(0, equals);
        const auto value = [&]() -> std::string {
            if (equals != std::string::npos) return word.substr(equals + 1);
            if (at_ + 1 >= words_.size()) throw UsageError(name + " needs a value");
            return words_[++at_];
        };
        const auto time = [&] {
            const std::string text = value();
            try {
                return duration_of(text);
            } catch (const UsageError& error) {
                throw UsageError(name + ": " + error.what());
            }
        };
        if (name == "--url")
            into_.url = value();
        else if (name == "--prefix")
            into_.prefix = value();
        else if (name == "--lock")
            into_.name = value();
        else if (name == "--wait")
            into_.wait = time();
        else if (name == "--lease")
            into_.lease = time();
        else if (name == "--at-least")
            into_.at_least = time();
        else if (name == "--at-most")
            into_.at_most = time();
        else if (name == "--grace")
            into_.grace = time(), has_grace_ = true;
        else if (name == "--as")
            into_.candidate = value();
        else if (name == "--interval")
            into_.interval = time();
        else if (name == "--count")
            into_.count = number_of(name, value());
        else if (name == "--permits")
            kind(Kind::permits), into_.permits = number_of(name, value());
        else if (equals != std::string::npos)
            throw UsageError("no such option, or it takes no value: " + word);
        else if (name == "--fair")
            kind(Kind::fair);
        else if (name == "--shared")
            kind(Kind::shared);
        else if (name == "--exclusive")
            kind(Kind::exclusive);
        else if (name == "--force")
            into_.force = true;
        else
            throw UsageError("no such option: " + word);
    }

    void kind(Kind kind) {
        if (std::exchange(has_kind_, true))
            throw UsageError("only one of --fair, --shared, --exclusive and --permits is possible");
        into_.kind = kind;
    }

    void operand(const std::string& word) {
        const bool takes_name = into_.command == Command::who || into_.command == Command::unlock;
        const bool takes_pattern = into_.command == Command::list || into_.command == Command::top;
        if (takes_name && into_.name.empty())
            into_.name = word;
        else if (takes_pattern && into_.pattern.empty())
            into_.pattern = word;
        else if (runs(into_.command))
            throw UsageError("the program comes after --: " + word);
        else
            throw UsageError("one word too many: " + word);
    }

    const std::vector<std::string>& words_;
    Arguments& into_;
    std::size_t at_ = 0;
    bool has_kind_ = false;
    bool has_grace_ = false;
};

void check(const Arguments& all) {
    if (runs(all.command)) {
        if (all.name.empty()) throw UsageError("--lock NAME is missing");
        if (all.program.empty()) throw UsageError("a program to run is missing: put it after --");
        if (all.command != Command::run && all.wait) throw UsageError("only run takes --wait");
        if (all.command != Command::lead && !all.candidate.empty()) throw UsageError("only lead takes --as");
        if (all.command == Command::lead && (all.kind != Kind::fenced || all.at_least || all.at_most))
            throw UsageError("lead takes neither a kind of lock nor --at-least nor --at-most");
        if (all.lease < Milliseconds(100)) throw UsageError("--lease must be at least 100ms");
        if (all.kind == Kind::permits && (all.at_least || all.at_most))
            throw UsageError("--permits goes with neither --at-least nor --at-most");
        if (all.at_least && all.at_least->count() == 0) throw UsageError("--at-least must not be zero");
        if (all.at_most && *all.at_most < Milliseconds(100)) throw UsageError("--at-most must be at least 100ms");
        if (all.at_least && all.at_most && *all.at_least > *all.at_most)
            throw UsageError("--at-least must not exceed --at-most");
        if (all.grace >= all.lease) throw UsageError("--grace must be shorter than the lease");
    }
    if ((all.command == Command::who || all.command == Command::unlock) && all.name.empty())
        throw UsageError("the name of a lock is missing");
    if (all.command == Command::unlock && !all.force)
        throw UsageError("unlock ends a hold of someone who relies on it; --force says that you mean it");
    if (all.interval < Milliseconds(10)) throw UsageError("--interval must be at least 10ms");
}

}  // namespace

Milliseconds duration_of(std::string_view text) {
    double number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
    const double scale = unit == "ms"                  ? 1
                         : unit == "s" || unit.empty() ? 1'000
                         : unit == "m"                 ? 60'000
                         : unit == "h"                 ? 3'600'000
                         : unit == "d"                 ? 86'400'000
                                                       : 0;
    // More than ten years is a mistake.
    if (error != std::errc{} || scale == 0 || !(number >= 0) || !(number * scale <= 86'400'000.0 * 3'653))
        throw UsageError("not a time such as 250ms, 10s, 5m, 2h or 1d: " + std::string(text));
    return Milliseconds(static_cast<Milliseconds::rep>(std::ceil(number * scale)));
}

Arguments parse(const std::vector<std::string>& words, std::string_view url) {
    Arguments all;
    all.url = url.empty() ? "redis://127.0.0.1:6379" : std::string(url);
    Parser parser(words, all);
    parser.parse();
    if (all.command == Command::help || all.command == Command::version) return all;
    if (!parser.has_grace()) {
        all.grace = all.lease / 6;
        if (all.at_most) all.grace = std::min(all.grace, *all.at_most / 6);
    }
    check(all);
    return all;
}

}  // namespace tool
