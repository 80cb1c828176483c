// Munge: the service by which machines of a cluster know each other's users.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dtrain::net {

/// Seals a text so that only processes of this user can read it, on machines that share a munge
/// key: munge calls it a credential. No munge is needed to build or to start; libmunge is opened
/// here.
///
/// Returns: nothing, with `reason`, where there is no munge or it does not answer.
[[nodiscard]] std::optional<std::string> seal_for_own_user(std::string_view text,
                                                           std::string& reason);

/// A new secret for a job, if munge can show it to other processes of this user; else empty.
[[nodiscard]] std::string new_sealable_secret();

/// The text that a process of this same user has sealed, at most five minutes ago (by munge's
/// default). A machine opens each credential once.
///
/// Returns: nothing, with `reason`, for what somebody else has sealed, a stale or forged
/// credential,
///          and where munge does not answer.
[[nodiscard]] std::optional<std::string> open_from_own_user(const std::string& credential,
                                                            std::string& reason);

}  // namespace dtrain::net
