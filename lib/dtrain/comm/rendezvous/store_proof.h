// Proves to the store and to a rank that they know the job's secret. Private to comm.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dtrain::comm {

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

}  // namespace dtrain::comm
