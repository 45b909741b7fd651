// SPDX-License-Identifier: MIT
#pragma once

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/obj_mac.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <ctime>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "temp_dir.hpp"

namespace redlatch::test {

namespace detail {

struct OpensslFreeAny {
    void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
    void operator()(EVP_PKEY_CTX* context) const { EVP_PKEY_CTX_free(context); }
    void operator()(X509* certificate) const { X509_free(certificate); }
    void operator()(X509_CRL* list) const { X509_CRL_free(list); }
    void operator()(X509_REVOKED* entry) const { X509_REVOKED_free(entry); }
    void operator()(ASN1_STRING* value) const { ASN1_STRING_free(value); }  // a number or a time
};
template <class T>
using OpensslOwned = std::unique_ptr<T, OpensslFreeAny>;

inline void must(bool done, const char* what) {
    if (!done) throw std::runtime_error(std::string("OpenSSL cannot ") + what);
}

inline OpensslOwned<EVP_PKEY> new_key() {
    const OpensslOwned<EVP_PKEY_CTX> context{EVP_PKEY_CTX_new_id(EVP_PKEY_EC, nullptr)};
    must(context && EVP_PKEY_keygen_init(context.get()) == 1, "make a key");
    must(EVP_PKEY_CTX_set_ec_paramgen_curve_nid(context.get(), NID_X9_62_prime256v1) == 1, "choose a curve");
    EVP_PKEY* key = nullptr;
    must(EVP_PKEY_keygen(context.get(), &key) == 1, "make a key");
    return OpensslOwned<EVP_PKEY>{key};
}

template <class Write>
void write_pem(const std::string& path, Write write) {
    std::FILE* file = std::fopen(path.c_str(), "we");
    must(file != nullptr, "open a file");
    const bool written = write(file) == 1;
    must((std::fclose(file) == 0) && written, "write a file");
}

}  // namespace detail

struct CertificateOptions {
    std::string names = "DNS:localhost,IP:127.0.0.1";  // the hosts that it is valid for; empty: none
    long valid_from = -3600;                           // seconds from now
    long valid_to = 3600;
    bool self_signed = false;
};

/// A certificate with its key, as files.
struct Certificate {
    std::string file;
    std::string key_file;
    long serial = 0;
};

/// A certificate authority that makes certificates and keys for a test, in a temporary directory. Not thread-safe.
class Authority {
public:
    explicit Authority(const std::string& name = "test authority") : key_(detail::new_key()) {
        certificate_ = certificate(name, {.names = "", .self_signed = true}, *key_, true);
        write(*certificate_, file());
    }

    /// The file of its own certificate.
    std::string file() const { return dir_.file("ca.pem"); }

    Certificate issue(const std::string& subject, const CertificateOptions& options = {}) {
        const auto key = detail::new_key();
        const auto made = certificate(subject, options, *key, false);
        const Certificate files{dir_.file(subject + ".pem"), dir_.file(subject + ".key"), serial_};
        write(*made, files.file);
        detail::write_pem(files.key_file, [&](std::FILE* to) {
            return PEM_write_PrivateKey(to, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
        });
        return files;
    }

    /// Makes a revocation list of this authority. Returns its file.
    std::string revoke(const std::vector<Certificate>& revoked, long valid_to = 3600) {
        const detail::OpensslOwned<X509_CRL> list{X509_CRL_new()};
        detail::must(list && X509_CRL_set_version(list.get(), 1) == 1, "make a list");
        X509_CRL_set_issuer_name(list.get(), X509_get_subject_name(certificate_.get()));
        const detail::OpensslOwned<ASN1_TIME> now{X509_gmtime_adj(nullptr, -3600)};
        const detail::OpensslOwned<ASN1_TIME> end{X509_gmtime_adj(nullptr, valid_to)};
        X509_CRL_set1_lastUpdate(list.get(), now.get());
        X509_CRL_set1_nextUpdate(list.get(), end.get());
        for (const Certificate& one : revoked) {
            detail::OpensslOwned<X509_REVOKED> entry{X509_REVOKED_new()};
            const detail::OpensslOwned<ASN1_INTEGER> serial{ASN1_INTEGER_new()};
            ASN1_INTEGER_set(serial.get(), one.serial);
            X509_REVOKED_set_serialNumber(entry.get(), serial.get());
            X509_REVOKED_set_revocationDate(entry.get(), now.get());
            detail::must(X509_CRL_add0_revoked(list.get(), entry.release()) == 1, "revoke");
        }
        X509_CRL_sort(list.get());
        detail::must(X509_CRL_sign(list.get(), key_.get(), EVP_sha256()) > 0, "sign a list");
        const std::string file = dir_.file("revoked-" + std::to_string(++lists_) + ".pem");
        detail::write_pem(file, [&](std::FILE* to) { return PEM_write_X509_CRL(to, list.get()); });
        return file;
    }

    const TempDir& directory() const { return dir_; }

private:
    static void write(X509& certificate, const std::string& path) {
        detail::write_pem(path, [&](std::FILE* to) { return PEM_write_X509(to, &certificate); });
    }

    detail::OpensslOwned<X509> certificate(const std::string& subject, const CertificateOptions& options, EVP_PKEY& key,
                                           bool authority) {
        detail::OpensslOwned<X509> made{X509_new()};
        detail::must(made && X509_set_version(made.get(), 2) == 1, "make a certificate");
        ASN1_INTEGER_set(X509_get_serialNumber(made.get()), ++serial_);
        X509_gmtime_adj(X509_getm_notBefore(made.get()), options.valid_from);
        X509_gmtime_adj(X509_getm_notAfter(made.get()), options.valid_to);
        X509_set_pubkey(made.get(), &key);
        X509_NAME* const name = X509_get_subject_name(made.get());
        X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(subject.c_str()),
                                   -1, -1, 0);
        X509* const issuer = options.self_signed ? made.get() : certificate_.get();
        X509_set_issuer_name(made.get(), X509_get_subject_name(issuer));
        X509V3_CTX context;
        X509V3_set_ctx(&context, issuer, made.get(), nullptr, nullptr, 0);
        const auto extend = [&](int kind, const std::string& value) {
            X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str());
            detail::must(extension != nullptr && X509_add_ext(made.get(), extension, -1) == 1, "add an extension");
            X509_EXTENSION_free(extension);
        };
        extend(NID_basic_constraints, authority ? "critical,CA:TRUE" : "CA:FALSE");
        if (authority) extend(NID_key_usage, "critical,keyCertSign,cRLSign");
        extend(NID_subject_key_identifier, "hash");
        if (!options.names.empty()) extend(NID_subject_alt_name, options.names);
        detail::must(X509_sign(made.get(), options.self_signed ? &key : key_.get(), EVP_sha256()) > 0, "sign");
        return made;
    }

    TempDir dir_;
    detail::OpensslOwned<EVP_PKEY> key_;
    detail::OpensslOwned<X509> certificate_;
    long serial_ = 0;
    int lists_ = 0;
};

}  // namespace redlatch::test
