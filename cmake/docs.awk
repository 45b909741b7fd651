# SPDX-License-Identifier: MIT
# Shows Doxygen one header of ours as its public interface: what is public and not in a `detail`, without bodies,
# constraints and attributes. The `//` lines before a declaration become its description. Overloads of one name that
# follow without a blank line share it. A comment behind a member describes that member.
#
# A lock has the members of its base classes in `detail` as its own: the filter calls itself with -v only=<base> for them.
# -v self=<this file> tells it how.

BEGIN {
    header["LockApi"] = "lock/lock_api.hpp"
    header["NamedLock"] = "lock/named_lock.hpp"
    header["QuorumApi"] = "quorum/quorum_api.hpp"
    title["LockApi"] = "Members of every lock"
    title["NamedLock"] = "Members of a lock with one name"
    title["QuorumApi"] = "Members of a lock that has members"
}

FNR == 1 {
    folder = FILENAME
    sub(/\/include\/redlatch\/.*/, "/include/redlatch/", folder)
}

/^\/\/ SPDX/ || /^[ \t]*#/ { next }

# --- inside the body of a function ---

body {
    body += braces(code_of($0))
    if (!body) end_of_statement()
    next
}

/^[ \t]*$/ {
    if (statement == "") lines = 0
    next
}

# --- comments ---

/^ *\/\// {
    column = match($0, /\/\//)
    text = substr($0, column + 2)
    if (trailing && column == trailing) {
        if (visible()) print "///< " escaped(text)
    } else if (statement == "") {
        if (used || text ~ /^ ---/) lines = used = 0
        if (text !~ /^ ---/) comment[++lines] = text
    }
    next
}

# --- declarations ---

