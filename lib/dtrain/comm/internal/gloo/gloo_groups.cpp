#include "dtrain/comm/internal/gloo/gloo_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "dtrain/base/error.h"
#include "dtrain/base/host/process.h"
#include "dtrain/base/text/number.h"
#include "dtrain/base/text/text.h"
#include "dtrain/comm/internal/gloo/gloo_record.h"
#include "dtrain/comm/internal/gloo/gloo_transport.h"
#include "dtrain/net/addresses.h"
#include "dtrain/net/message.h"
#include "dtrain/net/proof.h"

namespace dtrain::comm {

namespace {

using c10d::ProcessGroupGloo;

constexpr const char* kSameBuild = "start every rank with the same build of dtrain";

/// Throws unless enough files can be opened: gloo's thread ends the process at the limit. A group
/// has a connection to each member, and briefly two.
void require_files(std::int64_t group_size) {
  constexpr std::int64_t kOwn = 8;  // its loop and its listener
  if (base::can_open_files(2 * group_size + kOwn)) return;
  base::fail(
      base::ErrorKind::comm,
      "gloo needs {} more file descriptors to connect {} ranks: {}; raise the limit (ulimit -n)",
      2 * group_size + kOwn, group_size, std::strerror(EMFILE));
}

/// The first line of gloo's error message.
std::string first_line(const std::exception& error) {
  const std::string_view text = error.what();
  return base::printable(text.substr(0, text.find('\n')));
}

/// The address at which this rank listens.
std::string listen_address(const WorldOptions& options, const Rendezvous& rendezvous) {
  const std::string& names = options.interface;
  const std::string address = names.empty()
                                  ? rendezvous.own_address
                                  : net::find_interface(names, options.interface_source).address;
  const auto fail = [&](const std::string& message) {
    fail_together(options.rank, base::Error(base::ErrorKind::usage, message));
  };
  if (!names.empty() && net::is_loopback(address) &&
      std::ranges::any_of(rendezvous.addresses, &net::is_remote)) {
    fail(
        fmt::format("{}: found {}, which has the loopback address {}, but some ranks are on other "
                    "hosts; name an interface that all hosts can reach, or none",
                    options.interface_source, base::printable(names, 80), address));
  }
  if (address.find('%') != std::string::npos) {
    fail(
        fmt::format("gloo cannot use the link-local address {}; give another MASTER_ADDR, or an "
                    "--interface that has another address",
                    address));
  }
  return address;
}

std::shared_ptr<::gloo::transport::Device> make_device(const std::string& address) {
  require_files(2);
  try {
    return ProcessGroupGloo::createDeviceForHostname(address);
  } catch (const std::exception& caught) {
    base::fail(base::ErrorKind::comm, "gloo cannot listen at {}: {}", address, first_line(caught));
  }
}

c10::intrusive_ptr<ProcessGroupGloo::Options> options_for(
    const std::shared_ptr<::gloo::transport::Device>& device, const base::Deadline& deadline) {
  auto options = ProcessGroupGloo::Options::create(deadline.remaining());
  options->devices = {device};
  options->threads = 1;  // for gloo's own all-reduce, one at a time
  return options;
}

[[noreturn]] void fail_for_unexpected_call(const char* call) {
  throw base::Error(
      base::ErrorKind::internal,
      fmt::format(
          "gloo made an unexpected store call: {}; use the version of LibTorch that README names",
          call));
}

/// The group member to which one of gloo's store keys belongs.
std::size_t member_of(const std::string& key, std::size_t num_members) {
  const auto member = base::number_in<std::size_t>(key.substr(key.rfind('/') + 1));
  if (!member || *member >= num_members)
    fail_for_unexpected_call(fmt::format("key '{}'", key).c_str());
  return *member;
}

/// Adapts previously exchanged records to the store interface that gloo expects: gloo sets its own
/// record under a key that ends with its group rank, then gets each member's. No call blocks.
/// Throws for calls that gloo does not make.
class GlooStore final : public c10d::Store {
 public:
  /// members: in group order, including this rank's own; empty: a single-rank group, whose record
  /// is to be learnt.
  explicit GlooStore(std::vector<GlooRecord> members = {}) : members_(std::move(members)) {}

  /// The record that gloo has set for a single-rank group.
  [[nodiscard]] GlooRecord own_record() const { return parse_record(own_, 1); }

  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    own_.assign(value.begin(), value.end());
    if (members_.empty()) return;
    const GlooRecord& expected = members_[member_of(key, members_.size())];
    if (parse_record(own_, members_.size()) == expected) return;
    base::fail(
        base::ErrorKind::internal,
        "LibTorch's gloo numbers connections in an unknown order; use the version of LibTorch "
        "that README names");
  }
  std::vector<std::uint8_t> get(const std::string& key) override {
    if (members_.empty()) return {own_.begin(), own_.end()};
    const std::string bytes =
        record_bytes(members_[member_of(key, members_.size())], members_.size());
    return {bytes.begin(), bytes.end()};
  }
  void wait(const std::vector<std::string>&) override {}
  void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) override {}
  c10::intrusive_ptr<c10d::Store> clone() override { fail_for_unexpected_call("clone"); }
  std::int64_t add(const std::string&, std::int64_t) override { fail_for_unexpected_call("add"); }
  bool deleteKey(const std::string&) override { fail_for_unexpected_call("deleteKey"); }
  bool check(const std::vector<std::string>&) override { fail_for_unexpected_call("check"); }
  std::int64_t getNumKeys() override { fail_for_unexpected_call("getNumKeys"); }

 private:
  std::vector<GlooRecord> members_;
  std::string own_;  // as gloo wrote it
};

/// Learns where gloo listens by creating a single-rank group; gloo has no other call for it.
GlooRecord own_record_of(const std::shared_ptr<::gloo::transport::Device>& device,
                         const base::Deadline& deadline) {
  const auto store = c10::make_intrusive<GlooStore>();
  (void)c10::make_intrusive<ProcessGroupGloo>(store, 0, 1, options_for(device, deadline));
  return store->own_record();
}

/// The proof that member `from` of a group sends to member `to`; valid for this pair and group
/// only. key: the random secret of this launch, known to its ranks only. group: a unique name.
std::string pair_proof(const std::string& key, const std::string& group, std::int64_t from,
                       std::int64_t to) {
  return net::hmac_sha256(key, net::MessageWriter()
                                   .text("gloo")
                                   .text(group)
                                   .number(static_cast<std::uint64_t>(from))
                                   .number(static_cast<std::uint64_t>(to))
                                   .bytes());
}

/// Exchanges proofs with every peer, and returns the first peer whose proof is wrong. gloo itself
/// accepts the first process that connects and sends a pair's number.
///
/// Collective: every member.
/// Throws:     TransportFailure, also for a silent peer.
std::optional<std::int64_t> find_impostor(GlooMessenger& messenger, const std::string& key,
                                          const std::string& group,
                                          const base::Deadline& deadline) {
  constexpr std::int64_t kProofBytes = 32;
  const auto bytes = [](std::string& text) { return reinterpret_cast<std::byte*>(text.data()); };
  const auto size = static_cast<std::size_t>(messenger.size());
  std::vector<std::string> own(size);
  std::vector<std::string> theirs(size, std::string(kProofBytes, '\0'));
  std::vector<Message> sent;
  std::vector<Message> received(size);
  for (std::int64_t peer = 0; peer < messenger.size(); ++peer) {
    const auto index = static_cast<std::size_t>(peer);
    if (peer == messenger.rank()) continue;
    received[index] = messenger.recv(bytes(theirs[index]), kProofBytes, peer, Tag::proof);
    own[index] = pair_proof(key, group, messenger.rank(), peer);
    sent.push_back(messenger.send(bytes(own[index]), kProofBytes, peer, Tag::proof));
  }
  for (std::int64_t peer = 0; peer < messenger.size(); ++peer) {
    const auto index = static_cast<std::size_t>(peer);
    if (peer == messenger.rank()) continue;
    messenger.wait(received[index], deadline);
    if (!net::is_same_proof(theirs[index], pair_proof(key, group, peer, messenger.rank())))
      return peer;
  }
  messenger.wait(sent, deadline);
  return std::nullopt;
}

}  // namespace

GlooGroups::GlooGroups(const WorldOptions& options, std::shared_ptr<Rendezvous> rendezvous)
    : options_(options),
      rendezvous_(std::move(rendezvous)),
      address_(listen_address(options, *rendezvous_)),
      device_(make_device(address_)) {
  const base::Deadline deadline(options_.group.timeout);
  const GlooRecord own = own_record_of(device_, deadline);
  next_number_ = own.first_number + 1;
  exchange_endpoints(own.endpoint, deadline);
  key_ = rendezvous_->token + store_all_gather(*rendezvous_->store, "gloo's key", options_.size,
                                               options_.rank == 0 ? net::new_challenge() : "",
                                               deadline)
                                  .front();
}

void GlooGroups::exchange_endpoints(const std::string& own, const base::Deadline& deadline) {
  endpoints_ =
      store_all_gather(*rendezvous_->store, "gloo's addresses", options_.size, own, deadline);
  const auto wrong = std::ranges::find_if_not(endpoints_, &is_endpoint);
  if (wrong != endpoints_.end()) {
    base::fail(base::ErrorKind::comm, "rank {} sent an invalid gloo address of {} bytes; {}",
               wrong - endpoints_.begin(), wrong->size(), kSameBuild);
  }
  const auto other = std::ranges::find_if(
      endpoints_, [&](const std::string& each) { return each.size() != endpoints_[0].size(); });
  if (other == endpoints_.end()) return;
  fail_together(options_.rank,
                base::Error(base::ErrorKind::usage,
                            fmt::format("ranks 0 and {} listen at IPv4 and IPv6 addresses, which "
                                        "gloo cannot connect to each other; name a network "
                                        "interface that has both (--interface)",
                                        other - endpoints_.begin())));
}

std::unique_ptr<Transport> GlooGroups::connect(const std::string& key,
                                               const GroupIdentity& identity) {
  const base::Deadline deadline(options_.group.timeout);
  require_files(std::ssize(identity.world_ranks));
  std::unique_ptr<GlooMessenger> messenger = connect_messenger(key, identity, deadline);
  check_peers(*messenger, key, identity, deadline);
  return make_gloo_transport(std::move(messenger), options_.group.reduction);
}

std::vector<GlooRecord> GlooGroups::exchange_records(const std::string& key,
                                                     const GroupIdentity& identity,
                                                     const base::Deadline& deadline) {
  const auto numbers = store_all_gather(*rendezvous_->store, key, identity.world_ranks,
                                        std::to_string(next_number_), deadline);
  next_number_ += std::ssize(numbers);
  std::vector<GlooRecord> records;
  for (std::size_t member = 0; member < numbers.size(); ++member) {
    const auto rank = static_cast<std::size_t>(identity.world_ranks[member]);
    const auto number = base::number_in<std::int64_t>(numbers[member]);
    if (!number) {
      base::fail(base::ErrorKind::comm,
                 "rank {} sent the invalid connection number \"{}\" for {}; {}", rank,
                 base::printable(numbers[member], 80), key, kSameBuild);
    }
    records.push_back({.endpoint = endpoints_[rank], .first_number = *number});
  }
  return records;
}

std::unique_ptr<GlooMessenger> GlooGroups::connect_messenger(const std::string& key,
                                                             const GroupIdentity& identity,
                                                             const base::Deadline& deadline) {
  std::vector<GlooRecord> records = exchange_records(key, identity, deadline);
  const auto size = static_cast<int>(records.size());
  try {
    return std::make_unique<GlooMessenger>(c10::make_intrusive<ProcessGroupGloo>(
        c10::make_intrusive<GlooStore>(std::move(records)), static_cast<int>(identity.rank), size,
        options_for(device_, deadline)));
  } catch (const base::Error&) {
    throw;
  } catch (const std::system_error&) {  // no thread
    throw;
  } catch (const std::exception& caught) {
    rethrow_job_failure();
    base::fail(base::ErrorKind::comm, "rank {} cannot connect to the other ranks of {} from {}: {}",
               options_.rank, key, address_, first_line(caught));
  }
}

// Throws the job's failure if another rank has reported one to the store.
void GlooGroups::rethrow_job_failure() {
  rendezvous_->store->wait_for_failure(base::Deadline(std::chrono::milliseconds(1)));
}

// Fails the job unless all connections lead to its ranks.
void GlooGroups::check_peers(GlooMessenger& messenger, const std::string& group,
                             const GroupIdentity& identity, const base::Deadline& deadline) {
  const auto fail_for = [&](base::ErrorKind kind, std::int64_t peer, std::string_view what) {
    rendezvous_->store->fail_job(
        kind,
        fmt::format("the peer connected as rank {} to rank {} at {} {}; if it is not a rank, use a "
                    "network that other programs cannot reach, or --backend shm",
                    identity.world_ranks[static_cast<std::size_t>(peer)], options_.rank, address_,
                    what));
  };
  try {
    const auto impostor = find_impostor(messenger, key_, group, deadline);
    if (impostor) fail_for(base::ErrorKind::comm, *impostor, "failed authentication");
    messenger.trust_peers();
  } catch (const TransportFailure& failure) {
    const std::int64_t peer = failure.peers().empty() ? 0 : failure.peers().front();
    if (failure.cause() == TransportFailure::Cause::no_answer) {
      fail_for(base::ErrorKind::timeout, peer,
               fmt::format("did not authenticate within {} (--comm-timeout)",
                           base::readable_time(base::Seconds(deadline.limit()).count())));
    }
    rethrow_job_failure();
    fail_for(base::ErrorKind::comm, peer, "closed the connection before it authenticated");
  }
}

}  // namespace dtrain::comm
