#include "dtrain/comm/rendezvous/store_server.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "dtrain/base/printable.h"
#include "dtrain/comm/rendezvous/rank_runs.h"
#include "dtrain/comm/rendezvous/store_proof.h"
#include "dtrain/net/message.h"
#include "dtrain/net/munge.h"
#include "dtrain/net/packet.h"
#include "dtrain/net/proof.h"
#include "dtrain/net/socket.h"
#include "dtrain/net/tcp_owner.h"

namespace dtrain::comm {

namespace {

using base::Clock;
using base::ErrorKind;

// At least; a large job's ranks may all come at once.
constexpr std::int64_t kMostStrangers = 256;

}  // namespace

StoreServer::StoreServer(Options options)
    : options_(std::move(options)),
      store_(options_.size),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (wake_.get() < 0) base::fail(ErrorKind::comm, "no eventfd: {}", std::strerror(errno));
  auto [own, served] = net::connected_pair();
  own_ = std::move(own);
  greet(std::move(served), Trust::handed_down);
  thread_ = std::thread([this] { run(); });
}

StoreServer::~StoreServer() {
  stopping_ = true;
  finish();
  thread_.join();
}

void StoreServer::finish() noexcept {
  finishing_ = true;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
}

bool StoreServer::is_done() const {
  return stopping_ || (finishing_ && store_.everyone_came() && connections_.empty());
}

void StoreServer::run() {
  while (!is_done()) {
    try {
      serve_once();
    } catch (const std::exception& caught) {
      store_.refuse(ErrorKind::comm,
                    fmt::format("rank 0 cannot serve the store: {}", caught.what()));
    }
  }
}

void StoreServer::serve_once() {
  std::vector<pollfd> polled = sockets();
  ::poll(polled.data(), polled.size(), poll_timeout());
  std::uint64_t count = 0;
  if (polled[0].revents != 0) (void)!::read(wake_.get(), &count, sizeof count);
  const std::size_t doors = polled.size() - 1 - connections_.size();
  for (std::size_t index = 0; index < connections_.size(); ++index) {
    if (polled[1 + doors + index].revents != 0) read_from(connections_[index]);
  }
  for (std::size_t index = 0; index < doors; ++index) {
    if (polled[1 + index].revents != 0) take_in(index);
  }
  settle();
}

std::vector<pollfd> StoreServer::sockets() const {
  std::vector<pollfd> polled{{wake_.get(), POLLIN, 0}};
  if (options_.door.get() >= 0) polled.push_back({options_.door.get(), POLLIN, 0});
  for (const base::Descriptor& each : options_.listeners) {
    polled.push_back({each.get(), POLLIN, 0});
  }
  for (const Connection& connection : connections_) {
    const int events = connection.output.empty() ? POLLIN : POLLIN | POLLOUT;
    polled.push_back({connection.socket.get(), static_cast<short>(events), 0});
  }
  return polled;
}

