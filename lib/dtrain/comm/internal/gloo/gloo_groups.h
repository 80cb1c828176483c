// Makes groups of ranks that communicate through gloo.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/comm/create_world.h"
#include "dtrain/comm/internal/gloo/gloo_record.h"
#include "dtrain/comm/internal/gloo/link.h"
#include "dtrain/comm/internal/rendezvous/rendezvous.h"
#include "dtrain/comm/queued_group.h"

namespace dtrain::comm {

/// Listens at this rank's address from its construction on, when all ranks tell each other where
/// they listen. To make a group, its members tell no more than a number.
class GlooGroups {
 public:
  /// Collective: all ranks of the job.
  /// Throws:     Error{usage} for an interface that this host does not have, the loopback's where
  ///             there are other hosts, a link-local address, or ranks at addresses of IPv4 and of
  ///             IPv6; Error{comm} naming the address where it cannot listen.
  GlooGroups(const WorldOptions& options, std::shared_ptr<Rendezvous> rendezvous);

  /// The transport of a group of several, whose keys in the store begin with `key`; each of its
  /// connections is proven to lead to that member.
  ///
  /// Collective: the group.
  [[nodiscard]] std::unique_ptr<Transport> connect(const std::string& key,
                                                   const GroupIdentity& identity);

 private:
  void exchange_endpoints(const std::string& own, const base::Deadline& deadline);
  /// The records of a new group's members, in their order.
  [[nodiscard]] std::vector<GlooRecord> exchange_records(const std::string& key,
                                                         const GroupIdentity& identity,
                                                         const base::Deadline& deadline);
  [[nodiscard]] std::unique_ptr<Link> connect_link(const std::string& key,
                                                   const GroupIdentity& identity,
                                                   const base::Deadline& deadline);
  void hear_refusal();
  void check_peers(Link& link, const std::string& group, const GroupIdentity& identity,
                   const base::Deadline& deadline);

  WorldOptions options_;
  std::shared_ptr<Rendezvous> rendezvous_;
  std::string address_;
  std::shared_ptr<::gloo::transport::Device> device_;  // listens there
  std::vector<std::string> endpoints_;                 // by world rank
  std::int64_t next_number_ = 0;  // of the connections of this rank's next group
  std::string key_;               // of all proofs; only ranks of this start know it
};

}  // namespace dtrain::comm
