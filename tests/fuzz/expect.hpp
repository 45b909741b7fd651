// SPDX-License-Identifier: MIT
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string_view>

/// Reports a finding and aborts unless `holds`.
inline void expect(bool holds, const char* finding) {
    if (holds) return;
    std::fprintf(stderr, "finding: %s\n", finding);
    std::abort();
}

/// A server's text must neither control the terminal nor end the line where a message is shown.
inline void expect_printable(std::string_view message) {
    for (const char c : message)
        expect(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f, "a message holds a control byte");
}