int StoreServer::poll_timeout() const {
  auto next = Clock::now() + std::chrono::hours(1);
  if (options_.waiting && is_waiting()) next = options_.waiting->next();
  for (const Connection& connection : connections_) {
    if (connection.rank < 0 || !connection.wanted.empty()) {
      next = std::min(next, connection.patience);
    }
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
  return static_cast<int>(std::max<std::int64_t>(0, left));
}

// --- who comes -----------------------------------------------------------------------------------

void StoreServer::take_in(std::size_t index) {
  try {
    options_.door.get() >= 0 ? take_from_door() : accept_at(index);
  } catch (const base::Error& error) {
    store_.refuse(error.kind(), fmt::format("rank 0 {}", error.what()));
  }
}

void StoreServer::take_from_door() {
  net::Packet packet = net::receive_packet(options_.door);
  if (packet.is_closed) {
    options_.door = base::Descriptor();  // dtrun and all other ranks have ended
  } else if (packet.descriptor.get() >= 0 &&
             net::user_of_unix_peer(packet.descriptor.get()) == ::geteuid()) {
    greet(std::move(packet.descriptor), Trust::handed_down);
  }
}

void StoreServer::accept_at(std::size_t index) {
  // The last rank to come closes them all.
  if (index >= options_.listeners.size()) return;
  // Without the listener if this throws: what cannot be taken would be there again at once.
  base::Descriptor listener = std::exchange(options_.listeners[index], base::Descriptor());
  base::Descriptor socket = net::accept_connection(listener, [this] { return drop_a_stranger(); });
  options_.listeners[index] = std::move(listener);
  if (socket.get() < 0) return;
  if (options_.seals_token) return greet(std::move(socket), Trust::munge);
  if (!options_.token.empty()) return greet(std::move(socket), Trust::token);
  // Without a secret the store greets a rank on another machine, so that it can say what is
  // missing, but ignores its answers.
  const auto user = net::user_of_tcp_peer(socket.get());
  if (!user || *user == ::geteuid()) greet(std::move(socket), Trust::same_user);
  if (!user) connections_.back().is_over = true;
}

// The one that has been here longest; false: there is none.
bool StoreServer::drop_a_stranger() {
  const auto first =
      std::find_if(connections_.begin(), connections_.end(),
                   [](const Connection& each) { return each.rank < 0 && !each.is_over; });
  if (first == connections_.end()) return false;
  first->is_over = true;
  first->socket = base::Descriptor();
  return true;
}

void StoreServer::greet(base::Descriptor socket, Trust trust) {
  const auto strangers =
      std::count_if(connections_.begin(), connections_.end(),
                    [](const Connection& each) { return each.rank < 0 && !each.is_over; });
  if (strangers >= std::max(kMostStrangers, 2 * options_.size)) (void)drop_a_stranger();
  Connection connection{.socket = std::move(socket), .trust = trust};
  connection.challenge = net::new_challenge();
  connection.patience =
      trust == Trust::handed_down ? Clock::time_point::max() : Clock::now() + options_.patience;
  net::MessageWriter offer;
  offer.number(static_cast<std::uint64_t>(trust)).text(connection.challenge);
  if (trust == Trust::munge) {
    std::string reason;
    // Whoever can open none says so.
    offer.text(net::seal_for_own_user(options_.token, reason).value_or(""));
  }
  connection.output = std::string(kStoreGreeting) + net::framed(offer.bytes());
  write_to(connection);
  connections_.push_back(std::move(connection));
}

// --- what they say -------------------------------------------------------------------------------

void StoreServer::read_from(Connection& connection) {
  int reason = 0;
  const net::Transfer transfer = net::receive_some(
      connection.socket, connection.input, base::Deadline(std::chrono::milliseconds(0)), reason);
  while (auto message = connection.input.take_message()) handle(connection, *message);
  if (connection.is_over) return;
  if (connection.input.is_broken()) connection.is_over = true;
  if (transfer == net::Transfer::closed) connection.is_over = true;
  if (!connection.is_over || connection.rank < 0) return;
  store_.refuse(
      ErrorKind::comm,
      fmt::format("rank {} ended while the ranks met; what it printed says why", connection.rank));
}

void StoreServer::handle(Connection& connection, const std::string& message) {
  if (connection.is_over) return;
  if (connection.rank < 0) return hear_hello(connection, message);
  net::MessageReader reader(message);
  const auto request = static_cast<StoreRequest>(reader.number());
  if (request == StoreRequest::leave) {
    connection.is_over = true;
  } else if (request == StoreRequest::refuse) {
    const ErrorKind kind = kind_of_refusal(reader.number());
    store_.refuse(kind, base::printable(reader.text()));
    answer_refusal(connection);
  } else if (request == StoreRequest::set) {
    const std::string key = reader.text();
    std::string value = reader.text();
    if (reader.is_whole()) store_.set(key, std::move(value));
    store_.refusal() ? answer_refusal(connection) : answer(connection, StoreReply::done);
  } else if (request == StoreRequest::get || request == StoreRequest::meet) {
    hear_wish(connection, request, reader);
  } else {
    store_.refuse(ErrorKind::comm,
                  fmt::format("rank {} sent the store what makes no sense", connection.rank));
  }
}

void StoreServer::hear_wish(Connection& connection, StoreRequest request,
                            net::MessageReader& reader) {
  connection.wanted = reader.text();
  connection.wants_members = request == StoreRequest::meet;
  connection.patience =
      Clock::now() + std::chrono::milliseconds(std::min<std::uint64_t>(reader.number(), 1U << 31));
  if (connection.wants_members) {
    std::string note = reader.text();
    const auto members = read_ranks(reader, options_.size);
    store_.join(connection.wanted, members.value_or(std::vector<std::int64_t>()), connection.rank,
                std::move(note));
  }
  answer_waiting(connection);
}

void StoreServer::hear_hello(Connection& connection, const std::string& message) {
  net::MessageReader reader(message);
  Exchange exchange{.store_challenge = connection.challenge,
                    .rank_challenge = reader.text(),
                    .rank = reader.number(),
                    .size = reader.number()};
  const std::string proof = reader.text();
  const bool needs_proof = connection.trust == Trust::token || connection.trust == Trust::munge;
  if (!reader.is_whole()) {
    connection.is_over = true;
    return;
  }
  if (needs_proof && !net::is_same_proof(proof, proof_of(options_.token, "rank", exchange))) {
    answer(connection, StoreReply::unknown);
    connection.is_over = true;
    return;
  }
  store_.admit(exchange.rank, exchange.size);
  if (store_.refusal()) return answer_refusal(connection, needs_proof ? &exchange : nullptr);
  connection.rank = static_cast<std::int64_t>(exchange.rank);
  connection.input.allow(kMostMessageBytes);
  answer(connection, StoreReply::done,
         needs_proof ? proof_of(options_.token, "store", exchange) : std::string());
  if (!store_.everyone_came()) return;
  options_.door = base::Descriptor();
  options_.listeners.clear();
  for (Connection& each : connections_) each.is_over = each.is_over || each.rank < 0;
}

// --- what they hear ------------------------------------------------------------------------------

void StoreServer::answer(Connection& connection, StoreReply reply, std::string_view text) {
  connection.output += net::framed(
      net::MessageWriter().number(static_cast<std::uint64_t>(reply)).text(text).bytes());
  write_to(connection);
}

void StoreServer::answer_refusal(Connection& connection, const Exchange* proved) {
  const Refusal& refusal = *store_.refusal();
  const auto kind = static_cast<std::uint64_t>(refusal.kind);
  const std::string proof =
      proved == nullptr ? ""
                        : proof_of(options_.token, refusing_store(kind, refusal.message), *proved);
  connection.output += net::framed(net::MessageWriter()
                                       .number(static_cast<std::uint64_t>(StoreReply::refused))
                                       .number(kind)
                                       .text(refusal.message)
                                       .text(proof)
                                       .bytes());
  write_to(connection);
}

void StoreServer::answer_waiting(Connection& connection) {
  if (connection.wanted.empty()) return;
  const bool is_meeting = connection.wants_members;
  const std::string* value =
      is_meeting ? store_.notes(connection.wanted) : store_.find(connection.wanted);
  if (value != nullptr) {  // even of a rank that has ended since: it may have said why
    answer(connection, StoreReply::done, *value);
  } else if (store_.refusal()) {
    answer_refusal(connection);
  } else if (Clock::now() < connection.patience) {
    return;
  } else if (is_meeting) {
    answer(connection, StoreReply::done, store_.missing(connection.wanted));
  } else {
    answer(connection, StoreReply::absent);
  }
  connection.wanted.clear();
}

void StoreServer::write_to(Connection& connection) {
  while (!connection.output.empty()) {
    const ssize_t count = ::send(connection.socket.get(), connection.output.data(),
                                 connection.output.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count <= 0) return;  // a broken connection shows when it is read
    connection.output.erase(0, static_cast<std::size_t>(count));
  }
}

void StoreServer::settle() {
  if (options_.waiting && is_waiting()) {
    options_.waiting->show([this] { return store_.describe_missing(); });
  }
  const auto now = Clock::now();
  const bool has_news = std::exchange(news_, store_.news()) != store_.news();
  for (Connection& connection : connections_) {
    write_to(connection);
    if (has_news || now >= connection.patience) answer_waiting(connection);
    if (connection.rank < 0 && now >= connection.patience) connection.is_over = true;
  }
  std::erase_if(connections_, [](const Connection& each) { return each.is_over; });
}

}  // namespace dtrain::comm
