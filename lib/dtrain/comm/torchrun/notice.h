// Tells ranks under torchrun where they meet. Private to comm.
#pragma once

#include <string>

#include "dtrain/base/clock.h"
#include "dtrain/comm/rendezvous/rendezvous.h"

namespace dtrain::comm {

/// torchrun serves a store at MASTER_ADDR:MASTER_PORT, so that rank 0 cannot listen there: it takes
/// a free port and leaves it in a notice in that store, with a secret for the job where ranks of
/// several hosts have none. Whoever reaches the store can read the notice.
///
/// Completes `place`: rank 0 will publish its port, and takes the notice away when `place` ends,
/// since the next program must not find it; any other rank waits for it, and learns port and
/// secret. key: of the notice, equal on all ranks.
///
/// Throws: Error{timeout} or Error{comm} naming the store's address.
void meet_through_torchrun(MeetingPlace& place, const std::string& key,
                           const base::Deadline& deadline);

}  // namespace dtrain::comm
