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

net::HandshakeServer handshakes_for(StoreServer::Options& options) {
  constexpr std::size_t kMinPending = 256;  // a large job's ranks may all connect at once
  return net::HandshakeServer(
      {.greeting = std::string(kStoreGreeting),
       .listeners = std::move(options.listeners),
       .secret = options.token,
       .sends_credential = options.sends_credential,
       .max_pending = std::max(kMinPending, 2 * static_cast<std::size_t>(options.size)),
       .auth_timeout = options.auth_timeout});
}

}  // namespace

StoreServer::StoreServer(Options options)
    : options_(std::move(options)),
      handshakes_(handshakes_for(options_)),
      store_(options_.size),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (wake_.get() < 0)
    base::fail(ErrorKind::comm, "cannot create an eventfd: {}", std::strerror(errno));
  auto [own, served] = net::connected_pair();
  own_ = std::move(own);
  handshakes_.begin_handshake(std::move(served), net::AuthMethod::inherited);
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
  return stopping_ || (finishing_ && store_.all_joined() && connections_.empty());
}

void StoreServer::run() {
  while (!is_done()) {
    try {
      serve_once();
    } catch (const std::exception& caught) {
      store_.fail_job(ErrorKind::comm,
                      fmt::format("rank 0 cannot serve the store: {}", caught.what()));
    }
  }
}

void StoreServer::serve_once() {
  std::vector<pollfd> polled{{wake_.get(), POLLIN, 0},
                             {options_.rendezvous_socket.get(), POLLIN, 0}};
  constexpr std::size_t kHandshakes = 2;
  handshakes_.add_to(polled);
  const std::size_t first = polled.size();
  for (const Connection& each : connections_) polled.push_back(each.stream.polled());
  ::poll(polled.data(), polled.size(), poll_timeout());
  std::uint64_t count = 0;
  if (polled[0].revents != 0) (void)!::read(wake_.get(), &count, sizeof count);
  for (std::size_t index = first; index < polled.size(); ++index) {
    if (polled[index].revents != 0) read_from(connections_[index - first]);
  }
  try {
    if (polled[1].revents != 0) accept_from_dtrun();
    const auto of_handshakes = std::span(polled).subspan(kHandshakes, first - kHandshakes);
    for (net::HandshakeServer::Client& client : handshakes_.serve(of_handshakes))
      admit(std::move(client));
  } catch (const base::Error& error) {
    store_.fail_job(error.kind(), fmt::format("rank 0 {}", error.what()));
  }
  answer_waiters();
}

