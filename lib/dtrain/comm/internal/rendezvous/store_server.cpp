#include "dtrain/comm/internal/rendezvous/store_server.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "dtrain/base/text/text.h"
#include "dtrain/net/message.h"
#include "dtrain/net/proof.h"
#include "dtrain/net/socket.h"

namespace dtrain::comm {

namespace {

using base::Clock;
using base::ErrorKind;

net::Reception reception_for(StoreServer::Options& options) {
  constexpr std::size_t kLeastStrangers = 256;  // a large job's ranks may all come at once
  return net::Reception(
      {.greeting = std::string(kStoreGreeting),
       .listeners = std::move(options.listeners),
       .secret = options.token,
       .seals_secret = options.seals_token,
       .most_strangers = std::max(kLeastStrangers, 2 * static_cast<std::size_t>(options.size)),
       .patience = options.patience});
}

}  // namespace

StoreServer::StoreServer(Options options)
    : options_(std::move(options)),
      reception_(reception_for(options_)),
      store_(options_.size),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (wake_.get() < 0) base::fail(ErrorKind::comm, "no eventfd: {}", std::strerror(errno));
  auto [own, served] = net::connected_pair();
  own_ = std::move(own);
  reception_.greet(std::move(served), net::Trust::handed_down);
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
  std::vector<pollfd> polled{{wake_.get(), POLLIN, 0}, {options_.door.get(), POLLIN, 0}};
  constexpr std::size_t kReception = 2;
  reception_.add_to(polled);
  const std::size_t first = polled.size();
  for (const Connection& each : connections_) polled.push_back(each.stream.polled());
  ::poll(polled.data(), polled.size(), poll_timeout());
  std::uint64_t count = 0;
  if (polled[0].revents != 0) (void)!::read(wake_.get(), &count, sizeof count);
  for (std::size_t index = first; index < polled.size(); ++index) {
    if (polled[index].revents != 0) read_from(connections_[index - first]);
  }
  try {
    if (polled[1].revents != 0) take_from_door();
    const auto of_reception = std::span(polled).subspan(kReception, first - kReception);
    for (net::Reception::Guest& guest : reception_.serve(of_reception)) admit(std::move(guest));
  } catch (const base::Error& error) {
    store_.refuse(error.kind(), fmt::format("rank 0 {}", error.what()));
  }
  settle();
}

