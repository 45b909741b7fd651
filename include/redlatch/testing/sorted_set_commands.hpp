// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/testing/command_words.hpp"
#include "redlatch/testing/keyspace.hpp"
#include "redlatch/transport/reply.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The commands on sorted sets of a modelled server. See Commands.
class SortedSetCommands {
public:
    using Words = std::span<const std::string_view>;

    explicit SortedSetCommands(Keyspace& keyspace) : keyspace_(keyspace) {}

    Reply zadd(Words words) {
        if (words.size() % 2 != 0) throw CommandError{"ERR syntax error"};
        std::vector<double> scores;
        for (std::size_t i = 2; i < words.size(); i += 2) {
            const ScoreBound score(words[i]);
            if (score.open) throw CommandError{"ERR value is not a valid float"};
            scores.push_back(score.value);
        }
        auto& all = keyspace_.make(words[1], Type::zset).zset;
        const std::size_t before = all.size();
        for (std::size_t i = 0; i < scores.size(); ++i) all.insert_or_assign(std::string(words[2 * i + 3]), scores[i]);
        return integer_reply(all.size() - before);
    }

    Reply zcard(Words words) {
        const Value* const value = keyspace_.find(words[1], Type::zset);
        return integer_reply(value ? value->zset.size() : 0);
    }

    Reply zscore(Words words) {
        const Value* const value = keyspace_.find(words[1], Type::zset);
        if (!value) return nil_reply();
        const auto member = value->zset.find(words[2]);
        return member == value->zset.end() ? nil_reply() : Reply::of(score_text(member->second));
    }

    Reply zrem(Words words) {
        Value* const value = keyspace_.find(words[1], Type::zset);
        std::size_t removed = 0;
        for (const std::string_view member : words.subspan(2))
            if (value) removed += value->zset.erase(std::string(member));
        keyspace_.erase_if_empty(words[1]);
        return integer_reply(removed);
    }

    Reply zcount(Words words) {
        const ScoreBound least(words[2]);
        const ScoreBound most(words[3]);
        return integer_reply(scored(words[1], &least, &most).size());
    }

    Reply zremrangebyscore(Words words) {
        const ScoreBound least(words[2]);
        const ScoreBound most(words[3]);
        const Scored found = scored(words[1], &least, &most);
        for (const auto& [_, member] : found) keyspace_.find(words[1])->zset.erase(member);
        keyspace_.erase_if_empty(words[1]);
        return integer_reply(found.size());
    }

    Reply zrange(Words words) {
        const bool with_scores = words.size() == 5;
        if (with_scores && lowered(words[4]) != "withscores") throw CommandError{"ERR syntax error"};
        const Scored all = scored(words[1]);
        const auto [begin, end] = slice_of(all, words[2], words[3]);
        return members(all, begin, end, with_scores);
    }

    Reply zrangebyscore(Words words) {
        const ScoreBound least(words[2]);
        const ScoreBound most(words[3]);
        const Scored found = scored(words[1], &least, &most);
        std::size_t begin = 0;
        std::size_t end = found.size();
        bool with_scores = false;
        for (std::size_t i = 4; i < words.size(); ++i) {
            const std::string option = lowered(words[i]);
            if (option == "withscores") {
                with_scores = true;
            } else if (option == "limit" && i + 2 < words.size()) {
                begin = std::min(found.size(), static_cast<std::size_t>(to_integer(words[i + 1])));
                end = std::min(found.size() - begin, static_cast<std::size_t>(to_integer(words[i + 2]))) + begin;
                i += 2;
            } else {
                throw CommandError{"ERR syntax error"};
            }
        }
        return members(found, begin, end, with_scores);
    }

private:
    using Type = Keyspace::Type;
    using Value = Keyspace::Value;
    using Scored = std::vector<std::pair<double, std::string>>;

    // Returns the members with scores in a range, or all of them, sorted by score.
    Scored scored(std::string_view key, const ScoreBound* least = nullptr, const ScoreBound* most = nullptr) {
        Scored found;
        const Value* const value = keyspace_.find(key, Type::zset);
        if (!value) return found;
        for (const auto& [member, score] : value->zset)
            if ((!least || least->is_below(score)) && (!most || most->is_above(score)))
                found.emplace_back(score, member);
        std::sort(found.begin(), found.end());
        return found;
    }

    static Reply members(const Scored& found, std::size_t begin, std::size_t end, bool with_scores) {
        Reply all = array_reply();
        for (std::size_t i = begin; i < end; ++i) {
            all.elements.push_back(Reply::of(found[i].second));
            if (with_scores) all.elements.push_back(Reply::of(score_text(found[i].first)));
        }
        return all;
    }

    Keyspace& keyspace_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
