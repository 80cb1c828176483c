// Proves that ranks belong to one job: by its secret, or by the kernel's word on who owns a unix
// socket. Private to comm.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dtrain::comm {

/// 32 random bytes, never used twice.
[[nodiscard]] std::string new_challenge();

/// 32 bytes that only those can make who know the key.
[[nodiscard]] std::string hmac_sha256(std::string_view key, std::string_view text);

/// The words that both sides of a connection exchange before they prove anything.
struct Exchange {
  std::string store_challenge;
  std::string rank_challenge;
  std::uint64_t rank = 0;
  std::uint64_t size = 0;
};

/// Proves that `who` ("store" or "rank") knows the secret, in this exchange alone.
[[nodiscard]] std::string proof_of(std::string_view token, std::string_view who,
                                   const Exchange& exchange);

/// Names to proof_of the store that refuses a job, and why, so that nobody else can refuse it.
[[nodiscard]] std::string refusing_store(std::uint64_t kind, std::string_view message);

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

}  // namespace dtrain::comm
