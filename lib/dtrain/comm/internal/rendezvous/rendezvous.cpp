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

// The time for which rank 0 serves a refusal, so that the others can read it.
constexpr milliseconds kRefusalGrace(500);

constexpr const char* kLoopback = "127.0.0.1";

/// dtrun's rendezvous socket, which no program that is started from here may hold open.
base::Descriptor take_rendezvous_socket(int rendezvous_fd) {
  const bool is_open = ::fcntl(rendezvous_fd, F_SETFD, FD_CLOEXEC) == 0;
  const auto user = is_open ? net::user_of_unix_peer(rendezvous_fd) : std::nullopt;
  if (!user) {
    fail(ErrorKind::usage,
         "DTRUN_STORE_FD: descriptor {} is no socket of dtrun ({}); unset the variable",
         rendezvous_fd, std::strerror(errno));
  }
  if (*user != ::geteuid()) {
    fail(ErrorKind::usage, "DTRUN_STORE_FD: descriptor {} comes from user {}, this is user {}",
         rendezvous_fd, *user, ::geteuid());
  }
  return base::Descriptor(rendezvous_fd);
}

/// The socket at which dtrun listens for rank 0, to be handed on to no program either.
base::Descriptor take_listener(const base::StoreSockets& store) {
  const int listener_fd = store.listener_fd;
  int listens = 0;
  socklen_t size = sizeof listens;
  const bool is_open = ::fcntl(listener_fd, F_SETFD, FD_CLOEXEC) == 0 &&
                       ::getsockopt(listener_fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0;
  base::Descriptor listener(is_open && listens != 0 ? listener_fd : -1);
  if (listener.get() >= 0 && net::port_of(listener) == store.port) return listener;
  fail(ErrorKind::usage,
       "DTRUN_STORE_LISTENER_FD: found {}, not the socket that listens at port {} "
       "(DTRUN_STORE_PORT); let what starts dtrain leave that open, or unset both variables on all "
       "ranks",
       listener_fd < 0 ? "nothing" : fmt::format("descriptor {}", listener_fd), store.port);
}

std::unique_ptr<StoreClient> enter_by_door(const base::Descriptor& door, const Newcomer& self,
                                           const base::Deadline& deadline) {
  auto [own, handed] = net::connected_pair();
  const int error = net::send_packet(door, self.rank, std::array{handed.get()}, deadline);
  handed = base::Descriptor();
  try {
    if (error == 0) return std::make_unique<StoreClient>(std::move(own), self, deadline);
  } catch (const ClosedEarly&) {
    // As below.
  }
  // Rank 0, which may be serving its refusal still, comes first with its own words.
  std::this_thread::sleep_for(2 * kRefusalGrace);
  fail(error == EAGAIN ? ErrorKind::timeout : ErrorKind::comm,
       "rank 0 takes no connection to its store ({}): it has probably ended; what it printed says "
       "why",
       error == 0 ? "closed" : std::strerror(error));
}

std::unique_ptr<StoreClient> enter_by_network(const MeetingPlace& place, const Newcomer& self,
                                              const base::Deadline& deadline,
                                              std::string& own_address) {
  std::string reason = "no address";
  const auto start = base::Clock::now();
  for (milliseconds pause(5);; pause = std::min(pause * 2, milliseconds(200))) {
    base::Descriptor socket =
        net::connect_to(place.master_addr, place.master_port, deadline, reason);
    if (socket.get() >= 0) {
      own_address = net::own_address_of(socket);
      try {
        return std::make_unique<StoreClient>(std::move(socket), self, deadline);
      } catch (const ClosedEarly& closed) {
        reason = closed.reason;
      }
    }
    const bool is_of_this_process = reason == std::strerror(EMFILE);
    if (deadline.passed() || is_of_this_process) break;
    if (self.waiting != nullptr) {
      self.waiting->show([&] {
        return fmt::format("rank 0, which serves the store {} ({})", self.where, reason);
      });
    }
    std::this_thread::sleep_for(std::min(pause, deadline.remaining()));
  }
  fail(ErrorKind::timeout, "no answer from the store {} within {} ({}): {}", self.where,
       base::readable_time(base::seconds_since(start)), reason,
       place.store.port > 0
           ? "node 0's dtrun listens there, where the dtruns have met; check the network between "
             "the "
             "nodes"
           : "rank 0 serves it; check that rank 0 runs and that MASTER_ADDR and MASTER_PORT are "
             "its");
}

/// Where rank 0 listens. has_secret: of the place's own, or made for munge.
std::vector<base::Descriptor> listeners_at(const MeetingPlace& place, bool has_secret) {
  std::vector<base::Descriptor> one;
  if (place.store.port > 0) {
    one.push_back(take_listener(place.store));
    return one;
  }
  // Nobody comes from another machine to one who names the loopback, and has no secret to admit
  // others by.
  const bool is_local = place.is_one_host || (place.master_addr == "localhost" && !has_secret);
  if (!is_local) return net::listen_for_hosts(place.master_addr, place.master_port);
  one.emplace_back(net::listen_at(place.master_addr, place.master_port));
  return one;
}

std::unique_ptr<StoreServer> serve(const MeetingPlace& place, base::Descriptor door,
                                   const base::WaitingLines& waiting, Rendezvous& found) {
  // Ranks on other hosts that have no secret may know each other by munge.
  const bool may_seal = place.store.rendezvous_fd < 0 && !place.is_one_host && place.token.empty();
  if (may_seal) found.token = net::new_sealable_secret();
  StoreServer::Options options{.size = place.size,
                               .door = {},
                               .listeners = {},
                               .token = found.token,
                               .seals_token = may_seal && !found.token.empty(),
                               .waiting = waiting};
  if (place.store.rendezvous_fd >= 0) {
    options.door = std::move(door);
  } else {
    options.listeners = listeners_at(place, !found.token.empty());
    for (const auto& each : options.listeners) ::fcntl(each.get(), F_SETFL, O_NONBLOCK);
    if (place.publish) place.publish(net::port_of(options.listeners.front()));
    // Which of several addresses the others reach shows when they have come.
    found.own_address =
        options.listeners.size() == 1 ? net::own_address_of(options.listeners.front()) : "";
    // dtrun's may listen at all addresses; this one the others have reached.
    if (place.store.port > 0) found.own_address = place.master_addr;
  }
  return std::make_unique<StoreServer>(std::move(options));
}

}  // namespace

