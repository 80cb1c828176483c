// Creates groups of ranks that communicate through gloo.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/comm/create_world.h"
#include "dtrain/comm/internal/gloo/gloo_messenger.h"
#include "dtrain/comm/internal/gloo/gloo_record.h"
#include "dtrain/comm/internal/rendezvous/rendezvous.h"
#include "dtrain/comm/queued_group.h"

namespace dtrain::comm {

/// Factory of gloo groups. The constructor opens this rank's listener and exchanges all ranks'
/// addresses once, so that creating a group exchanges only one number per member.
class GlooGroups {
 public:
  /// Collective: all ranks of the job.
  /// Throws:     Error{usage} for an interface that this host lacks, the loopback if there are
  ///             other hosts, a link-local address, or a mix of IPv4 and IPv6 ranks; Error{comm}
  ///             naming the address at which it cannot listen.
  GlooGroups(const WorldOptions& options, std::shared_ptr<Rendezvous> rendezvous);

  /// Connects a group of several ranks, and authenticates the peer of each connection. key: prefix
  /// of the group's keys in the store.
  ///
  /// Collective: the group.
  [[nodiscard]] std::unique_ptr<Transport> connect(const std::string& key,
                                                   const GroupIdentity& identity);

 private:
  void exchange_endpoints(const std::string& own, const base::Deadline& deadline);
  /// The records of a new group's members, in group order.
  [[nodiscard]] std::vector<GlooRecord> exchange_records(const std::string& key,
                                                         const GroupIdentity& identity,
                                                         const base::Deadline& deadline);
  [[nodiscard]] std::unique_ptr<GlooMessenger> connect_messenger(const std::string& key,
                                                                 const GroupIdentity& identity,
                                                                 const base::Deadline& deadline);
  void rethrow_job_failure();
  void check_peers(GlooMessenger& messenger, const std::string& group,
                   const GroupIdentity& identity, const base::Deadline& deadline);

  WorldOptions options_;
  std::shared_ptr<Rendezvous> rendezvous_;
  std::string address_;
  std::shared_ptr<::gloo::transport::Device> device_;  // listens at address_
  std::vector<std::string> endpoints_;                 // by world rank
  std::int64_t next_number_ = 0;  // the first connection number of the next group
  std::string key_;               // HMAC key of all proofs; known only to the ranks of this launch
};

}  // namespace dtrain::comm
