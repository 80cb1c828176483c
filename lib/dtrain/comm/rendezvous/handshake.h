// The handshake between a rank and the store. Private to comm/rendezvous.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "dtrain/base/deadline.h"
#include "dtrain/base/descriptor.h"
#include "dtrain/base/waiting_lines.h"
#include "dtrain/net/frames.h"

namespace dtrain::comm {

/// Who wants to be taken in.
struct Newcomer {
  std::int64_t rank = 0;
  std::int64_t size = 1;
  bool is_handed_down = false;    ///< the connection came from dtrun, so there is no stranger
  bool waits_for_rank_0 = false;  ///< dtrun holds the connection until rank 0 comes
  std::string token;              ///< the job's secret; empty: none
  std::string where;              ///< of the store, for messages: "at 127.0.0.1:29500"
  base::WaitingLines* waiting = nullptr;  ///< for a store that does not answer; null: silent
};

/// This attempt came to nothing, but a further one may come through: the connection was closed
/// before the rank was taken in, or what answered does not know the job's secret.
struct ClosedEarly {
  std::string reason;
};

/// Introduces this rank to the store, and returns the job's secret when it is admitted: its own, or
/// the one that the store hands out through munge.
///
/// Throws: ClosedEarly; Error{usage} for a secret that one side lacks or that differs, or without
///         munge where the store relies on it; Error{comm} for what is no store, or another user's;
///         Error{timeout} for silence; the refusal of the job.
std::string introduce_to_store(const base::Descriptor& connection, net::FrameBuffer& input,
                               const Newcomer& self, const base::Deadline& deadline);

/// The text of a reply that is `done`; nothing of `absent`.
///
/// Throws: the refusal of the job.
[[nodiscard]] std::optional<std::string> text_of_reply(const std::string& reply);

}  // namespace dtrain::comm