std::shared_ptr<Rendezvous> meet_all_ranks(const MeetingPlace& place,
                                           const base::Deadline& deadline) {
  const auto result = std::make_shared<Rendezvous>();
  const bool has_rendezvous_socket = place.store.rendezvous_fd >= 0;
  base::WaitingLines waiting(deadline.limit(), place.waiting_advice);
  Newcomer self{.rank = place.rank,
                .size = place.size,
                .is_handed_down = place.rank == 0 || has_rendezvous_socket,
                .waits_for_rank_0 = has_rendezvous_socket || place.store.port > 0,
                .token = place.token,
                .where = "of dtrun",
                .waiting = place.tells_of_waiting ? &waiting : nullptr};
  if (!has_rendezvous_socket)
    self.where = fmt::format("at {}:{}", place.master_addr, place.master_port);
  base::Descriptor door = has_rendezvous_socket ? take_rendezvous_socket(place.store.rendezvous_fd)
                                                : base::Descriptor();
  result->own_address = kLoopback;
  result->token = place.token;
  if (place.rank == 0) {
    result->server = serve(place, std::move(door), waiting, *result);
    result->store =
        std::make_unique<StoreClient>(result->server->take_own_connection(), self, deadline);
  } else if (has_rendezvous_socket) {
    result->store = enter_by_door(door, self, deadline);
  } else {
    result->store = enter_by_network(place, self, deadline, result->own_address);
    result->token = result->store->secret();
  }
  try {
    std::string& own = result->own_address;
    auto& addresses = result->addresses;
    addresses =
        exchange_notes(*result->store, kJobKey, place.size, net::address_bytes(own), deadline);
    for (std::string& each : addresses) each = net::address_of_bytes(each);
    if (!has_rendezvous_socket) own = net::reachable_address(own, addresses);
    if (own.empty()) own = kLoopback;
  } catch (...) {
    if (place.rank == 0) std::this_thread::sleep_for(kRefusalGrace);
    throw;
  }
  return result;
}

std::vector<std::string> exchange_notes(StoreClient& store, const std::string& key,
                                        const std::vector<std::int64_t>& world_ranks,
                                        const std::string& own_note,
                                        const base::Deadline& deadline) {
  Attendance attendance = store.meet(key, world_ranks, own_note, deadline);
  const auto& missing = attendance.missing;
  if (!missing.empty()) {
    store.refuse(ErrorKind::timeout,
                 fmt::format("{} did not come to {} of {} ranks within {} (--comm-timeout)",
                             base::ranks_text(missing), key, world_ranks.size(),
                             base::readable_time(base::Seconds(deadline.limit()).count())));
  }
  return std::move(attendance.notes);
}

std::vector<std::string> exchange_notes(StoreClient& store, const std::string& key,
                                        std::int64_t size, const std::string& own_note,
                                        const base::Deadline& deadline) {
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), std::int64_t{0});
  return exchange_notes(store, key, ranks, own_note, deadline);
}

void fail_together(std::int64_t own_rank, const base::Error& error) {
  if (own_rank == 0) std::this_thread::sleep_for(kRefusalGrace);
  throw error;
}

}  // namespace dtrain::comm
