// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <map>
#include <sstream>
#include <string>

namespace redlatch::test {

/// A request to an agent: "number thread operation kind name key=value...". Agent.java describes its meaning.
struct Request {
    explicit Request(const std::string& line) {
        std::istringstream words{line};
        words >> number >> thread >> operation >> kind >> name;
        for (std::string word; words >> word;) {
            const auto equals = word.find('=');
            arguments[word.substr(0, equals)] = word.substr(equals + 1);
        }
    }

    bool has(const std::string& key) const { return arguments.contains(key); }
    const std::string& text(const std::string& key) const { return arguments.at(key); }
    int count(const std::string& key, int otherwise) const { return has(key) ? std::stoi(text(key)) : otherwise; }
    std::chrono::milliseconds millis(const std::string& key) const {
        return std::chrono::milliseconds{has(key) ? std::stoll(text(key)) : 0};
    }

    std::string number;
    std::string thread;
    std::string operation;
    std::string kind;
    std::string name;
    std::map<std::string, std::string> arguments;
};

}  // namespace redlatch::test