{
    code = code_of($0)
    behind = ""
    trailing = 0
    if (length(code) < length($0)) {
        behind = substr($0, length(code) + 1)
        trailing = length(code) + match(behind, /\/\//)
        sub(/^ *\/\//, "", behind)
    }
    gsub(/^ +| +$/, "", code)
}

statement == "" && code ~ /^(public|protected|private):$/ {
    access[scopes] = code
    lines = 0
    next
}

statement == "" && code ~ /^[}];?$/ {
    if (only != "" && name[scopes] == only) print "/**@}*/"
    access[scopes] = ""
    if (base[scopes] != "" && visible()) show_base(base[scopes])
    if (printed[scopes]) print "};"
    --scopes
    lines = 0
    next
}

kind[scopes] == "enum" {
    # Doxygen itself does not mind an enumerator without a description, but an unknown command.
    which = code
    sub(/[ ,].*/, "", which)
    text = behind != "" ? escaped(behind) : lines ? "" : " @no_description_of_" which
    if (visible()) print described() code (text == "" ? "" : " ///<" text)
    lines = 0
    next
}

{
    statement = statement (statement == "" ? "" : " ") code
    open = braces(statement)
    if (code ~ /[{]$/ && open > 0) {
        if (statement ~ /^(template <.*> )?(inline )?(class|struct|enum|union|namespace) /)
            open_scope()
        else
            body = open
    } else if (open == 0 && code ~ /[;}]$/) {
        end_of_statement()
    }
}

# --- functions ---

# The line without the comment at its end.
function code_of(line,    at) {
    at = match(line, / *\/\/ /)
    return at ? substr(line, 1, at - 1) : line
}

# How many braces are open after the text.
function braces(text,    opened, closed) {
    gsub(/'[{}]'|"[^"]*"/, "", text)
    opened = gsub(/[{]/, "", text)
    closed = gsub(/[}]/, "", text)
    return opened - closed
}

function visible(    i, inside) {
    inside = only == ""
    for (i = 1; i <= scopes; ++i) {
        if (name[i] == only) inside = 1
        if ((kind[i] == "hidden" && only == "") || access[i] ~ /^(private|protected):$/) return 0
    }
    return inside
}

function open_scope(    text, is_base) {
    text = bare(statement)
    statement = ""
    is_base = ""
    if (match(text, /: public (LockApi|NamedLock|QuorumApi)/)) {
        is_base = substr(text, RSTART + 9, RLENGTH - 9)
        text = substr(text, 1, RSTART - 1) "{"
    }
    ++scopes
    access[scopes] = ""
    printed[scopes] = name[scopes] = base[scopes] = ""
    if (text ~ /^inline namespace/) {
        kind[scopes] = "namespace"
    } else if (text ~ /^namespace [a-z_]*detail|^(template <.*> )?(class|struct) std::/) {
        kind[scopes] = "hidden"
    } else if (text ~ /^namespace/) {
        kind[scopes] = "namespace"
        if (visible()) {
            print text
            printed[scopes] = 1
        }
    } else {
        kind[scopes] = text ~ /enum/ ? "enum" : "class"
        base[scopes] = is_base
        if (visible()) {
            print described() text
            if (kind[scopes] == "class") print "public:"
            printed[scopes] = 1
        }
        name[scopes] = text
        sub(/^(template <.*> )?(class|struct|enum) /, "", name[scopes])
        sub(/ .*/, "", name[scopes])
        if (only != "" && name[scopes] == only) begin_group()
        if (text ~ /^(template <.*> )?class/) access[scopes] = "private:"
    }
    lines = 0
}

function end_of_statement(    text, which) {
    text = bare(statement)
    statement = ""
    body = 0
    if (visible() && text !~ /= delete;$|^(virtual )?~.*(= default|override);$|^static_assert|struct std::|^friend [A-Za-z:]+( [A-Za-z]+)?;$/ &&
        text !~ /^(template <.*> )?(class|struct|enum class) [A-Za-z]+;$/ && text !~ /^using [A-Za-z_:]+;$/ &&
        text !~ /^[a-z ]*[A-Z][A-Za-z]* [A-Z][A-Za-z]*::/) {
        which = text ~ /\(/ ? text : ""
        sub(/^template <[^()]*> /, "", which)
        sub(/\(.*/, "", which)
        sub(/.*[ &*]/, "", which)
        if (used && (which == "" || which != last)) lines = 0
        print described() text (behind == "" ? "" : " ///<" escaped(behind))
        last = which
        used = 1
    }
}

# Leaves the declaration: no body, no constraint, no attribute, no `detail`.
function bare(text,    i, c, parens, closed) {
    if (text ~ /[{}]$/ && text ~ /\(/ && text !~ /^(template <.*> )?(inline )?(class|struct|enum) /) {
        for (i = 1; i <= length(text); ++i) {
            c = substr(text, i, 1)
            if (c == "(") ++parens
            if (c == ")" && !--parens) closed = 1
            if (!parens && (c == "{" || (closed && substr(text, i, 3) == " : "))) break
        }
        text = substr(text, 1, i - 1)
        sub(/ *$/, ";", text)
    }
    if (text !~ / concept /) text = unconstrained(text)
    gsub(/\[\[[^]]*\]\] /, "", text)
    gsub(/REDLATCH_INLINE /, "", text)
    gsub(/<detail::[A-Za-z]+ /, "<class ", text)
    gsub(/detail::/, "", text)
    return text
}

function unconstrained(text,    at, rest, i, depth, c) {
    at = match(text, / requires[ (]/)
    if (!at) return text
    rest = substr(text, at + 9)
    do {
        sub(/^ *(&& *)?!?/, "", rest)
        if (rest ~ /^\(/) {
            depth = 0
            for (i = 1; i <= length(rest); ++i) {
                c = substr(rest, i, 1)
                depth += (c == "(") - (c == ")")
                if (!depth) break
            }
            rest = substr(rest, i + 1)
        } else {
            sub(/^[A-Za-z_:]+<[^<>]*>/, "", rest)
        }
    } while (rest ~ /^ *&& *[^ )]/ && rest !~ /^ *&&[ ;]*$/)
    sub(/^ */, " ", rest)
    return substr(text, 1, at - 1) rest
}

# The description, as a comment that Doxygen reads. Indented lines are code or a table, unless they continue a list.
function described(    i, text, result, block, in_list, is_table) {
    if (!lines) return ""
    result = "/**"
    for (i = 1; i <= lines; ++i) {
        text = comment[i]
        if (text ~ /^ *- /)
            in_list = 1
        else if (text !~ /^   /)
            in_list = 0
        if (!in_list && text ~ /^   /) {
            if (!block) {
                is_table = table_at(i)
                result = result "\n@code{" (is_table ? ".unparsed" : ".cpp") "}"
            }
            block = 1
            gsub(/\*\//, "* /", text)
            result = result "\n" substr(text, 4)
            continue
        }
        if (block) result = result "\n@endcode"
        block = 0
        result = result "\n" escaped(text)
    }
    return result (block ? "\n@endcode" : "") "\n*/\n"
}

# Columns are two blanks apart; a comment in code is no column.
function table_at(i) {
    for (; i <= lines && comment[i] ~ /^   /; ++i)
        if (comment[i] ~ /[^ ]  +[^ \/]/) return 1
    return 0
}

# Doxygen reads Markdown, HTML and commands. Between backticks it reads nothing.
function escaped(text,    parts, n, i, result) {
    n = split(text, parts, "`")
    for (i = 1; i <= n; ++i) {
        if (i % 2) {
            gsub(/\\/, "\\\\", parts[i])
            gsub(/[<>@#]/, "\\\\&", parts[i])
        }
        gsub(/\*\//, "* /", parts[i])
        result = result (i > 1 ? "`" : "") parts[i]
    }
    return result
}

# The members of a base follow those of its own base. What its comment says after the first paragraph is about all of them.
function begin_group(    i) {
    if (base[scopes] != "") show_base(base[scopes])
    base[scopes] = ""
    print "/** @name " title[only]
    for (i = 1; i <= lines && comment[i] != ""; ++i) continue
    for (; i <= lines; ++i) print escaped(comment[i])
    print "*/\n/**@{*/"
}

function show_base(class,    command, line) {
    command = "awk -v self=\"" self "\" -v only=" class " -f \"" self "\" \"" folder header[class] "\""
    while ((command | getline line) > 0) print line
    close(command)
}