int StoreServer::poll_timeout() const {
  auto next = std::min(Clock::now() + std::chrono::hours(1), handshakes_.next_deadline());
  if (options_.waiting && is_waiting()) next = std::min(next, options_.waiting->next());
  for (const Connection& connection : connections_) {
    if (connection.wait != Wait::none) next = std::min(next, connection.wait_until);
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
  return static_cast<int>(std::max<std::int64_t>(0, left));
}

// --- connections
// -----------------------------------------------------------------------------------

void StoreServer::accept_from_dtrun() {
  net::Packet packet = net::receive_packet(options_.rendezvous_socket, 1);
  if (packet.is_closed)
    options_.rendezvous_socket = base::Descriptor();  // dtrun and all other ranks have exited
  for (base::Descriptor& each : packet.descriptors) {
    if (net::user_of_unix_peer(each.get()) != ::geteuid()) continue;
    handshakes_.begin_handshake(std::move(each), net::AuthMethod::inherited);
  }
}

void StoreServer::admit(net::HandshakeServer::Client client) {
  net::MessageReader hello(client.transcript.hello);
  const std::uint64_t rank = hello.number();
  const std::uint64_t size = hello.number();
  if (!hello.is_whole() || store_.all_joined()) return;
  store_.admit(rank, size);
  if (const auto& failure = store_.failure()) {
    return handshakes_.answer(client, {.status = net::ReplyStatus::rejected,
                                       .kind = static_cast<std::uint64_t>(failure->kind),
                                       .text = failure->message});
  }
  handshakes_.answer(client, {.status = net::ReplyStatus::accepted});
  client.stream.input.allow(kMaxMessageBytes);
  connections_.push_back(
      {.stream = std::move(client.stream), .rank = static_cast<std::int64_t>(rank)});
  take_messages(connections_.back());
  if (!store_.all_joined()) return;
  options_.rendezvous_socket = base::Descriptor();
  handshakes_.close();
}

// --- requests -------------------------------------------------------------------------------

void StoreServer::read_from(Connection& connection) {
  const net::Transfer transfer = connection.stream.receive();
  take_messages(connection);
  const bool is_lost = transfer == net::Transfer::closed || connection.stream.input.is_broken();
  if (connection.is_over || !is_lost) return;
  connection.is_over = true;
  store_.fail_job(ErrorKind::comm,
                  fmt::format("rank {} exited during the rendezvous; see its own error message",
                              connection.rank));
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
  } else if (request == StoreRequest::fail) {
    const ErrorKind kind = failure_kind(reader.number());
    store_.fail_job(kind, base::printable(reader.text()));
    send_failure(connection);
  } else if (request == StoreRequest::gather || request == StoreRequest::wait) {
    handle_wait(connection, request, reader);
  } else {
    store_.fail_job(ErrorKind::comm,
                    fmt::format("rank {} sent the store a malformed request", connection.rank));
  }
}

void StoreServer::handle_wait(Connection& connection, StoreRequest request,
                              net::MessageReader& reader) {
  connection.wait = request == StoreRequest::gather ? Wait::gather : Wait::failure;
  connection.key = reader.text();
  connection.wait_until =
      Clock::now() + std::chrono::milliseconds(std::min<std::uint64_t>(reader.number(), 1U << 31));
  if (connection.wait == Wait::gather) {
    std::string value = reader.text();
    const auto members = read_ranks(reader, options_.size);
    store_.join_gather(connection.key, members.value_or(std::vector<std::int64_t>()),
                       connection.rank, std::move(value));
  }
  try_answer(connection);
}

// --- answers ------------------------------------------------------------------------------

void StoreServer::answer(Connection& connection, std::string_view text) {
  connection.stream.send(
      net::MessageWriter().number(static_cast<std::uint64_t>(StoreReply::done)).text(text).bytes());
}

void StoreServer::send_failure(Connection& connection) const {
  connection.stream.send(net::MessageWriter()
                             .number(static_cast<std::uint64_t>(StoreReply::job_failed))
                             .number(static_cast<std::uint64_t>(store_.failure()->kind))
                             .text(store_.failure()->message)
                             .bytes());
}

void StoreServer::try_answer(Connection& connection) {
  if (connection.wait == Wait::none) return;
  const bool is_gather = connection.wait == Wait::gather;
  const std::string* const values = is_gather ? store_.values(connection.key) : nullptr;
  if (values != nullptr) {  // even after a member has exited: its value may hold the reason
    answer(connection, *values);
  } else if (store_.failure()) {
    send_failure(connection);
  } else if (Clock::now() < connection.wait_until) {
    return;
  } else {
    answer(connection, is_gather ? store_.missing(connection.key) : "");
  }
  connection.wait = Wait::none;
}

void StoreServer::answer_waiters() {
  if (options_.waiting && is_waiting()) {
    options_.waiting->report([this] { return store_.describe_missing(); });
  }
  const auto now = Clock::now();
  const bool has_news = std::exchange(answered_version_, store_.version()) != store_.version();
  for (Connection& connection : connections_) {
    connection.stream.flush();
    if (has_news || now >= connection.wait_until) try_answer(connection);
  }
  std::erase_if(connections_, [](const Connection& each) { return each.is_over; });
}

}  // namespace dtrain::comm
