// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/testing/commands.hpp"
#include "redlatch/transport/reply.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <lua.hpp>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Runs scripts in Lua 5.1, the version inside Redis, on the commands of a modelled server. Keeps each script in its
// compiled form. Not thread-safe; one host may serve several servers, one after the other.
class ScriptHost {
public:
    using Words = Commands::Words;

    ScriptHost() : lua_(luaL_newstate()) {
        if (!lua_) throw std::bad_alloc();
        static constexpr luaL_Reg libraries[] = {
            {"", luaopen_base}, {"table", luaopen_table}, {"string", luaopen_string}, {"math", luaopen_math}};
        for (const luaL_Reg& library : libraries) {
            lua_pushcfunction(lua(), library.func);
            lua_pushstring(lua(), library.name);
            lua_call(lua(), 1, 0);
        }
        lua_newtable(lua());
        add_function("call", redis_call);
        add_function("pcall", redis_pcall);
        add_function("error_reply", error_reply);
        add_function("status_reply", status_reply);
        lua_setglobal(lua(), "redis");
    }
    ScriptHost(const ScriptHost&) = delete;
    ScriptHost& operator=(const ScriptHost&) = delete;

    Reply run(Commands& commands, std::string_view text, Words keys, Words arguments) {
        lua_settop(lua(), 0);  // an earlier run may have ended by an exception
        auto script = compiled_.find(text);
        if (script == compiled_.end()) {
            if (luaL_loadbuffer(lua(), text.data(), text.size(), "=script") != 0)
                return Reply::of(Reply::Kind::error, "ERR Error compiling script: " + pop(lua()).text);
            script = compiled_.emplace(std::string(text), luaL_ref(lua(), LUA_REGISTRYINDEX)).first;
        }
        commands_ = &commands;
        set_table("KEYS", keys);
        set_table("ARGV", arguments);
        lua_rawgeti(lua(), LUA_REGISTRYINDEX, script->second);
        const bool failed = lua_pcall(lua(), 0, 1, 0) != 0;
        Reply reply = pop(lua());
        // An error of Redis is a table, an error of Lua is a text.
        if (failed && !reply.is_error())
            reply = Reply::of(Reply::Kind::error, "ERR Error running script: " + reply.text);
        return reply;
    }

private:
    lua_State* lua() const { return lua_.get(); }

    void add_function(const char* name, lua_CFunction function) {
        lua_pushlightuserdata(lua(), this);
        lua_pushcclosure(lua(), function, 1);
        lua_setfield(lua(), -2, name);
    }

    void set_table(const char* name, Words words) {
        lua_createtable(lua(), static_cast<int>(words.size()), 0);
        for (std::size_t i = 0; i < words.size(); ++i) {
            push_text(lua(), words[i]);
            lua_rawseti(lua(), -2, static_cast<int>(i + 1));
        }
        lua_setglobal(lua(), name);
    }

    // --- values -------------------------------------------------------------------------------------------------

    static void push_text(lua_State* lua, std::string_view text) { lua_pushlstring(lua, text.data(), text.size()); }

    static void push_field(lua_State* lua, const char* field, std::string_view text) {
        lua_createtable(lua, 0, 1);
        push_text(lua, text);
        lua_setfield(lua, -2, field);
    }

    // Converts a reply as Redis does.
    static void push(lua_State* lua, const Reply& reply) {
        switch (reply.kind) {
            case Reply::Kind::integer: lua_pushnumber(lua, static_cast<lua_Number>(reply.integer)); break;
            case Reply::Kind::text: push_text(lua, reply.text); break;
            case Reply::Kind::error: push_field(lua, "err", reply.text); break;
            case Reply::Kind::array:
                lua_createtable(lua, static_cast<int>(reply.elements.size()), 0);
                for (std::size_t i = 0; i < reply.elements.size(); ++i) {
                    push(lua, reply.elements[i]);
                    lua_rawseti(lua, -2, static_cast<int>(i + 1));
                }
                break;
            default: lua_pushboolean(lua, 0);
        }
    }

    // Returns the text of an argument. Redis writes numbers with more digits than Lua does.
    static std::string text_at(lua_State* lua, int index) {
        if (lua_type(lua, index) == LUA_TNUMBER) {
            char digits[40];
            std::snprintf(digits, sizeof digits, "%.17g", lua_tonumber(lua, index));
            return digits;
        }
        std::size_t size = 0;
        const char* const text = lua_tolstring(lua, index, &size);
        return text ? std::string(text, size) : std::string();
    }

    // Converts a script's answer as Redis does, and removes it from the stack.
    static Reply pop(lua_State* lua) {
        Reply reply;
        switch (lua_type(lua, -1)) {
            case LUA_TNUMBER: reply = Reply::of(static_cast<std::int64_t>(lua_tonumber(lua, -1))); break;
            case LUA_TSTRING: reply = Reply::of(text_at(lua, -1)); break;
            case LUA_TBOOLEAN:
                if (lua_toboolean(lua, -1)) reply = Reply::of(1);
                break;
            case LUA_TTABLE: reply = table(lua); break;
            default: break;
        }
        lua_pop(lua, 1);
        return reply;
    }

    static Reply table(lua_State* lua) {
        for (const auto& [field, kind] : {std::pair("err", Reply::Kind::error), {"ok", Reply::Kind::text}}) {
            lua_getfield(lua, -1, field);
            if (Reply found = pop(lua); found.kind == Reply::Kind::text) return Reply::of(kind, std::move(found.text));
        }
        Reply all{Reply::Kind::array, 0, {}, {}};
        for (int i = 1;; ++i) {
            lua_rawgeti(lua, -1, i);
            if (lua_isnil(lua, -1)) break;
            all.elements.push_back(pop(lua));
        }
        lua_pop(lua, 1);
        return all;
    }

    // --- the functions that scripts call ------------------------------------------------------------------------

    // Returns false for an error, which is on the stack like any reply. Lua leaves a function by longjmp, which must not
    // skip a destructor: so this one leaves no object behind, and it lets no exception pass through Lua.
    static bool call_command(lua_State* lua) {
        try {
            auto* const host = static_cast<ScriptHost*>(lua_touserdata(lua, lua_upvalueindex(1)));
            std::vector<std::string> texts;
            for (int i = 1; i <= lua_gettop(lua); ++i) texts.push_back(text_at(lua, i));
            const std::vector<std::string_view> words(texts.begin(), texts.end());
            const Reply reply = words.empty() ? Reply::of(Reply::Kind::error, "ERR Please specify a command")
                                              : host->commands_->call(words);
            push(lua, reply);
            return !reply.is_error();
        } catch (const std::bad_alloc&) {
            push_field(lua, "err", "ERR out of memory");
            return false;
        }
    }

    static int redis_call(lua_State* lua) {
        if (!call_command(lua)) return lua_error(lua);
        return 1;
    }

    static int redis_pcall(lua_State* lua) {
        call_command(lua);
        return 1;
    }

    static int table_with(lua_State* lua, const char* field) {
        lua_createtable(lua, 0, 1);
        lua_pushvalue(lua, 1);
        lua_setfield(lua, -2, field);
        return 1;
    }

    static int error_reply(lua_State* lua) { return table_with(lua, "err"); }
    static int status_reply(lua_State* lua) { return table_with(lua, "ok"); }

    struct Close {
        void operator()(lua_State* lua) const { lua_close(lua); }
    };

    const std::unique_ptr<lua_State, Close> lua_;
    std::map<std::string, int, std::less<>> compiled_;  // the numbers of the scripts in Lua's registry, by text
    Commands* commands_ = nullptr;                      // those that the running script calls
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
