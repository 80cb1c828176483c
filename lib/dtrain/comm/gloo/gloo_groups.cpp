#include "dtrain/comm/gloo/gloo_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "dtrain/base/error.h"
#include "dtrain/base/open_files.h"
#include "dtrain/base/printable.h"
#include "dtrain/base/readable.h"
#include "dtrain/comm/gloo/gloo_store.h"
#include "dtrain/comm/gloo/gloo_transport.h"
#include "dtrain/comm/gloo/pair_proof.h"
#include "dtrain/net/proof.h"

namespace dtrain::comm {

namespace {

using c10d::ProcessGroupGloo;

/// gloo ends the process when its thread meets the limit on open files, so it must not meet it: a
/// group has a connection to each member, and for a moment two.
void require_files(std::int64_t group_size) {
  constexpr std::int64_t kOwn = 8;  // its loop and its listener
  if (base::can_open_files(2 * group_size + kOwn)) return;
  base::fail(base::ErrorKind::comm, "gloo needs {} more files to connect {} ranks: {}",
             2 * group_size + kOwn, group_size, std::strerror(EMFILE));
}

/// The first line of gloo's message.
std::string first_line(const std::exception& error) {
  const std::string_view text = error.what();
  return base::printable(text.substr(0, text.find('\n')));
}

std::shared_ptr<::gloo::transport::Device> make_device(const std::string& address) {
  require_files(2);
  try {
    return ProcessGroupGloo::createDeviceForHostname(address);
  } catch (const std::exception& caught) {
    base::fail(base::ErrorKind::comm, "gloo cannot listen at {}: {}", address, first_line(caught));
  }
}

}  // namespace

GlooGroups::GlooGroups(const WorldOptions& options, std::shared_ptr<Rendezvous> rendezvous)
    : options_(options),
      rendezvous_(std::move(rendezvous)),
      device_(make_device(rendezvous_->own_address)) {}

std::unique_ptr<Transport> GlooGroups::connect(const std::string& key,
                                               const GroupIdentity& identity) {
  const base::Deadline deadline(options_.group.timeout);
  require_files(static_cast<std::int64_t>(identity.world_ranks.size()));
  const GroupSecret secret{
      .token = rendezvous_->token,
      .group = key,
      .challenges = exchange_notes(*rendezvous_->store, key, identity.world_ranks,
                                   net::new_challenge(), deadline)};
  std::unique_ptr<Link> link = connect_link(key, identity, deadline);
  check_peers(*link, secret, identity, deadline);
  return std::make_unique<GlooTransport>(std::move(link), options_.group.reduction);
}

std::unique_ptr<Link> GlooGroups::connect_link(const std::string& key,
                                               const GroupIdentity& identity,
                                               const base::Deadline& deadline) {
  const auto settings = ProcessGroupGloo::Options::create(deadline.remaining());
  settings->devices = {device_};
  settings->threads = 1;  // for gloo's own all-reduce, of which one runs at a time
  try {
    return std::make_unique<Link>(c10::make_intrusive<ProcessGroupGloo>(
        c10::make_intrusive<GlooStore>(*rendezvous_->store, key + " of gloo", identity.world_ranks,
                                       deadline.remaining()),
        static_cast<int>(identity.rank), static_cast<int>(identity.world_ranks.size()), settings));
  } catch (const base::Error&) {
    throw;
  } catch (const std::system_error&) {  // no thread
    throw;
  } catch (const std::exception& caught) {
    hear_refusal();
    base::fail(base::ErrorKind::comm, "rank {} cannot connect to the others of {} from {}: {}",
               options_.rank, key, rendezvous_->own_address, first_line(caught));
  }
}

// Fails with the reason that another rank gave the store, if it refused the job.
void GlooGroups::hear_refusal() {
  (void)rendezvous_->store->get("no such key", base::Deadline(std::chrono::milliseconds(1)));
}

// Fails unless all connections lead to ranks of this job.
void GlooGroups::check_peers(Link& link, const GroupSecret& secret, const GroupIdentity& identity,
                             const base::Deadline& deadline) {
  const auto fail_for = [&](base::ErrorKind kind, std::int64_t peer, std::string_view what) {
    rendezvous_->store->refuse(
        kind, fmt::format("who is connected to rank {} at {} as rank {} {}; if that is no rank, "
                          "use a network that strangers cannot reach, or --backend shm",
                          options_.rank, rendezvous_->own_address,
                          identity.world_ranks[static_cast<std::size_t>(peer)], what));
  };
  try {
    const auto impostor = find_impostor(link, secret, deadline);
    if (impostor) fail_for(base::ErrorKind::comm, *impostor, "does not know the job's secret");
  } catch (const TransportFailure& failure) {
    const std::int64_t peer = failure.peers().empty() ? 0 : failure.peers().front();
    if (failure.cause() == TransportFailure::Cause::no_answer) {
      fail_for(base::ErrorKind::timeout, peer,
               fmt::format("did not prove to be one within {} (--comm-timeout)",
                           base::readable_time(base::Seconds(deadline.limit()).count())));
    }
    hear_refusal();
    fail_for(base::ErrorKind::comm, peer, "closed the connection");
  }
}

}  // namespace dtrain::comm
