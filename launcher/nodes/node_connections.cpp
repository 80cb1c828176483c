#include "launcher/nodes/node_connections.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "launcher/clocks.h"

namespace launcher {
namespace {

using dtrain::base::Descriptor;

// Heartbeats per timeout: a single late one does not lose the node.
constexpr int kBeatsPerTimeout = 5;
constexpr double kLongestPause =
    std::chrono::duration<double>(ActiveClock::kMostBetweenCalls).count();
// Bytes queued for a node; a node that reads nothing soon falls silent, too.
constexpr std::size_t kMostWaiting = std::size_t{16} << 20;
constexpr std::chrono::milliseconds kClosingLimit(100);

std::int64_t ns_of(double seconds) { return static_cast<std::int64_t>(seconds * 1e9); }

Descriptor ticking(double pause) {
  Descriptor timer(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  const timespec step{.tv_sec = ns_of(pause) / 1'000'000'000,
                      .tv_nsec = ns_of(pause) % 1'000'000'000};
  const itimerspec plan{.it_interval = step, .it_value = {.tv_sec = 0, .tv_nsec = 1}};
  ::timerfd_settime(timer.get(), 0, &plan, nullptr);
  return timer;
}

/// Watches a connection for input and, if output is queued, for space. operation: EPOLL_CTL_ADD or
/// EPOLL_CTL_MOD.
void watch_peer(const Descriptor& epoll, NodeConnection& peer, int operation) {
  epoll_event event{.events = EPOLLIN, .data = {.ptr = &peer}};
  if (!peer.stream.output.empty()) event.events |= EPOLLOUT;
  ::epoll_ctl(epoll.get(), operation, peer.stream.socket.get(), &event);
}

}  // namespace

NodeConnections::NodeConnections(int own_node, std::vector<NodeConnection> links,
                                 SilenceLimits limits)
    : own_node_(own_node),
      monitor_(limits),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      timer_(ticking(std::min(limits.running.count() / kBeatsPerTimeout, kLongestPause))),
      peers_(std::move(links)) {
  if (!epoll_ || !timer_) {
    dtrain::base::fail(dtrain::base::ErrorKind::spawn, "cannot watch the other nodes: {}",
                       std::strerror(errno));
  }
  epoll_event event{.events = EPOLLIN, .data = {.ptr = nullptr}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, timer_.get(), &event);
  for (NodeConnection& peer : peers_) {
    const int on = 1;
    ::setsockopt(peer.stream.socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    peer.stream.input.allow(kMostNodeMessageBytes);
    monitor_.heard(peer.node);
    watch_peer(epoll_, peer, EPOLL_CTL_ADD);
  }
}

void NodeConnections::begin_attempt(int attempt) {
  attempt_ = attempt;
  monitor_.restart();
}

void NodeConnections::send(int node, NodeMessage kind, std::string_view body) {
  for (NodeConnection& peer : peers_) {
    if (peer.node == node) post(peer, kind, body);
  }
}

void NodeConnections::send_to_all(NodeMessage kind, std::string_view body) {
  for (NodeConnection& peer : peers_) post(peer, kind, body);
}

void NodeConnections::post(NodeConnection& peer, NodeMessage kind, std::string_view body) {
  if (!peer.stream.socket || peer.stream.output.size() > kMostWaiting) return;
  const bool waited = !peer.stream.output.empty();
  peer.stream.send(encode(kind, attempt_, body));
  if (waited || !peer.stream.output.empty()) watch_peer(epoll_, peer, EPOLL_CTL_MOD);
}

void NodeConnections::write_to(NodeConnection& peer) {
  if (peer.stream.output.empty()) return;
  peer.stream.flush();
  watch_peer(epoll_, peer, EPOLL_CTL_MOD);
}

std::vector<NodeEvent> NodeConnections::take() {
  if (!epoll_) return {};
  std::vector<NodeEvent> events = std::exchange(put_back_, {});
  // Received data is read before a node is declared silent: this process may have been stopped.
  for (NodeConnection* const peer : ready_peers()) {
    if (peer->stream.socket) read_from(*peer, events);
    if (peer->stream.socket) write_to(*peer);
  }
  std::uint64_t ticks = 0;
  if (::read(timer_.get(), &ticks, sizeof(ticks)) > 0) check_heartbeats(events);
  std::erase_if(events, [this](const NodeEvent& event) {
    return !event.loss && event.attempt < attempt_ && event.kind != NodeMessage::stop;
  });
  return events;
}

// Returns all peers at first: their messages may have arrived together with the links.
std::vector<NodeConnection*> NodeConnections::ready_peers() {
  std::vector<NodeConnection*> peers;
  if (!std::exchange(has_taken_, true)) {
    for (NodeConnection& peer : peers_) peers.push_back(&peer);
    return peers;
  }
  std::vector<epoll_event> ready(peers_.size() + 1);  // + 1 for the timer
  const int count = ::epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), 0);
  for (int i = 0; i < count; ++i) {
    void* const peer = ready[static_cast<std::size_t>(i)].data.ptr;
    if (peer != nullptr) peers.push_back(static_cast<NodeConnection*>(peer));
  }
  return peers;
}

void NodeConnections::read_from(NodeConnection& peer, std::vector<NodeEvent>& events) {
  constexpr int kMaxReads = 16;
  for (int reads = 0; reads < kMaxReads; ++reads) {
    const auto transfer = peer.stream.receive();
    if (transfer == dtrain::net::Transfer::done) monitor_.heard(peer.node);
    while (const auto message = peer.stream.input.take_message()) {
      if (auto envelope = decode_envelope(*message)) handle(peer, *std::move(envelope), events);
    }
    if (transfer == dtrain::net::Transfer::closed || peer.stream.input.is_broken()) {
      return lose(peer, NodeLoss::closed, events);
    }
    if (transfer != dtrain::net::Transfer::done) return;
  }
}

void NodeConnections::handle(NodeConnection& peer, NodeEnvelope message,
                             std::vector<NodeEvent>& events) {
  if (message.kind == NodeMessage::begun) monitor_.ranks_started(peer.node, message.attempt);
  if (message.kind == NodeMessage::ping) return post(peer, NodeMessage::pong, {});
  if (message.kind == NodeMessage::pong) return;  // its arrival is its whole content
  events.push_back(NodeEvent{.node = peer.node,
                             .loss = {},
                             .kind = message.kind,
                             .attempt = message.attempt,
                             .body = std::move(message.body)});
}

void NodeConnections::check_heartbeats(std::vector<NodeEvent>& events) {
  for (NodeConnection& peer : peers_) {
    if (!peer.stream.socket) continue;
    if (const auto loss = monitor_.loss_of(peer.node, attempt_)) {
      lose(peer, *loss, events);
    } else if (own_node_ == 0) {
      post(peer, NodeMessage::ping, {});
    }
  }
}

void NodeConnections::lose(NodeConnection& peer, NodeLoss loss, std::vector<NodeEvent>& events) {
  // Unsent data for a silent machine must not keep the port after this process has exited.
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  if (loss != NodeLoss::closed) {
    ::setsockopt(peer.stream.socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  }
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, peer.stream.socket.get(), nullptr);
  peer.stream.socket.reset();
  events.push_back(
      NodeEvent{.node = peer.node, .loss = loss, .kind = {}, .attempt = attempt_, .body = {}});
}

bool NodeConnections::has_peers() const {
  return std::any_of(peers_.begin(), peers_.end(), [](const NodeConnection& peer) {
    return static_cast<bool>(peer.stream.socket);
  });
}

void NodeConnections::wait_for_closing() {
  const dtrain::base::Deadline limit(kClosingLimit);
  std::vector<NodeEvent> ignored;
  while (has_peers() && !limit.passed()) {
    pollfd waiting{.fd = epoll_.get(), .events = POLLIN, .revents = 0};
    ::poll(&waiting, 1, static_cast<int>(limit.remaining().count()));
    ignored = take();
  }
}

}  // namespace launcher