int StoreServer::poll_timeout() const {
  auto next = std::min(Clock::now() + std::chrono::hours(1), reception_.next_deadline());
  if (options_.waiting && is_waiting()) next = std::min(next, options_.waiting->next());
  for (const Connection& connection : connections_) {
    if (connection.wish != Wish::none) next = std::min(next, connection.patience);
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
  return static_cast<int>(std::max<std::int64_t>(0, left));
}

// --- who comes -----------------------------------------------------------------------------------

void StoreServer::take_from_door() {
  net::Packet packet = net::receive_packet(options_.door, 1);
  if (packet.is_closed) options_.door = base::Descriptor();  // dtrun and all other ranks have ended
  for (base::Descriptor& each : packet.descriptors) {
    if (net::user_of_unix_peer(each.get()) != ::geteuid()) continue;
    reception_.greet(std::move(each), net::Trust::handed_down);
  }
}

void StoreServer::admit(net::Reception::Guest guest) {
  net::MessageReader hello(guest.exchange.hello);
  const std::uint64_t rank = hello.number();
  const std::uint64_t size = hello.number();
  if (!hello.is_whole() || store_.everyone_came()) return;
  store_.admit(rank, size);
  if (const auto& refusal = store_.refusal()) {
    return reception_.answer(guest, {.answer = net::Answer::refused,
                                     .kind = static_cast<std::uint64_t>(refusal->kind),
                                     .text = refusal->message});
  }
  reception_.answer(guest, {.answer = net::Answer::welcome});
  guest.stream.input.allow(kMostMessageBytes);
  connections_.push_back(
      {.stream = std::move(guest.stream), .rank = static_cast<std::int64_t>(rank)});
  take_messages(connections_.back());
  if (!store_.everyone_came()) return;
  options_.door = base::Descriptor();
  reception_.close();
}

// --- what they say -------------------------------------------------------------------------------

void StoreServer::read_from(Connection& connection) {
  const net::Transfer transfer = connection.stream.receive();
  take_messages(connection);
  const bool is_lost = transfer == net::Transfer::closed || connection.stream.input.is_broken();
  if (connection.is_over || !is_lost) return;
  connection.is_over = true;
  store_.refuse(
      ErrorKind::comm,
      fmt::format("rank {} ended while the ranks met; what it printed says why", connection.rank));
}

void StoreServer::take_messages(Connection& connection) {
  while (!connection.is_over) {
    const auto message = connection.stream.input.take_message();
    if (!message) return;
    handle(connection, *message);
  }
}

void StoreServer::handle(Connection& connection, const std::string& message) {
  net::MessageReader reader(message);
  const auto request = static_cast<StoreRequest>(reader.number());
  if (request == StoreRequest::leave) {
    connection.is_over = true;
  } else if (request == StoreRequest::refuse) {
    const ErrorKind kind = kind_of_refusal(reader.number());
    store_.refuse(kind, base::printable(reader.text()));
    answer_refusal(connection);
  } else if (request == StoreRequest::meet || request == StoreRequest::wait) {
    hear_wish(connection, request, reader);
  } else {
    store_.refuse(ErrorKind::comm,
                  fmt::format("rank {} sent the store what makes no sense", connection.rank));
  }
}

void StoreServer::hear_wish(Connection& connection, StoreRequest request,
                            net::MessageReader& reader) {
  connection.wish = request == StoreRequest::meet ? Wish::meeting : Wish::refusal;
  connection.key = reader.text();
  connection.patience =
      Clock::now() + std::chrono::milliseconds(std::min<std::uint64_t>(reader.number(), 1U << 31));
  if (connection.wish == Wish::meeting) {
    std::string note = reader.text();
    const auto members = read_ranks(reader, options_.size);
    store_.join(connection.key, members.value_or(std::vector<std::int64_t>()), connection.rank,
                std::move(note));
  }
  answer_waiting(connection);
}

// --- what they hear ------------------------------------------------------------------------------

void StoreServer::answer(Connection& connection, std::string_view text) {
  connection.stream.send(
      net::MessageWriter().number(static_cast<std::uint64_t>(StoreReply::done)).text(text).bytes());
}

void StoreServer::answer_refusal(Connection& connection) const {
  connection.stream.send(net::MessageWriter()
                             .number(static_cast<std::uint64_t>(StoreReply::refused))
                             .number(static_cast<std::uint64_t>(store_.refusal()->kind))
                             .text(store_.refusal()->message)
                             .bytes());
}

void StoreServer::answer_waiting(Connection& connection) {
  if (connection.wish == Wish::none) return;
  const bool is_meeting = connection.wish == Wish::meeting;
  const std::string* const notes = is_meeting ? store_.notes(connection.key) : nullptr;
  if (notes != nullptr) {  // even of a rank that has ended since: it may have said why
    answer(connection, *notes);
  } else if (store_.refusal()) {
    answer_refusal(connection);
  } else if (Clock::now() < connection.patience) {
    return;
  } else {
    answer(connection, is_meeting ? store_.missing(connection.key) : "");
  }
  connection.wish = Wish::none;
}

void StoreServer::settle() {
  if (options_.waiting && is_waiting()) {
    options_.waiting->show([this] { return store_.describe_missing(); });
  }
  const auto now = Clock::now();
  const bool has_news = std::exchange(news_, store_.news()) != store_.news();
  for (Connection& connection : connections_) {
    connection.stream.flush();
    if (has_news || now >= connection.patience) answer_waiting(connection);
  }
  std::erase_if(connections_, [](const Connection& each) { return each.is_over; });
}

}  // namespace dtrain::comm
