// Tells ranks under torchrun where they meet. Private to comm.
#pragma once

#include <memory>
#include <string>

#include "dtrain/base/deadline.h"
#include "dtrain/comm/rendezvous/rendezvous.h"

namespace dtrain::comm {

/// A notice in the store that torchrun serves at MASTER_ADDR:MASTER_PORT, so that rank 0 cannot
/// listen there: it takes a free port and leaves it in a notice, with a secret for the job where
/// ranks of several hosts have none. Whoever reaches torchrun's store can read the notice.
class TorchrunNotice {
 public:
  /// Connects to the store and completes `place`: rank 0 will publish its port; any other rank
  /// waits for it, and learns port and secret. `key`: of the notice, equal on all ranks.
  ///
  /// Throws: Error{timeout} or Error{comm} naming the store's address.
  TorchrunNotice(MeetingPlace& place, const std::string& key, const base::Deadline& deadline);
  /// Rank 0 takes its notice away, which all have read: the next program must not find it.
  ~TorchrunNotice();
  TorchrunNotice(const TorchrunNotice&) = delete;
  TorchrunNotice& operator=(const TorchrunNotice&) = delete;

 private:
  class Store;
  std::shared_ptr<Store> store_;
  bool is_own_ = false;
};

}  // namespace dtrain::comm
