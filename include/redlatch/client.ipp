// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/base/names.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/base/url.hpp"
#include "redlatch/client.hpp"
#include "redlatch/error.hpp"
#include "redlatch/session/awaiting.hpp"
#include "redlatch/session/operation.hpp"
#include "redlatch/session/release_round.hpp"
#include "redlatch/session/server_check.hpp"
#include "redlatch/session/session_handle.hpp"
#include "redlatch/session/settings.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#if __has_include(<hiredis/read.h>)
#include "redlatch/redis/hiredis_transport.hpp"
#endif

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {

inline void check_options(const ClientOptions& options) {
    check_settings(settings_of(options), {});
    if (options.renewal_batch < 1 || options.renewal_batch > 1000)
        throw Error(errc::invalid_argument, {}, "renewal_batch must be from 1 to 1,000");
    if (options.ping_interval < Milliseconds(0))
        throw Error(errc::invalid_argument, {}, "ping_interval must not be negative");
    // A dead waiter shall block the others no longer than one of Redisson does.
    if (options.fair_waiter_timeout &&
        (*options.fair_waiter_timeout < Milliseconds(100) || *options.fair_waiter_timeout > std::chrono::minutes(5)))
        throw Error(errc::invalid_argument, {}, "fair_waiter_timeout must be from 100 ms to 5 min");
    if (!options.key_prefix.empty()) check_name(options.key_prefix + "x");
    // The characters that CLIENT SETNAME accepts.
    if (options.name.size() > longest_name ||
        std::any_of(options.name.begin(), options.name.end(), [](char c) { return c < '!' || c > '~'; }))
        throw Error(errc::invalid_argument, {},
                    "ClientOptions::name must be printable ASCII without spaces, and at most 1,024 bytes");
}

inline std::shared_ptr<SessionHandle> new_session(std::unique_ptr<TransportPort> transport,
                                                  const ClientOptions& options) {
    check_options(options);
    check_replication(settings_of(options), transport->posts_several(), {});
    return std::make_shared<SessionHandle>(std::move(transport), options);
}

#if __has_include(<hiredis/read.h>)
inline std::unique_ptr<TransportPort> connect(std::string_view text, const ClientOptions& options) {
    Url url = Url::parse(text);
    check_options(options);
    url.client_name = options.name;
    url.ping_interval = options.ping_interval;
    if (options.credentials)
        url.credentials = std::make_shared<const std::function<Credentials()>>(options.credentials);
    return std::make_unique<TransportPortOf<HiredisTransport>>(
        HiredisTransport(std::move(url), options.command_timeout, options.tls, options.pubsub));
}
#endif

}  // namespace detail

#if __has_include(<hiredis/read.h>)
REDLATCH_INLINE Client::Client(std::string_view url, ClientOptions options)
    : session_(detail::new_session(detail::connect(url, options), options)) {}
#endif

REDLATCH_INLINE Client::Client(Port, std::unique_ptr<detail::TransportPort> transport, ClientOptions options)
    : session_(detail::new_session(std::move(transport), options)) {}

REDLATCH_INLINE Client::~Client() = default;

REDLATCH_INLINE std::string Client::id() const { return session_->session().uuid(); }

REDLATCH_INLINE Stats Client::stats() const { return session_->session().stats(); }

namespace detail {

// Returns how many holds were given back. Throws Error if some were not.
inline std::size_t given_back(const ReleaseRound::Outcome& outcome) {
    if (outcome.undelivered == 0) return outcome.delivered;
    const std::size_t all = outcome.delivered + outcome.undelivered;
    throw Error(outcome.why ? static_cast<errc>(outcome.why.value()) : errc::unreachable, {},
                std::to_string(outcome.undelivered) + " of " + std::to_string(all) +
                    " holds were not given back in time; keep the client until their leases are over, so that it can "
                    "go on trying");
}

// The host of async_close()'s own operation, which must not end with the others: operations_end() is never requested.
class ClosingHost final : public OperationHost {
public:
    explicit ClosingHost(std::shared_ptr<SessionHandle> session) : session_(std::move(session)) {}

    void start(bool dispatches) override { session_->start(dispatches); }
    Continuations& continuations() override { return session_->continuations(); }
    std::stop_token operations_end() noexcept override { return {}; }
    Notifier& completions() noexcept override { return session_->completions(); }
    Notifier& dispatcher() noexcept override { return session_->dispatcher(); }

private:
    const std::shared_ptr<SessionHandle> session_;
};

inline Task<std::size_t> close(Session& session, Milliseconds limit, WaitBy by) {
    const Instant until = deadline_after(Clock::now(), limit);
    session.give_up_operations();
    const std::shared_ptr<ReleaseRound> round = session.release_all();
    if (by == by_thread) co_return given_back(round->wait(until));
    const auto done = std::make_shared<Delivery<bool>>(false);
    round->when_done([done, by] { done->deliver(true, *by); });
    co_await Delivered(by, done, until);
    co_return given_back(round->outcome());
}

}  // namespace detail

REDLATCH_INLINE std::size_t Client::release_all() {
    const Instant deadline = Clock::now() + session_->session().options().command_timeout;
    return detail::given_back(session_->session().release_all()->wait(deadline));
}

REDLATCH_INLINE std::size_t Client::release_all(std::error_code& ec) {
    const Instant deadline = Clock::now() + session_->session().options().command_timeout;
    const detail::ReleaseRound::Outcome outcome = session_->session().release_all()->wait(deadline);
    ec.clear();
    if (outcome.undelivered > 0) ec = outcome.why ? outcome.why : make_error_code(errc::unreachable);
    return outcome.delivered;
}

REDLATCH_INLINE Operation<std::size_t> Client::async_close() {
    return close_within(session_->session().options().command_timeout);
}

REDLATCH_INLINE Operation<std::size_t> Client::close_within(Milliseconds limit) {
    return detail::OperationAccess::make_simple<std::size_t>(
        std::make_shared<detail::ClosingHost>(session_),
        [session = session_, limit](const detail::RunContext& context) {
            return detail::close(session->session(), limit, context.by);
        });
}

REDLATCH_INLINE std::vector<std::string> Client::check_server() const {
    return detail::check_server(session_->session());
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch
