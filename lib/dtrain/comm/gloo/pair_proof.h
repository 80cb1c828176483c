// Proves over each connection of a gloo group that a rank is at its other end. Private to
// comm/gloo.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/comm/gloo/link.h"

namespace dtrain::comm {

/// A secret that only the members of a group can know.
struct GroupSecret {
  std::string token;                    ///< of the job; may be empty
  std::string group;                    ///< the name of this group, which no other one has
  std::vector<std::string> challenges;  ///< by member: random, exchanged through the job's store
};

/// Sends every peer a proof, checks theirs, and returns the first peer whose proof is wrong. gloo
/// takes whoever connects to its port first and says a small number for the peer of that number.
///
/// Collective: every member.
/// Throws:     TransportFailure, also for one who says nothing.
[[nodiscard]] std::optional<std::int64_t> find_impostor(Link& link, const GroupSecret& secret,
                                                        const base::Deadline& deadline);

}  // namespace dtrain::comm
