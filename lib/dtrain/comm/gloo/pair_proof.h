// Proves over each connection of a gloo group that a rank is at its other end. Private to
// comm/gloo.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "dtrain/comm/gloo/link.h"

namespace dtrain::comm {

/// What the proofs of a group are made from.
struct GroupSecret {
  std::string key;    ///< random, of this start of the job; only its ranks know it
  std::string group;  ///< the name of this group, which no other one has
};

/// Sends every peer a proof, checks theirs, and returns the first peer whose proof is wrong. gloo
/// takes whoever connects to its port first and says a small number for the peer of that number.
///
/// Collective: every member.
/// Throws:     TransportFailure, also for one who says nothing.
[[nodiscard]] std::optional<std::int64_t> find_impostor(Link& link, const GroupSecret& secret,
                                                        const base::Deadline& deadline);

}  // namespace dtrain::comm
