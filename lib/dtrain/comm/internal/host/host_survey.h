// Finds out which ranks of a job are on one host and can share memory there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/comm/internal/host/host_groups.h"
#include "dtrain/comm/internal/host/introduction.h"
#include "dtrain/comm/internal/rendezvous/rendezvous.h"

namespace dtrain::comm {

/// A rank's announcement to the others before they share memory.
struct ShmCard {
  std::string host;     ///< host_digest() of its host_of_process()
  std::string refusal;  ///< why it cannot share memory; empty: it can
};

/// 8 bytes that stand for a host. Hosts that have the same by chance are told apart as those of one
/// name are: their ranks cannot reach each other's sockets.
[[nodiscard]] std::string host_digest(const std::string& host);

/// The note by which a rank announces itself.
[[nodiscard]] std::string packed(const ShmCard& card);

/// Why a rank cannot share memory with those of its host, in one line; empty if all can.
[[nodiscard]] std::string refusal_among(const std::vector<ShmCard>& cards);

/// The hosts of these ranks, numbered in the order of their first ranks.
[[nodiscard]] std::vector<std::int64_t> hosts_of(const std::vector<ShmCard>& cards);

/// A rank that looks for its neighbours.
struct SurveyOptions {
  std::int64_t rank = 0;
  std::int64_t size = 1;  ///< ranks of the job
  Segment::Count count_memory = {};
};

/// What all ranks know then, and this rank's part in the meeting on its host. If each rank is on a
/// host of its own, there is no such meeting, no obstacle and no segment.
struct HostSurvey {
  std::string obstacle;                    ///< to sharing memory anywhere; empty: none
  std::vector<std::int64_t> host_of_rank;  ///< of every rank, as far as they could tell; or empty
  std::shared_ptr<Segment> segment;
  HostMember member;

  [[nodiscard]] std::int64_t num_hosts() const;
};

/// Collective: all ranks of the job.
/// Throws:     Error{timeout} or Error{comm} naming a rank that has gone.
[[nodiscard]] HostSurvey survey_hosts(const SurveyOptions& options, StoreClient& store,
                                      const base::Deadline& deadline);

/// Gives the ranks of each host each other's memory.
///
/// Collective: all ranks of a host.
/// Throws:     as exchange_segments.
[[nodiscard]] std::shared_ptr<ProcessNeighbours> share_memory(HostSurvey survey,
                                                              const base::Deadline& deadline);

}  // namespace dtrain::comm
