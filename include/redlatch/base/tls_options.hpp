// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace redlatch {
inline namespace v0_1 {

enum class TlsVersion { v1_2, v1_3 };

// Whom to trust on a rediss:// connection, and who we are; for redlatch::tls() in redlatch/tls.hpp. That the server's
// certificate is verified, and that it is for the host of the URL, cannot be turned off: trust its certificate by name
// in `ca_file` instead, self-signed or not, and say in `server_name` what it is for.
//
// All files are PEM. They are read anew for each connection, so renewed ones need no restart.
struct TlsOptions {
    // Who may sign the server's certificate; neither: the system's authorities.
    std::string ca_file = {};
    std::string ca_directory = {};  // as `openssl rehash` leaves it
    // Lists of revoked certificates: one of every authority in the server's chain, or its certificate is refused.
    std::string crl_file = {};
    // For servers that want to know who comes: the certificate, with those of intermediate authorities after it, and
    // its key, which must not be encrypted.
    std::string certificate_file = {};
    std::string key_file = {};
    // The name that the certificate must be for, and that is sent to the server (SNI): a host or an IP address. Empty:
    // the host of the URL; with Sentinel the one that the sentinels tell, which is an address mostly.
    std::string server_name = {};
    TlsVersion minimum_version = TlsVersion::v1_2;
};

}  // namespace v0_1
}  // namespace redlatch
