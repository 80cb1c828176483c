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

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/comm/internal/rendezvous/wire.h"
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
  return stopping_ || (finishing_ && store_.all_joined() && requests_.all_left());
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
  requests_.add_to(polled);
  ::poll(polled.data(), polled.size(), poll_timeout());
  std::uint64_t count = 0;
  if (polled[0].revents != 0) (void)!::read(wake_.get(), &count, sizeof count);
  requests_.serve(std::span(polled).subspan(first));
  try {
    if (polled[1].revents != 0) accept_from_dtrun();
    const auto of_handshakes = std::span(polled).subspan(kHandshakes, first - kHandshakes);
    for (net::HandshakeServer::Client& client : handshakes_.serve(of_handshakes))
      admit(std::move(client));
  } catch (const base::Error& error) {
    store_.fail_job(error.kind(), fmt::format("rank 0 {}", error.what()));
  }
  if (options_.waiting && is_waiting())
    options_.waiting->report([this] { return store_.describe_missing(); });
  requests_.answer_waiters();
}

int StoreServer::poll_timeout() const {
  auto next = std::min({Clock::now() + std::chrono::hours(1), handshakes_.next_deadline(),
                        requests_.next_deadline()});
  if (options_.waiting && is_waiting()) next = std::min(next, options_.waiting->next());
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
  return static_cast<int>(std::max<std::int64_t>(0, left));
}

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
  requests_.add(std::move(client.stream), static_cast<std::int64_t>(rank));
  if (!store_.all_joined()) return;
  options_.rendezvous_socket = base::Descriptor();
  handshakes_.close();
}

}  // namespace dtrain::comm
