// SPDX-License-Identifier: MIT
#include "simulation/lua_host.hpp"

#include <map>
#include <string>
#include <vector>

#include <lua.hpp>

namespace sim {

namespace {

using redlatch::Reply;

Keyspace* keyspace = nullptr;

void push_text(lua_State* lua, std::string_view text) { lua_pushlstring(lua, text.data(), text.size()); }

void push_field(lua_State* lua, const char* field, std::string_view text) {
    lua_createtable(lua, 0, 1);
    push_text(lua, text);
    lua_setfield(lua, -2, field);
}

// Converts a reply as Redis does.
void push(lua_State* lua, const Reply& reply) {
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

std::string text_at(lua_State* lua, int index) {
    std::size_t size = 0;
    const char* const text = lua_tolstring(lua, index, &size);
    return text ? std::string(text, size) : std::string();
}

Reply pop(lua_State* lua) {
    Reply reply;
    switch (lua_type(lua, -1)) {
        case LUA_TNUMBER: reply = Reply::of(static_cast<std::int64_t>(lua_tonumber(lua, -1))); break;
        case LUA_TSTRING: reply = Reply::of(text_at(lua, -1)); break;
        case LUA_TBOOLEAN:
            if (lua_toboolean(lua, -1)) reply = Reply::of(1);
            break;
        case LUA_TTABLE:
            for (const auto& [field, kind] : {std::pair("err", Reply::Kind::error), {"ok", Reply::Kind::text}}) {
                lua_getfield(lua, -1, field);
                if (lua_isstring(lua, -1)) reply = Reply::of(kind, text_at(lua, -1));
                lua_pop(lua, 1);
            }
            if (!reply.is_nil()) break;
            reply.kind = Reply::Kind::array;
            for (int i = 1;; ++i) {
                lua_rawgeti(lua, -1, i);
                if (lua_isnil(lua, -1)) break;
                reply.elements.push_back(pop(lua));
            }
            lua_pop(lua, 1);
            break;
        default: break;
    }
    lua_pop(lua, 1);
    return reply;
}

// Lua leaves by longjmp, which must not skip a destructor.
bool call_keyspace(lua_State* lua) {
    std::vector<std::string> texts;
    for (int i = 1; i <= lua_gettop(lua); ++i) texts.push_back(text_at(lua, i));
    const std::vector<std::string_view> words(texts.begin(), texts.end());
    const Reply reply = keyspace->call(words);
    push(lua, reply);
    return !reply.is_error();
}

int redis_call(lua_State* lua) {
    if (!call_keyspace(lua)) return lua_error(lua);
    return 1;
}

int redis_pcall(lua_State* lua) {
    call_keyspace(lua);
    return 1;
}

int table_with(lua_State* lua, const char* field) {
    lua_createtable(lua, 0, 1);
    lua_pushvalue(lua, 1);
    lua_setfield(lua, -2, field);
    return 1;
}

int error_reply(lua_State* lua) { return table_with(lua, "err"); }
int status_reply(lua_State* lua) { return table_with(lua, "ok"); }

lua_State* open() {
    lua_State* const lua = luaL_newstate();
    luaL_openlibs(lua);
    static constexpr luaL_Reg functions[] = {{"call", redis_call},
                                             {"pcall", redis_pcall},
                                             {"error_reply", error_reply},
                                             {"status_reply", status_reply},
                                             {nullptr, nullptr}};
    luaL_register(lua, "redis", functions);
    lua_settop(lua, 0);
    return lua;
}

void set_table(lua_State* lua, const char* name, Keyspace::Words words) {
    lua_createtable(lua, static_cast<int>(words.size()), 0);
    for (std::size_t i = 0; i < words.size(); ++i) {
        push_text(lua, words[i]);
        lua_rawseti(lua, -2, static_cast<int>(i + 1));
    }
    lua_setglobal(lua, name);
}

}  // namespace

Reply run_script(Keyspace& on, std::string_view text, Keyspace::Words keys, Keyspace::Words arguments) {
    static lua_State* const lua = open();
    static std::map<std::string, int, std::less<>> compiled;
    keyspace = &on;
    auto script = compiled.find(text);
    if (script == compiled.end()) {
        if (luaL_loadbuffer(lua, text.data(), text.size(), "=script") != 0)
            return Reply::of(Reply::Kind::error, "ERR Error compiling script: " + pop(lua).text);
        script = compiled.emplace(std::string(text), luaL_ref(lua, LUA_REGISTRYINDEX)).first;
    }
    set_table(lua, "KEYS", keys);
    set_table(lua, "ARGV", arguments);
    lua_rawgeti(lua, LUA_REGISTRYINDEX, script->second);
    const bool failed = lua_pcall(lua, 0, 1, 0) != 0;
    Reply reply = pop(lua);
    // An error of Redis is a table, an error of Lua is a text.
    if (failed && !reply.is_error()) reply = Reply::of(Reply::Kind::error, "ERR Error running script: " + reply.text);
    return reply;
}

}  // namespace sim
