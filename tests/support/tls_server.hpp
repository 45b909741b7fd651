// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "certificates.hpp"
#include "redis_server.hpp"

namespace redlatch::test {

/// Returns the options of a RedisServer that uses TLS on its port. Its unix socket is unencrypted, for a RawRedis.
inline RedisServerOptions by_tls(const Certificate& own, const Authority& clients, bool wants_certificate = false,
                                 std::vector<std::string> more = {}) {
    RedisServerOptions options{.tls = true};
    options.args = {"--tls-cert-file",    own.file,       "--tls-key-file",     own.key_file,
                    "--tls-ca-cert-file", clients.file(), "--tls-auth-clients", wants_certificate ? "yes" : "no"};
    options.args.insert(options.args.end(), more.begin(), more.end());
    return options;
}

inline std::string tls_url(int port, const std::string& host = "127.0.0.1") {
    return "rediss://" + host + ":" + std::to_string(port);
}

}  // namespace redlatch::test
