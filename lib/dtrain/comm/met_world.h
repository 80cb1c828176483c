// A world whose ranks are processes that met through a store. Private to comm.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "dtrain/comm/rendezvous/rendezvous.h"
#include "dtrain/comm/world.h"

namespace dtrain::comm {

/// Holds the store as long as groups are made.
class MetWorld : public World {
 public:
  explicit MetWorld(std::shared_ptr<Rendezvous> rendezvous) : rendezvous_(std::move(rendezvous)) {}

  /// Ends the making of groups on this rank. Rank 0 serves the others until they have ended it too.
  void end_meeting() {
    rendezvous_->store->leave();
    if (rendezvous_->server) rendezvous_->server->finish();
    stop_listening();
  }

 protected:
  [[nodiscard]] StoreClient& store() { return *rendezvous_->store; }
  [[nodiscard]] const std::string& own_address() const { return rendezvous_->own_address; }
  [[nodiscard]] const std::string& token() const { return rendezvous_->token; }
  /// Closes what only the making of groups needs open.
  virtual void stop_listening() {}

 private:
  std::shared_ptr<Rendezvous> rendezvous_;
};

}  // namespace dtrain::comm
