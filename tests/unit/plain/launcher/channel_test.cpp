// Launchers that talk while their ranks run: whose silence is a loss, and which messages count.
#include "launcher/nodes/channel.h"

#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace launcher::channel_test {
namespace {

using namespace std::chrono_literals;

constexpr SilenceLimits kLimits{.running = 100ms, .starting = 10s};

NodeLink link_to(int node, int socket) {
  NodeLink link;
  link.node = node;
  link.stream.socket = dtrain::base::Descriptor(socket);
  return link;
}

/// Node 0's and node 1's.
struct Pair {
  std::unique_ptr<Channel> host;
  std::unique_ptr<Channel> guest;
};

std::unique_ptr<Channel> channel_of(int own_node, int other_node, int socket) {
  std::vector<NodeLink> links;
  links.push_back(link_to(other_node, socket));
  return std::make_unique<Channel>(own_node, std::move(links), kLimits);
}

Pair two_channels() {
  int ends[2] = {-1, -1};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  return {.host = channel_of(0, 1, ends[0]), .guest = channel_of(1, 0, ends[1])};
}

/// What the channel takes while the other one is silent for longer than its heartbeats may be.
std::vector<NodeEvent> taken_after_silence(Channel& channel) {
  (void)channel.take();
  std::this_thread::sleep_for(250ms);
  return channel.take();
}

TEST_CASE("a node that still starts its ranks may be silent for longer than the heartbeats") {
  const Pair pair = two_channels();
  CHECK(taken_after_silence(*pair.host).empty());
  CHECK(taken_after_silence(*pair.guest).empty());
}

TEST_CASE("so it may when a later attempt begins") {
  const Pair pair = two_channels();
  pair.guest->send(0, NodeMessage::begun, {});
  CHECK(pair.host->take().size() == 1);
  pair.host->begin_attempt(1);
  CHECK(taken_after_silence(*pair.host).empty());
}

TEST_CASE("a node whose ranks run is lost when it is silent") {
  const Pair pair = two_channels();
  pair.guest->send(0, NodeMessage::begun, {});
  const std::vector<NodeEvent> events = taken_after_silence(*pair.host);
  REQUIRE(events.size() == 1);
  CHECK(events.front().node == 1);
  CHECK(events.front().loss == NodeLoss::silent);
}

TEST_CASE("what belongs to an earlier attempt is left out, but for a request to stop") {
  const Pair pair = two_channels();
  for (const NodeMessage kind :
       {NodeMessage::rank_end, NodeMessage::node_done, NodeMessage::stop}) {
    pair.guest->send(0, kind, "15");
  }
  pair.host->begin_attempt(1);
  pair.guest->begin_attempt(1);
  pair.guest->send(0, NodeMessage::node_done, {});
  const std::vector<NodeEvent> events = pair.host->take();
  REQUIRE(events.size() == 2);
  CHECK(events[0].kind == NodeMessage::stop);
  CHECK(events[0].body == "15");
  CHECK(events[1].kind == NodeMessage::node_done);
}

TEST_CASE("what was put back is left out, too, once a later attempt has begun") {
  const Pair pair = two_channels();
  pair.guest->send(0, NodeMessage::node_done, {});
  pair.host->put_back(pair.host->take());
  pair.host->begin_attempt(1);
  CHECK(pair.host->take().empty());
}

}  // namespace
}  // namespace launcher::channel_test
