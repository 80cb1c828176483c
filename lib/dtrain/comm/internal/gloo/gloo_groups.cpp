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

/// Where this rank listens.
std::string listen_address(const WorldOptions& options, const Rendezvous& rendezvous) {
  const std::string& names = options.interface;
  const std::string address = names.empty()
                                  ? rendezvous.own_address
                                  : net::find_interface(names, options.interface_source).address;
  const auto fail = [&](const std::string& message) {
    fail_together(options.rank, base::Error(base::ErrorKind::usage, message));
  };
  if (!names.empty() && net::is_loopback(address) &&
      std::ranges::any_of(rendezvous.addresses, &net::is_of_other_machine)) {
    fail(
        fmt::format("{}: found {}, but ranks on several hosts do not reach each other at the "
                    "loopback address {}; name another interface, or none",
                    options.interface_source, base::printable(names, 80), address));
  }
  if (address.find('%') != std::string::npos) {
    fail(
        fmt::format("gloo cannot connect ranks at the link-local address {}; give another "
                    "MASTER_ADDR, or an --interface that has another address",
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
  options->threads = 1;  // for gloo's own all-reduce, of which one runs at a time
  return options;
}

[[noreturn]] void fail_as_unused(const char* call) {
  throw base::Error(base::ErrorKind::internal,
                    fmt::format("gloo calls the store's {}, which it did not need so far", call));
}

/// The member to whom a key of gloo's belongs.
std::size_t member_of(const std::string& key, std::size_t num_members) {
  const auto member = base::number_in<std::size_t>(key.substr(key.rfind('/') + 1));
  if (!member || *member >= num_members) fail_as_unused(fmt::format("key '{}'", key).c_str());
  return *member;
}

/// The store that gloo expects, with the records of a group's members, which they have exchanged
/// before: gloo sets its own under a key that ends with its rank in the group, then asks for each
/// member's. No call blocks. Refuses calls that gloo does not make.
class GlooStore final : public c10d::Store {
 public:
  /// members: in group order, this rank's own among them; empty: this rank is alone, and is to
  /// learn its record.
  explicit GlooStore(std::vector<GlooRecord> members = {}) : members_(std::move(members)) {}

  /// The record that gloo has set, of a rank that is alone.
  [[nodiscard]] GlooRecord own_record() const { return parse_record(own_, 1); }

  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    own_.assign(value.begin(), value.end());
    if (members_.empty()) return;
    const GlooRecord& expected = members_[member_of(key, members_.size())];
    if (parse_record(own_, members_.size()) == expected) return;
    base::fail(base::ErrorKind::internal,
               "LibTorch's gloo numbers connections in an order that dtrain does not know; use the "
               "version of LibTorch that README names");
  }
  std::vector<std::uint8_t> get(const std::string& key) override {
    if (members_.empty()) return {own_.begin(), own_.end()};
    const std::string bytes =
        record_bytes(members_[member_of(key, members_.size())], members_.size());
    return {bytes.begin(), bytes.end()};
  }
  void wait(const std::vector<std::string>&) override {}
  void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) override {}
  c10::intrusive_ptr<c10d::Store> clone() override { fail_as_unused("clone"); }
  std::int64_t add(const std::string&, std::int64_t) override { fail_as_unused("add"); }
  bool deleteKey(const std::string&) override { fail_as_unused("deleteKey"); }
  bool check(const std::vector<std::string>&) override { fail_as_unused("check"); }
  std::int64_t getNumKeys() override { fail_as_unused("getNumKeys"); }

 private:
  std::vector<GlooRecord> members_;
  std::string own_;  // as gloo wrote it
};

/// gloo tells where it listens only to make a group, so this makes a group of one.
GlooRecord own_record_of(const std::shared_ptr<::gloo::transport::Device>& device,
                         const base::Deadline& deadline) {
  const auto store = c10::make_intrusive<GlooStore>();
  (void)c10::make_intrusive<ProcessGroupGloo>(store, 0, 1, options_for(device, deadline));
  return store->own_record();
}

/// The proof that member `from` of a group shows to member `to`; useless elsewhere or in another
/// group. key: random, of this start of the job; only its ranks know it. group: no other has it.
std::string pair_proof(const std::string& key, const std::string& group, std::int64_t from,
                       std::int64_t to) {
  return net::hmac_sha256(key, net::MessageWriter()
                                   .text("gloo")
                                   .text(group)
                                   .number(static_cast<std::uint64_t>(from))
                                   .number(static_cast<std::uint64_t>(to))
                                   .bytes());
}

/// Sends every peer a proof, checks theirs, and returns the first peer whose proof is wrong. gloo
/// takes whoever connects to its port first and says a small number for the peer of that number.
///
/// Collective: every member.
/// Throws:     TransportFailure, also for one who says nothing.
std::optional<std::int64_t> find_impostor(Link& link, const std::string& key,
                                          const std::string& group,
                                          const base::Deadline& deadline) {
  constexpr std::int64_t kProofBytes = 32;
  const auto bytes = [](std::string& text) { return reinterpret_cast<std::byte*>(text.data()); };
  const auto size = static_cast<std::size_t>(link.size());
  std::vector<std::string> own(size);
  std::vector<std::string> theirs(size, std::string(kProofBytes, '\0'));
  std::vector<Message> sent;
  std::vector<Message> received(size);
  for (std::int64_t peer = 0; peer < link.size(); ++peer) {
    const auto index = static_cast<std::size_t>(peer);
    if (peer == link.rank()) continue;
    received[index] = link.recv(bytes(theirs[index]), kProofBytes, peer, Tag::proof);
    own[index] = pair_proof(key, group, link.rank(), peer);
    sent.push_back(link.send(bytes(own[index]), kProofBytes, peer, Tag::proof));
  }
  for (std::int64_t peer = 0; peer < link.size(); ++peer) {
    const auto index = static_cast<std::size_t>(peer);
    if (peer == link.rank()) continue;
    link.wait(received[index], deadline);
    if (!net::is_same_proof(theirs[index], pair_proof(key, group, peer, link.rank()))) return peer;
  }
  link.wait(sent, deadline);
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
  key_ =
      rendezvous_->token + exchange_notes(*rendezvous_->store, "gloo's key", options_.size,
                                          options_.rank == 0 ? net::new_challenge() : "", deadline)
                               .front();
}

void GlooGroups::exchange_endpoints(const std::string& own, const base::Deadline& deadline) {
  endpoints_ =
      exchange_notes(*rendezvous_->store, "gloo's addresses", options_.size, own, deadline);
  const auto wrong = std::ranges::find_if_not(endpoints_, &is_endpoint);
  if (wrong != endpoints_.end()) {
    base::fail(base::ErrorKind::comm, "rank {} sent {} bytes as the address of its gloo; {}",
               wrong - endpoints_.begin(), wrong->size(), kSameBuild);
  }
  const auto other = std::ranges::find_if(
      endpoints_, [&](const std::string& each) { return each.size() != endpoints_[0].size(); });
  if (other == endpoints_.end()) return;
  fail_together(options_.rank,
                base::Error(base::ErrorKind::usage,
                            fmt::format("ranks 0 and {} listen at addresses of IPv4 and of IPv6, "
                                        "which gloo cannot connect; name a network interface that "
                                        "has both (--interface)",
                                        other - endpoints_.begin())));
}

std::unique_ptr<Transport> GlooGroups::connect(const std::string& key,
                                               const GroupIdentity& identity) {
  const base::Deadline deadline(options_.group.timeout);
  require_files(std::ssize(identity.world_ranks));
  std::unique_ptr<Link> link = connect_link(key, identity, deadline);
  check_peers(*link, key, identity, deadline);
  return make_gloo_transport(std::move(link), options_.group.reduction);
}

std::vector<GlooRecord> GlooGroups::exchange_records(const std::string& key,
                                                     const GroupIdentity& identity,
                                                     const base::Deadline& deadline) {
  const auto numbers = exchange_notes(*rendezvous_->store, key, identity.world_ranks,
                                      std::to_string(next_number_), deadline);
  next_number_ += std::ssize(numbers);
  std::vector<GlooRecord> records;
  for (std::size_t member = 0; member < numbers.size(); ++member) {
    const auto rank = static_cast<std::size_t>(identity.world_ranks[member]);
    const auto number = base::number_in<std::int64_t>(numbers[member]);
    if (!number) {
      base::fail(base::ErrorKind::comm,
                 "rank {} sent \"{}\" as the number of its first connection in {}; {}", rank,
                 base::printable(numbers[member], 80), key, kSameBuild);
    }
    records.push_back({.endpoint = endpoints_[rank], .first_number = *number});
  }
  return records;
}

std::unique_ptr<Link> GlooGroups::connect_link(const std::string& key,
                                               const GroupIdentity& identity,
                                               const base::Deadline& deadline) {
  std::vector<GlooRecord> records = exchange_records(key, identity, deadline);
  const auto size = static_cast<int>(records.size());
  try {
    return std::make_unique<Link>(c10::make_intrusive<ProcessGroupGloo>(
        c10::make_intrusive<GlooStore>(std::move(records)), static_cast<int>(identity.rank), size,
        options_for(device_, deadline)));
  } catch (const base::Error&) {
    throw;
  } catch (const std::system_error&) {  // no thread
    throw;
  } catch (const std::exception& caught) {
    hear_refusal();
    base::fail(base::ErrorKind::comm, "rank {} cannot connect to the others of {} from {}: {}",
               options_.rank, key, address_, first_line(caught));
  }
}

// Fails with the reason that another rank gave the store, if it refused the job.
void GlooGroups::hear_refusal() {
  rendezvous_->store->wait_for_refusal(base::Deadline(std::chrono::milliseconds(1)));
}

// Fails unless all connections lead to ranks of this job.
void GlooGroups::check_peers(Link& link, const std::string& group, const GroupIdentity& identity,
                             const base::Deadline& deadline) {
  const auto fail_for = [&](base::ErrorKind kind, std::int64_t peer, std::string_view what) {
    rendezvous_->store->refuse(
        kind,
        fmt::format("the peer connected as rank {} to rank {} at {} {}; if it is no rank, use "
                    "a network that strangers cannot reach, or --backend shm",
                    identity.world_ranks[static_cast<std::size_t>(peer)], options_.rank, address_,
                    what));
  };
  try {
    const auto impostor = find_impostor(link, key_, group, deadline);
    if (impostor) fail_for(base::ErrorKind::comm, *impostor, "failed authentication");
    link.trust_peers();
  } catch (const TransportFailure& failure) {
    const std::int64_t peer = failure.peers().empty() ? 0 : failure.peers().front();
    if (failure.cause() == TransportFailure::Cause::no_answer) {
      fail_for(base::ErrorKind::timeout, peer,
               fmt::format("did not authenticate within {} (--comm-timeout)",
                           base::readable_time(base::Seconds(deadline.limit()).count())));
    }
    hear_refusal();
    fail_for(base::ErrorKind::comm, peer, "closed the connection before it authenticated");
  }
}

}  // namespace dtrain::comm
