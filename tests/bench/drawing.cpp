// SPDX-License-Identifier: MIT
#include "drawing.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string_view>

namespace redlatch::bench {

namespace {

// In pixels.
constexpr double width = 900;
constexpr double margin = 24;
constexpr double bars_begin = 410;
constexpr double bars_end = 820;  // the rest of the row is for the number
constexpr double row_height = 20;
constexpr double bar_height = 12;

// Colours that remain apart for colour-blind eyes. Plain rules instead of variables: not every viewer has those.
constexpr std::string_view style = R"(
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.heading { font-size: 20px; font-weight: 600; }
.scenario { font-size: 16px; font-weight: 600; }
.note { fill: #59636e; }
.page { fill: #ffffff; }
.good { fill: #0969da; }
.worse { fill: #d4700a; }
.reference { fill: #8c959f; }
.range, .one { stroke: #1f2328; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.note { fill: #9198a1; }
.page { fill: #0d1117; }
.good { fill: #4493f8; }
.worse { fill: #f0883e; }
.reference { fill: #656c76; }
.range, .one { stroke: #e6edf3; }
}
)";

struct Caption {
    std::string_view name;
    std::string_view text;
};

constexpr Caption scenarios[] = {
    {"uncontended", "A free lock: one thread locks and unlocks"},
    {"threads", "Free locks: a key for each thread"},
    {"coroutines", "Free locks: a key for each coroutine, all on one thread"},
    {"contended_threads", "Threads of one process compete for one lock"},
    {"contended_processes", "Processes compete for one lock"},
    {"busy", "Threads hold one lock for 1 ms at a time, and pause for 1 ms"},
    {"wake_up", "A waiter in another process wakes up after an unlock"},
    {"idle_wait", "Threads wait for a lock that stays taken"},
    {"watchdog", "10,000 holds are renewed"},
    {"fair_threads", "Threads of one process queue for a FairLock"},
    {"fair_processes", "Threads of several processes queue for a FairLock"},
    {"rw_mixed", "Threads of several processes read, and write every tenth time"},
    {"semaphore", "Threads of several processes compete for 4 permits"},
    {"semaphore_held_1ms", "The same, and each keeps its permit for 1 ms"},
    {"latch_release", "Threads of several processes wait for a CountDownLatch"},
    {"redlock", "A RedLock on 5 servers"},
};

struct Comparison {
    std::string_view metric;
    std::string_view text;
    bool more_is_better = true;
};

constexpr Comparison comparisons[] = {
    {"ratio_to_bare_hiredis", "Acquisitions a second: bare hiredis is 1"},
    {"ratio_to_bare_set", "Acquisitions a second: SET NX PX and compare-and-delete by bare hiredis are 1"},
    {"ratio_to_pipelined", "Acquisitions a second: all scripts in one pipeline are 1"},
    {"ratio_to_token", "Acquisitions a second, those by the last holder included: a bare BLPOP/LPUSH token is 1"},
    {"handoffs_ratio_to_token", "Real hand-offs a second, to another thread: a bare BLPOP/LPUSH token is 1"},
    {"ratio_to_bare_script_calls", "Acquisitions a second: bare script calls, one after another, are 1"},
    {"handoff_ratio_to_token", "Time of a hand-off: a bare BLPOP/LPUSH token is 1", false},
    {"commands_ratio_to_2_waiters", "Commands for an acquisition: those with 2 waiters are 1", false},
    {"ratio_to_rlock", "Acquisitions a second: an RLock for readers and writers alike is 1"},
    {"ratio_to_bare_publish", "Time until the last waiter continues: a bare PUBLISH is 1", false},
    {"ratio_to_one_server", "Acquisitions a second: an RLock on one server is 1"},
};

std::string caption_of(const std::string& scenario) {
    const auto found = std::find_if(std::begin(scenarios), std::end(scenarios),
                                    [&](const Caption& caption) { return caption.name == scenario; });
    return std::string{found == std::end(scenarios) ? scenario : found->text};
}

Comparison comparison_of(const Line& line) {
    // The same name means a time there.
    const bool is_time = line.setting.scenario == "wake_up" && line.metric == "ratio_to_token";
    const std::string_view metric = is_time ? "handoff_ratio_to_token" : std::string_view{line.metric};
    const auto found = std::find_if(std::begin(comparisons), std::end(comparisons),
                                    [&](const Comparison& comparison) { return comparison.metric == metric; });
    return found == std::end(comparisons) ? Comparison{.metric = line.metric, .text = line.metric} : *found;
}

bool is_ratio(const Line& line) { return line.unit == "ratio"; }

using Lines = std::vector<Line>;

// Splits the lines by a key, in the order in which the keys appear.
std::vector<Lines> groups(const Lines& lines, const std::function<std::string(const Line&)>& key) {
    std::vector<Lines> result;
    for (const Line& line : lines) {
        const auto same = [&](const Lines& group) { return key(group.front()) == key(line); };
        const auto found = std::find_if(result.begin(), result.end(), same);
        if (found == result.end())
            result.push_back({line});
        else
            found->push_back(line);
    }
    return result;
}

std::string spaced(std::string words) {
    std::replace(words.begin(), words.end(), '_', ' ');
    return words;
}

std::string count_of(std::size_t count, const std::string& thing, const std::string& things) {
    return std::to_string(count) + ' ' + (count == 1 ? thing : things);
}

// For example "redlatch: unix, 4 processes, 2 threads each".
std::string label_of(const Line& line) {
    const Setting& setting = line.setting;
    std::string label = spaced(line.subject) + ": " + setting.link;
    if (setting.placement == "cross") label += ", a CPU each";
    if (setting.placement == "same") label += ", one CPU";
    if (setting.processes) label += ", " + count_of(*setting.processes, "process", "processes");
    if (setting.threads && !(setting.processes && *setting.threads == 1))
        label += ", " + count_of(*setting.threads, "thread", "threads") + (setting.processes ? " each" : "");
    if (setting.waiters) label += ", " + count_of(*setting.waiters, "waiter", "waiters");
    if (setting.coroutines) label += ", " + count_of(*setting.coroutines, "coroutine", "coroutines");
    return label;
}

std::string escaped(std::string_view text) {
    std::string result;
    for (const char c : text) {
        switch (c) {
            case '&': result += "&amp;"; break;
            case '<': result += "&lt;"; break;
            case '>': result += "&gt;"; break;
            case '"': result += "&quot;"; break;
            default: result += c;
        }
    }
    return result;
}

std::string fixed(double number, int digits) {
    char text[64];
    std::snprintf(text, sizeof text, "%.*f", digits, number);
    return text;
}

std::string pixels(double number) { return '"' + fixed(number, 1) + '"'; }

std::string number_of(double ratio) { return std::isfinite(ratio) ? fixed(ratio, ratio < 10 ? 2 : 0) : "none"; }

class Drawing {
public:
    explicit Drawing(const Lines& lines) {
        heading();
        for (const Lines& panel : groups(lines, [](const Line& line) { return line.setting.scenario; })) draw(panel);
    }

    std::string file() const {
        const std::string size = "width=" + pixels(width) + " height=" + pixels(y_ + margin);
        return "<svg xmlns=\"http://www.w3.org/2000/svg\" " + size + " viewBox=\"0 0 " + fixed(width, 1) + ' ' +
               fixed(y_ + margin, 1) + "\">\n<title>redlatch benchmark</title>\n<style>" + std::string{style} +
               "</style>\n<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n" + body_ + "</svg>\n";
    }

private:
    void heading() {
        y_ = margin;
        line_of_text("heading", "redlatch against its references, measured in one run", 26);
        line_of_text("note",
                     "A bar ends at the median of all rounds. A thin line goes from the smallest to the largest.",
                     row_height);
        line_of_text("note", "Blue is at least as good as the reference. Orange is worse. Grey is not redlatch.",
                     row_height);
    }

    void draw(const Lines& panel) {
        y_ += margin;
        body_ += "<g class=\"panel\">\n";
        line_of_text("scenario", caption_of(panel.front().setting.scenario), 24);
        Lines ratios;
        std::copy_if(panel.begin(), panel.end(), std::back_inserter(ratios), is_ratio);
        for (const Lines& group : groups(ratios, [](const Line& line) { return line.metric; })) draw_bars(group);
        if (ratios.empty()) draw_text(panel);
        body_ += "</g>\n";
    }

    void draw_bars(const Lines& group) {
        const Comparison comparison = comparison_of(group.front());
        line_of_text(
            "note",
            std::string{comparison.text} + (comparison.more_is_better ? ". Longer is better" : ". Shorter is better"),
            row_height);
        const double scale = scale_of(group);
        y_ += 16;  // the number above the line must not meet the text
        text("note", bars_begin + scale, "1.0", "middle");
        y_ += 4;
        const double top = y_;
        for (const Line& line : group) draw_bar(line, scale, comparison.more_is_better);
        rule("one", bars_begin + scale, top, bars_begin + scale, y_);
        y_ += 8;
    }

    // Returns the length of the bar for the ratio 1. The longest bar has all the room.
    static double scale_of(const Lines& group) {
        double largest = 1;
        for (const Line& line : group)
            if (std::isfinite(line.figure.value)) largest = std::max(largest, line.figure.value);
        return (bars_end - bars_begin) / largest;
    }

    void draw_bar(const Line& line, double scale, bool more_is_better) {
        const auto place = [&](double ratio) {
            return std::isfinite(ratio) ? std::clamp(bars_begin + ratio * scale, bars_begin, bars_end) : bars_begin;
        };
        const Figure& figure = line.figure;
        y_ += row_height;
        text("label", margin, label_of(line));
        body_ += "<rect class=\"bar " + verdict(line, more_is_better) + "\" x=" + pixels(bars_begin) +
                 " y=" + pixels(y_ - bar_height + 1) + " width=" + pixels(place(figure.value) - bars_begin) +
                 " height=" + pixels(bar_height) + "><title>" + escaped(name_of(line)) + "</title></rect>\n";
        if (figure.min && figure.max) {
            const double middle = y_ + 1 - bar_height / 2;
            rule("range", place(*figure.min), middle, place(*figure.max), middle);
        }
        text("number", bars_end + 8, number_of(figure.value));
    }

    static std::string verdict(const Line& line, bool more_is_better) {
        if (line.subject == "pipelined") return "reference";
        const double shown = std::round(line.figure.value * 100);
        return (more_is_better ? shown >= 100 : shown <= 100) ? "good" : "worse";
    }

    // The names of the JSON line, for those who look for it.
    static std::string name_of(const Line& line) {
        return line.setting.scenario + ' ' + line.subject + ' ' + line.metric + ' ' + in_json(line.figure.value);
    }

    void draw_text(const Lines& panel) {
        for (const Line& line : panel) {
            y_ += row_height;
            text("label", margin, label_of(line));
            text("number", bars_begin, spaced(line.metric) + ": " + in_json(line.figure.value) + ' ' + line.unit);
        }
    }

    void line_of_text(const std::string& kind, const std::string& words, double height) {
        y_ += height;
        text(kind, margin, words);
    }

    void text(const std::string& kind, double x, const std::string& words, const std::string& anchor = "start") {
        body_ += "<text class=\"" + kind + "\" x=" + pixels(x) + " y=" + pixels(y_) + " text-anchor=\"" + anchor +
                 "\">" + escaped(words) + "</text>\n";
    }

    void rule(const std::string& kind, double x1, double y1, double x2, double y2) {
        body_ += "<line class=\"" + kind + "\" x1=" + pixels(x1) + " y1=" + pixels(y1) + " x2=" + pixels(x2) +
                 " y2=" + pixels(y2) + "/>\n";
    }

    std::string body_;
    double y_ = 0;  // the base line of what was drawn last
};

}  // namespace

std::string draw(const std::vector<Line>& lines) { return Drawing{lines}.file(); }

}  // namespace redlatch::bench
