// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/tls_options.hpp"
#include "redlatch/net/openssl.hpp"

#include <memory>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {

// Returns the connector that a client needs for rediss://, rediss-sentinel:// and rediss-cluster:// URLs. Not part of
// redlatch.hpp, because it needs OpenSSL (1.1.1 or newer): link redlatch::tls, or -lssl -lcrypto.
//
//     Client redis{"rediss://cache.example.com", {.tls = tls({.ca_file = "/etc/shop/ca.pem"})}};
//
// One connector may serve many clients. Throws Error(errc::invalid_argument) if a file cannot be used.
inline std::shared_ptr<const detail::TlsConnector> tls(TlsOptions options = {}) {
    return std::make_shared<detail::OpensslConnector>(std::move(options));
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch
