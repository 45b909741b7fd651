// SPDX-License-Identifier: MIT
// What TLS needs besides, written by cmake/amalgamate.cmake from include/redlatch. Do not edit it.
#pragma once

#include "redlatch/redlatch.hpp"

#include <memory>
#include <string>
#include <utility>

// redlatch/base/tls_options.hpp

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

// redlatch/net/openssl.hpp

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Empties OpenSSL's error queue of this thread, because SSL_get_error() looks at all of it. Restores the errors of the
// application afterwards (without file, line and details). A mark in the queue does not work: a handshake clears it.
class OpensslErrors {
public:
    OpensslErrors() noexcept {
        while (count_ < before_.size() && ERR_peek_error() != 0) before_[count_++] = ERR_get_error();
    }
    OpensslErrors(const OpensslErrors&) = delete;
    OpensslErrors& operator=(const OpensslErrors&) = delete;
    ~OpensslErrors() {
        ERR_clear_error();
        for (std::size_t i = 0; i < count_; ++i) {
#if OPENSSL_VERSION_NUMBER >= 0x30000000L
            ERR_new();
            ERR_set_error(ERR_GET_LIB(before_[i]), ERR_GET_REASON(before_[i]), nullptr);
#else
            ERR_put_error(ERR_GET_LIB(before_[i]), ERR_GET_FUNC(before_[i]), ERR_GET_REASON(before_[i]), "", 0);
#endif
        }
    }

    static int last_reason() noexcept { return ERR_GET_REASON(ERR_peek_last_error()); }

    static std::string last_words() {
        const char* words = ERR_reason_error_string(ERR_peek_last_error());
        return words ? words : "OpenSSL gives no reason";
    }

private:
    std::array<unsigned long, 16> before_;  // the capacity of the queue
    std::size_t count_ = 0;
};

struct OpensslFree {
    void operator()(SSL_CTX* context) const noexcept { SSL_CTX_free(context); }
    void operator()(SSL* ssl) const noexcept { SSL_free(ssl); }
};

using OpensslContext = std::unique_ptr<SSL_CTX, OpensslFree>;

// Returns a host as in certificates and SNI: without the dot at the end of a full name, and the zone of an IPv6
// address.
inline std::string bare_host(std::string host) {
    if (const auto zone = host.find('%'); zone != std::string::npos && host.find(':') != std::string::npos)
        host.resize(zone);
    if (host.ends_with('.')) host.pop_back();
    return host;
}

inline bool is_ip_address(const std::string& host) {
    std::array<unsigned char, sizeof(in6_addr)> address;
    return ::inet_pton(AF_INET, host.c_str(), address.data()) == 1 ||
           ::inet_pton(AF_INET6, host.c_str(), address.data()) == 1;
}

// TLS by OpenSSL, between buffers in memory. OpenSSL never uses a socket, so it cannot raise SIGPIPE, and nothing here
// waits for the network.
//
// mutex_ guards ssl_ with both of its buffers: one thread encrypts while another decrypts. sealed_ belongs to the
// sending thread, over_ and drained_ to the receiving thread. The handshake ends before there are two threads.
class OpensslSession final : public TlsSession {
public:
    // `wanted`: the host name or address that the certificate must be for.
    OpensslSession(detail::OpensslContext context, std::string server, const std::string& wanted)
        : server_(std::move(server)), wanted_(wanted), context_(std::move(context)), ssl_(SSL_new(context_.get())) {
        if (!ssl_) throw std::bad_alloc();
        BIO* const in = BIO_new(BIO_s_mem());
        BIO* const out = BIO_new(BIO_s_mem());
        if (!in || !out) {
            BIO_free(in);
            BIO_free(out);
            throw std::bad_alloc();
        }
        SSL_set_bio(ssl_.get(), in, out);
        SSL_set_connect_state(ssl_.get());
        X509_VERIFY_PARAM* const verify = SSL_get0_param(ssl_.get());
        X509_VERIFY_PARAM_set_hostflags(verify, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
        const bool set = detail::is_ip_address(wanted)
                             ? X509_VERIFY_PARAM_set1_ip_asc(verify, wanted.c_str()) == 1
                             : X509_VERIFY_PARAM_set1_host(verify, wanted.data(), wanted.size()) == 1 &&
                                   SSL_set_tlsext_host_name(ssl_.get(), wanted.c_str()) == 1;
        if (!set) throw std::bad_alloc();
    }

    Handshake handshake(std::string_view received, std::string_view& to_send) noexcept override {
        const std::lock_guard lock(mutex_);
        const detail::OpensslErrors errors;
        auto outcome = Handshake::failed;
        if (feed(received)) {
            const int done = SSL_do_handshake(ssl_.get());
            if (done == 1)
                outcome = Handshake::done;
            else if (SSL_get_error(ssl_.get(), done) == SSL_ERROR_WANT_READ)
                outcome = Handshake::unfinished;
        }
        if (outcome == Handshake::failed) note_failure();
        to_send = take_sealed();
        if (outcome == Handshake::done) forget_authorities();
        return outcome;
    }

    std::string_view encrypt(std::string_view plain) noexcept override {
        const std::lock_guard lock(mutex_);
        const detail::OpensslErrors errors;
        // There is always room in a memory buffer, so SSL_write() takes everything.
        const int done = SSL_write(ssl_.get(), plain.data(), static_cast<int>(plain.size()));
        return done == static_cast<int>(plain.size()) ? take_sealed() : std::string_view{};
    }

    ssize_t decrypt(std::string_view received, char* plain, std::size_t room) noexcept override {
        if (received.empty() && drained_) return over_ ? -1 : 0;
        const std::lock_guard lock(mutex_);
        const detail::OpensslErrors errors;
        if (!feed(received)) over_ = true;
        std::size_t got = 0;
        drained_ = false;
        while (!over_ && !drained_ && got < room) {
            std::size_t more = 0;
            const int done = SSL_read_ex(ssl_.get(), plain + got, room - got, &more);
            got += more;
            if (done == 1) continue;
            drained_ = true;
            const int why = SSL_get_error(ssl_.get(), done);
            over_ = why != SSL_ERROR_WANT_READ;
            if (over_ && why != SSL_ERROR_ZERO_RETURN) note_failure();
        }
        // OpenSSL's own output is sent with our next bytes. No Redis server causes much of it: otherwise end the
        // connection.
        if (BIO_ctrl_pending(SSL_get_wbio(ssl_.get())) > most_unsaid) over_ = true;
        if (got > 0) return static_cast<ssize_t>(got);
        return over_ ? -1 : 0;
    }

    std::string_view goodbye() noexcept override {
        const std::lock_guard lock(mutex_);
        const detail::OpensslErrors errors;
        if (failed_ || !SSL_is_init_finished(ssl_.get())) return {};
        SSL_shutdown(ssl_.get());
        return take_sealed();
    }

    Reply refusal() const override {
        if (certificate_ != X509_V_OK)
            return untrusted("cannot verify the certificate of " + server_ + ": " + certificate_trouble());
        if (alert_ == alert_certificate_required)
            return untrusted(server_ + " requires a client certificate; set TlsOptions::certificate_file");
        if (alert_ != 0 && alert_ != SSL_AD_PROTOCOL_VERSION && alert_ != SSL_AD_INTERNAL_ERROR)
            return untrusted(server_ + " refused the TLS connection: " + SSL_alert_desc_string_long(alert_) +
                             (is_about_us(alert_) ? "; check TlsOptions::certificate_file" : ""));
        if (old_version_)
            return untrusted(server_ + " does not support the TLS version that TlsOptions::minimum_version requires");
        if (not_tls_) return untrusted(server_ + " does not use TLS on this port; check the port");
        return Reply::of(Reply::Kind::not_sent,
                         server_ + " did not complete the TLS handshake; check that it uses TLS on this port");
    }

private:
    static constexpr std::size_t most_unsaid = 64 * 1024;

    static Reply untrusted(const std::string& why) {
        return Reply::of(Reply::Kind::error, std::string(Reply::untrusted) + why);
    }

    // In TLS 1.2 a server sends these alerts also if it wants a client certificate, or another one.
    static bool is_about_us(int alert) {
        return (alert >= SSL_AD_BAD_CERTIFICATE && alert <= SSL_AD_UNKNOWN_CA) || alert == SSL_AD_ACCESS_DENIED ||
               alert == SSL_AD_HANDSHAKE_FAILURE;
    }

    static constexpr int alert_certificate_required = 116;

    std::string certificate_trouble() const {
        const std::string wanted = in_quotes(wanted_, 255);
        switch (certificate_) {
            case X509_V_ERR_CERT_HAS_EXPIRED: return "it has expired, or that of its authority has";
            case X509_V_ERR_CERT_NOT_YET_VALID: return "it is not valid yet; check the clock of this machine";
            case X509_V_ERR_CERT_REVOKED: return "it is revoked";
            case X509_V_ERR_HOSTNAME_MISMATCH:
                return "it does not contain the name " + wanted + "; check the URL or set TlsOptions::server_name";
            case X509_V_ERR_IP_ADDRESS_MISMATCH:
                return "it does not contain the address " + wanted + "; check the URL or set TlsOptions::server_name";
            case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
                return "it is self-signed and not trusted; to trust it, set TlsOptions::ca_file";
            case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
            case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
            case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
            case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
                return "no trusted authority has signed it; set TlsOptions::ca_file to the authority's certificate";
            case X509_V_ERR_UNABLE_TO_GET_CRL: return "crl_file has no revocation list of its authority";
            case X509_V_ERR_CRL_HAS_EXPIRED: return "the revocation list has expired; renew crl_file";
            default: return X509_verify_cert_error_string(certificate_);
        }
    }

    bool feed(std::string_view received) noexcept {
        if (received.empty()) return true;
        const int size = static_cast<int>(received.size());
        return BIO_write(SSL_get_rbio(ssl_.get()), received.data(), size) == size;
    }

    // Moves the bytes to send into sealed_.
    std::string_view take_sealed() noexcept {
        BIO* const out = SSL_get_wbio(ssl_.get());
        try {
            sealed_.resize(BIO_ctrl_pending(out));
        } catch (...) {
            return {};
        }
        if (!sealed_.empty()) BIO_read(out, sealed_.data(), static_cast<int>(sealed_.size()));
        return sealed_;
    }

    void note_failure() noexcept {
        failed_ = over_ = true;
        certificate_ = SSL_get_verify_result(ssl_.get());
        if (certificate_ != X509_V_OK) return;
        const int reason = detail::OpensslErrors::last_reason();
        if (reason > SSL_AD_REASON_OFFSET && reason < SSL_AD_REASON_OFFSET + 256)
            alert_ = reason - SSL_AD_REASON_OFFSET;
        old_version_ = alert_ == SSL_AD_PROTOCOL_VERSION || reason == SSL_R_UNSUPPORTED_PROTOCOL;
        not_tls_ = alert_ == 0 && !old_version_ && !SSL_is_init_finished(ssl_.get());
    }

    // No certificate is verified after the handshake, and the authorities of the system take a megabyte.
    void forget_authorities() noexcept {
        if (X509_STORE* const none = X509_STORE_new()) SSL_CTX_set_cert_store(context_.get(), none);
    }

    const std::string server_;  // for error texts
    const std::string wanted_;
    std::mutex mutex_;
    const detail::OpensslContext context_;
    const std::unique_ptr<SSL, detail::OpensslFree> ssl_;
    std::string sealed_;
    bool drained_ = false;
    bool over_ = false;  // nothing more is received
    bool failed_ = false;
    // The cause, as far as known.
    long certificate_ = X509_V_OK;
    int alert_ = 0;
    bool old_version_ = false;
    bool not_tls_ = false;
};

// Reads the files of the options for each session. So renewed files need no restart, and a child of fork() uses nothing
// that was shared with threads that are gone.
class OpensslConnector final : public TlsConnector {
public:
    // Throws Error(errc::invalid_argument) if a file cannot be used.
    explicit OpensslConnector(TlsOptions options) : options_(std::move(options)) {
        // Initialise here, so that OpenSSL's exit handler runs after the destructors of static clients.
        if (OPENSSL_init_ssl(0, nullptr) != 1) throw Error(errc::unsupported, {}, "cannot initialise OpenSSL");
        if (options_.certificate_file.empty() != options_.key_file.empty())
            throw Error(errc::invalid_argument, {}, "TlsOptions: set both certificate_file and key_file, or neither");
        if (options_.server_name.size() > longest_host)
            throw Error(errc::invalid_argument, {}, "TlsOptions::server_name must not exceed 253 bytes");
        std::string why;
        if (!context(why)) throw Error(errc::invalid_argument, {}, why);
    }

    std::unique_ptr<TlsSession> session(const HostPort& server, std::string& why) const override {
        const std::string wanted = detail::bare_host(options_.server_name.empty() ? server.host : options_.server_name);
        // With a leading dot OpenSSL would accept any host of a domain.
        if (wanted.empty() || wanted.front() == '.' || wanted.size() > longest_host) {
            why =
                "TLS needs a host name of 1 to 253 bytes without a leading dot; check the URL and "
                "TlsOptions::server_name";
            return nullptr;
        }
        const detail::OpensslErrors errors;
        auto context = this->context(why);
        if (!context) return nullptr;
        return std::make_unique<OpensslSession>(std::move(context), server.display(), wanted);
    }

private:
    static constexpr std::size_t longest_host = 253;

    // Returns null with the reason in `why` if an option cannot be used.
    detail::OpensslContext context(std::string& why) const {
        const detail::OpensslErrors errors;
        detail::OpensslContext context(SSL_CTX_new(TLS_client_method()));
        if (!context) throw std::bad_alloc();
        SSL_CTX* const c = context.get();
        const auto cannot = [&](const char* what, const std::string& file) -> detail::OpensslContext {
            why = std::string("cannot use the ") + what + " " + in_quotes(file, 255) + ": " +
                  detail::OpensslErrors::last_words();
            return nullptr;
        };
        const int least = options_.minimum_version == TlsVersion::v1_3 ? TLS1_3_VERSION : TLS1_2_VERSION;
        if (SSL_CTX_set_min_proto_version(c, least) != 1) {
            why = "this OpenSSL does not support TlsOptions::minimum_version";
            return nullptr;
        }
        SSL_CTX_set_options(c, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
        SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
        SSL_CTX_set_verify(c, SSL_VERIFY_PEER, nullptr);
        // Otherwise OpenSSL would ask for a password at the terminal.
        SSL_CTX_set_default_passwd_cb(c, [](char*, int, int, void*) { return -1; });

        const char* const file = options_.ca_file.empty() ? nullptr : options_.ca_file.c_str();
        const char* const directory = options_.ca_directory.empty() ? nullptr : options_.ca_directory.c_str();
        if (!file && !directory) SSL_CTX_set_default_verify_paths(c);
        if (file && SSL_CTX_load_verify_locations(c, file, nullptr) != 1) return cannot("ca_file", options_.ca_file);
        if (directory && SSL_CTX_load_verify_locations(c, nullptr, directory) != 1)
            return cannot("ca_directory", options_.ca_directory);
        if (!options_.crl_file.empty()) {
            X509_STORE* const store = SSL_CTX_get_cert_store(c);
            X509_LOOKUP* const lookup = X509_STORE_add_lookup(store, X509_LOOKUP_file());
            if (!lookup || X509_load_crl_file(lookup, options_.crl_file.c_str(), X509_FILETYPE_PEM) < 1)
                return cannot("crl_file", options_.crl_file);
            X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL);
        }
        // A certificate in ca_file is trusted, even if another authority has signed it.
        X509_STORE_set_flags(SSL_CTX_get_cert_store(c), X509_V_FLAG_PARTIAL_CHAIN);
        if (!options_.certificate_file.empty()) {
            if (SSL_CTX_use_certificate_chain_file(c, options_.certificate_file.c_str()) != 1)
                return cannot("certificate_file", options_.certificate_file);
            if (SSL_CTX_use_PrivateKey_file(c, options_.key_file.c_str(), SSL_FILETYPE_PEM) != 1)
                return cannot("key_file", options_.key_file);
            if (SSL_CTX_check_private_key(c) != 1) return cannot("key_file", options_.key_file);
        }
        return context;
    }

    const TlsOptions options_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

// redlatch/tls.hpp

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
