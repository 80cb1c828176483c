// Proves that ranks belong to one job: by its secret, or by the kernel's word on who owns a unix
// socket.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dtrain::net {

/// 32 random bytes, never used twice.
[[nodiscard]] std::string new_challenge();

/// 32 bytes that only those can make who know the key.
[[nodiscard]] std::string hmac_sha256(std::string_view key, std::string_view text);

/// Compares in a time that does not depend on where they differ.
[[nodiscard]] bool is_same_proof(std::string_view a, std::string_view b);

/// The user whose process made the other end of a unix socket.
[[nodiscard]] std::optional<uid_t> user_of_unix_peer(int descriptor);

/// The job's secret: `token`, or the content of `token_file` without its last line's end; empty if
/// neither is given.
///
/// Throws: Error{usage} naming the variable, for both at once, a secret below 16 bytes, or a file
///         that cannot be read or that others can read.
[[nodiscard]] std::string job_secret(const std::string& token, const std::string& token_file);

}  // namespace dtrain::net
