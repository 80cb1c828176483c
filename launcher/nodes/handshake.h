// How two launchers make sure that they belong to one job.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace launcher {

/// The first bytes that node 0's launcher sends; the number is the protocol's.
inline constexpr std::string_view kNodeGreeting = "dtrun/3\n";

/// How the two know each other; follows the greeting.
enum class NodeTrust : std::uint8_t {
  same_user = 1,  ///< within one machine the kernel says whose the sockets are
  token = 2,      ///< both prove that they know the job's secret
  munge = 3,      ///< the same; node 0 made the secret, and munge shows it to this user alone
};

/// Node 0's answer to a NodeHello.
enum class NodeReply : std::uint8_t { welcome = 1, refused = 2, unknown = 3 };

/// The longest message from a launcher that has not been taken in.
inline constexpr std::uint64_t kMostNodeHelloBytes = 8192;

/// The words of one connection before anything is proved.
struct NodeExchange {
  std::string host_challenge;
  std::string guest_challenge;
  std::string hello;
};

/// Each is made with the job's secret, for this exchange alone.
[[nodiscard]] std::string guest_proof(std::string_view token, const NodeExchange& exchange);
[[nodiscard]] std::string host_proof(std::string_view token, const NodeExchange& exchange,
                                     NodeReply reply, int kind, std::string_view text);

/// The secret by which the ranks of run `run_id` know each other.
[[nodiscard]] std::string derived_rank_token(std::string_view token, std::string_view run_id);
/// The same where the launchers have no secret.
[[nodiscard]] std::string random_rank_token();

}  // namespace launcher
