// Makes groups of ranks that communicate through gloo. Private to comm.
#pragma once

#include <memory>
#include <string>

#include "dtrain/comm/create_world.h"
#include "dtrain/comm/gloo/link.h"
#include "dtrain/comm/gloo/pair_proof.h"
#include "dtrain/comm/queued_group.h"
#include "dtrain/comm/rendezvous/rendezvous.h"

namespace dtrain::comm {

/// Listens at this rank's address from its construction on.
class GlooGroups {
 public:
  /// Throws: Error{comm} naming the address where it cannot listen.
  GlooGroups(const WorldOptions& options, std::shared_ptr<Rendezvous> rendezvous);

  /// The transport of a group of several, whose keys in the store begin with `key`.
  ///
  /// Collective: the group.
  [[nodiscard]] std::unique_ptr<Transport> connect(const std::string& key,
                                                   const GroupIdentity& identity);

 private:
  [[nodiscard]] std::unique_ptr<Link> connect_link(const std::string& key,
                                                   const GroupIdentity& identity,
                                                   const base::Deadline& deadline);
  void hear_refusal();
  void check_peers(Link& link, const GroupSecret& secret, const GroupIdentity& identity,
                   const base::Deadline& deadline);

  WorldOptions options_;
  std::shared_ptr<Rendezvous> rendezvous_;
  std::shared_ptr<::gloo::transport::Device> device_;
};

}  // namespace dtrain::comm
