// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"

#include <string>

namespace redlatch {
inline namespace REDLATCH_ABI {

// Names a version of TLS.
enum class TlsVersion {
    v1_2,  // TLS 1.2
    v1_3,  // TLS 1.3
};

// Configures the trust and the identity of a rediss:// connection, for redlatch::tls() in redlatch/tls.hpp.
// Verification of the server's certificate and of its host name cannot be turned off. If it would fail, put the
// certificate, self-signed or not, into `ca_file` and the name that it is for into `server_name`.
//
// All files are PEM. They are read again for each connection, so renewed files need no restart.
struct TlsOptions {
    // The authorities that may sign the server's certificate. If both are empty, the system's authorities.
    std::string ca_file = {};
    std::string ca_directory = {};  // a folder of such files, as prepared by `openssl rehash`
    // Certificate revocation lists: one for every authority in the server's chain, otherwise its certificate is
    // refused.
    std::string crl_file = {};
    // For servers that require a client certificate: the certificate, followed by those of intermediate authorities.
    std::string certificate_file = {};
    // The key of that certificate, which must not be encrypted.
    std::string key_file = {};
    // The host name or IP address that the certificate must be for, and that is sent to the server (SNI). If empty, the
    // host of the URL is used. With Sentinel that is the host that the sentinels report, usually an address.
    std::string server_name = {};
    // The oldest version of TLS that the client accepts.
    TlsVersion minimum_version = TlsVersion::v1_2;
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch
