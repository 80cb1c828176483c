#include "dtrain/comm/internal/rendezvous/rendezvous.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>

#include "dtrain/base/text/text.h"
#include "dtrain/net/addresses.h"
#include "dtrain/net/proof.h"
#include "dtrain/net/socket.h"

namespace dtrain::comm {

namespace {

using base::ErrorKind;
using base::fail;
using std::chrono::milliseconds;

// How long rank 0 keeps serving a failure, so that the others can read it.
constexpr milliseconds kFailureGrace(500);

constexpr const char* kLoopback = "127.0.0.1";

/// Takes dtrun's rendezvous socket, and sets close-on-exec.
base::Descriptor take_rendezvous_socket(int rendezvous_fd) {
  const bool is_open = ::fcntl(rendezvous_fd, F_SETFD, FD_CLOEXEC) == 0;
  const auto user = is_open ? net::user_of_unix_peer(rendezvous_fd) : std::nullopt;
  if (!user) {
    fail(ErrorKind::usage,
         "DTRUN_STORE_FD: descriptor {} is not dtrun's socket ({}); unset the variable",
         rendezvous_fd, std::strerror(errno));
  }
  if (*user != ::geteuid()) {
    fail(
        ErrorKind::usage,
        "DTRUN_STORE_FD: descriptor {} comes from user {}, but this process runs as user {}; unset "
        "the variable",
        rendezvous_fd, *user, ::geteuid());
  }
  return base::Descriptor(rendezvous_fd);
}

/// Takes the socket at which dtrun listens for rank 0, and sets close-on-exec.
base::Descriptor take_listener(const base::StoreSockets& store) {
  const int listener_fd = store.listener_fd;
  int listens = 0;
  socklen_t size = sizeof listens;
  const bool is_open = ::fcntl(listener_fd, F_SETFD, FD_CLOEXEC) == 0 &&
                       ::getsockopt(listener_fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0;
  base::Descriptor listener(is_open && listens != 0 ? listener_fd : -1);
  if (listener.get() >= 0 && net::port_of(listener) == store.port) return listener;
  fail(ErrorKind::usage,
       "DTRUN_STORE_LISTENER_FD: found {}, but it must be the socket that listens at port {} "
       "(DTRUN_STORE_PORT); keep that socket open in the program that starts dtrain, or unset "
       "both variables on all ranks",
       listener_fd < 0 ? "nothing" : fmt::format("descriptor {}", listener_fd), store.port);
}

std::unique_ptr<StoreClient> connect_through_dtrun(const base::Descriptor& rendezvous_socket,
                                                   const JoinRequest& self,
                                                   const base::Deadline& deadline) {
  auto [own, sent] = net::connected_pair();
  const int error =
      net::send_packet(rendezvous_socket, self.rank, std::array{sent.get()}, deadline);
  sent = base::Descriptor();
  try {
    if (error == 0) return std::make_unique<StoreClient>(std::move(own), self, deadline);
  } catch (const RetryableJoinError&) {
    // As below.
  }
  // Let rank 0, which may still be serving a failure, report its own error first.
  std::this_thread::sleep_for(2 * kFailureGrace);
  fail(error == EAGAIN ? ErrorKind::timeout : ErrorKind::comm,
       "rank 0 accepts no connection to its store ({}): it has probably exited; see its own error "
       "message",
       error == 0 ? "closed" : std::strerror(error));
}

std::unique_ptr<StoreClient> connect_over_tcp(const RendezvousOptions& options,
                                              const JoinRequest& self,
                                              const base::Deadline& deadline,
                                              std::string& own_address) {
  std::string reason = "no address";
  const auto start = base::Clock::now();
  for (milliseconds pause(5);; pause = std::min(pause * 2, milliseconds(200))) {
    base::Descriptor socket =
        net::connect_to(options.master_addr, options.master_port, deadline, reason);
    if (socket.get() >= 0) {
      own_address = net::own_address_of(socket);
      try {
        return std::make_unique<StoreClient>(std::move(socket), self, deadline);
      } catch (const RetryableJoinError& closed) {
        reason = closed.reason;
      }
    }
    const bool is_of_this_process = reason == std::strerror(EMFILE);
    if (deadline.passed() || is_of_this_process) break;
    if (self.waiting != nullptr) {
      self.waiting->report([&] {
        return fmt::format("rank 0, which serves the store {} ({})", self.where, reason);
      });
    }
    std::this_thread::sleep_for(std::min(pause, deadline.remaining()));
  }
  fail(ErrorKind::timeout, "no answer from the store {} within {} ({}): {}", self.where,
       base::readable_time(base::seconds_since(start)), reason,
       options.store.port > 0
           ? "node 0's dtrun listens there and the other dtruns have connected; check the network "
             "between the nodes"
           : "rank 0 serves it; check that rank 0 runs, and that MASTER_ADDR and MASTER_PORT are "
             "rank 0's");
}

/// Opens the sockets at which rank 0 listens. has_secret: the job's own, or made for munge.
std::vector<base::Descriptor> make_listeners(const RendezvousOptions& options, bool has_secret) {
  std::vector<base::Descriptor> one;
  if (options.store.port > 0) {
    one.push_back(take_listener(options.store));
    return one;
  }
  // "localhost" without a secret means one machine: no other could connect or authenticate.
  const bool is_local = options.is_one_host || (options.master_addr == "localhost" && !has_secret);
  if (!is_local) return net::listen_for_hosts(options.master_addr, options.master_port);
  one.emplace_back(net::listen_at(options.master_addr, options.master_port));
  return one;
}

std::unique_ptr<StoreServer> serve(const RendezvousOptions& options,
                                   base::Descriptor rendezvous_socket,
                                   const base::WaitReporter& waiting, Rendezvous& result) {
  // Ranks of several hosts without a secret may authenticate by munge.
  const bool may_seal =
      options.store.rendezvous_fd < 0 && !options.is_one_host && options.token.empty();
  if (may_seal) result.token = net::new_munge_secret();
  StoreServer::Options server{.size = options.size,
                              .rendezvous_socket = {},
                              .listeners = {},
                              .token = result.token,
                              .sends_credential = may_seal && !result.token.empty(),
                              .waiting = waiting};
  if (options.store.rendezvous_fd >= 0) {
    server.rendezvous_socket = std::move(rendezvous_socket);
  } else {
    server.listeners = make_listeners(options, !result.token.empty());
    for (const auto& each : server.listeners) ::fcntl(each.get(), F_SETFL, O_NONBLOCK);
    if (options.publish) options.publish(net::port_of(server.listeners.front()));
    // With several listeners, the address is known once the other ranks have connected.
    result.own_address =
        server.listeners.size() == 1 ? net::own_address_of(server.listeners.front()) : "";
    // dtrun may listen at all addresses; the other dtruns have connected to this one.
    if (options.store.port > 0) result.own_address = options.master_addr;
  }
  return std::make_unique<StoreServer>(std::move(server));
}

}  // namespace

std::shared_ptr<Rendezvous> join_rendezvous(const RendezvousOptions& options,
                                            const base::Deadline& deadline) {
  const auto result = std::make_shared<Rendezvous>();
  const bool is_under_dtrun = options.store.rendezvous_fd >= 0;
  base::WaitReporter waiting(deadline.limit(), options.waiting_advice);
  JoinRequest self{.rank = options.rank,
                   .size = options.size,
                   .is_inherited = options.rank == 0 || is_under_dtrun,
                   .waits_for_rank_0 = is_under_dtrun || options.store.port > 0,
                   .token = options.token,
                   .where = "of dtrun",
                   .waiting = options.reports_waiting ? &waiting : nullptr};
  if (!is_under_dtrun)
    self.where = fmt::format("at {}:{}", options.master_addr, options.master_port);
  base::Descriptor rendezvous_socket =
      is_under_dtrun ? take_rendezvous_socket(options.store.rendezvous_fd) : base::Descriptor();
  result->own_address = kLoopback;
  result->token = options.token;
  if (options.rank == 0) {
    result->server = serve(options, std::move(rendezvous_socket), waiting, *result);
    result->store =
        std::make_unique<StoreClient>(result->server->take_own_connection(), self, deadline);
  } else if (is_under_dtrun) {
    result->store = connect_through_dtrun(rendezvous_socket, self, deadline);
  } else {
    result->store = connect_over_tcp(options, self, deadline, result->own_address);
    result->token = result->store->secret();
  }
  try {
    std::string& own = result->own_address;
    auto& addresses = result->addresses;
    addresses =
        store_all_gather(*result->store, kJobKey, options.size, net::address_bytes(own), deadline);
    for (std::string& each : addresses) each = net::address_of_bytes(each);
    if (!is_under_dtrun) own = net::reachable_address(own, addresses);
    if (own.empty()) own = kLoopback;
  } catch (...) {
    if (options.rank == 0) std::this_thread::sleep_for(kFailureGrace);
    throw;
  }
  return result;
}

std::vector<std::string> store_all_gather(StoreClient& store, const std::string& key,
                                          const std::vector<std::int64_t>& world_ranks,
                                          const std::string& own_value,
                                          const base::Deadline& deadline) {
  GatherResult result = store.all_gather(key, world_ranks, own_value, deadline);
  const auto& missing = result.missing;
  if (!missing.empty()) {
    store.fail_job(ErrorKind::timeout,
                   fmt::format("{} did not join {} of {} ranks within {} (--comm-timeout)",
                               base::ranks_text(missing), key, world_ranks.size(),
                               base::readable_time(base::Seconds(deadline.limit()).count())));
  }
  return std::move(result.values);
}

std::vector<std::string> store_all_gather(StoreClient& store, const std::string& key,
                                          std::int64_t size, const std::string& own_value,
                                          const base::Deadline& deadline) {
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), std::int64_t{0});
  return store_all_gather(store, key, ranks, own_value, deadline);
}

void fail_together(std::int64_t own_rank, const base::Error& error) {
  if (own_rank == 0) std::this_thread::sleep_for(kFailureGrace);
  throw error;
}

}  // namespace dtrain::comm
