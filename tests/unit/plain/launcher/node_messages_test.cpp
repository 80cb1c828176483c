#include <fmt/format.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "launcher/nodes/messages.h"
#include "launcher/nodes/node_connections.h"

namespace launcher::node_messages_test {
namespace {

using namespace std::chrono_literals;

// What launchers send each other arrives as it was, and nothing else is taken for a message.
RankReport some_news() {
  return RankReport{
      .rank = 3,
      .step = 12,
      .stopped = false,
      .end = {.by_signal = true, .code = 9},
      .reported_error = ReportedError{.status = 7, .is_shared = true, .line = "loss is infinite"},
      .last_lines = {"one", "two"}};
}

JobStart some_start() {
  JobStart start;
  start.placement.nodes = {{"hosta", 0, 2}, {"hostb", 2, 1}};
  start.placement.master_addr = "10.0.0.1";
  start.placement.master_port = 1234;
  start.placement.run_id = "run";
  start.placement.rank_token = "secret";
  start.abort_grace = 2.0;
  start.stop_grace = 0.5;
  start.heartbeat_timeout = 10.0;
  return start;
}

TEST_CASE("a start that names a folder elsewhere, or no time, is refused") {
  CHECK(decode_start(encode(some_start())));
  for (const char* id : {".", "..", "a/b"}) {
    JobStart start = some_start();
    start.placement.run_id = id;
    CHECK_FALSE(decode_start(encode(start)));
  }
  JobStart start = some_start();
  start.heartbeat_timeout = 0;
  CHECK_FALSE(decode_start(encode(start)));
}

TEST_CASE("news of a rank arrives as it was") {
  const auto news = decode_rank_report(encode(some_news()));
  REQUIRE(news);
  CHECK(encode(*news) == encode(some_news()));
  CHECK(news->last_lines == std::vector<std::string>{"one", "two"});
  CHECK(news->step == 12);
}

TEST_CASE("a rank that made no step has step -1") {
  RankReport news = some_news();
  news.step = -1;
  CHECK(decode_rank_report(encode(news))->step == -1);
}

TEST_CASE("the start numbers the ranks node by node") {
  const auto start = decode_start(encode(some_start()));
  REQUIRE(start);
  CHECK(start->placement.node(1).first_rank == 2);
  CHECK(start->placement.world_size() == 3);
  CHECK(start->placement.node(1).host == "hostb");
  CHECK(start->stop_grace == 0.5);
}

TEST_CASE("a message with a piece missing, or with more behind it, is none") {
  const std::string whole = encode(some_news());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CHECK_FALSE(decode_rank_report(whole.substr(0, size)));
  }
  CHECK_FALSE(decode_rank_report(whole + "x"));
}

TEST_CASE("numbers beyond their limits are refused") {
  RankReport news = some_news();
  news.end.code = 256;
  CHECK_FALSE(decode_rank_report(encode(news)));
  news = some_news();
  news.step = -2;
  CHECK_FALSE(decode_rank_report(encode(news)));
  JobStart start = some_start();
  start.placement.master_port = 65536;
  CHECK_FALSE(decode_start(encode(start)));
  start = some_start();
  start.placement.nodes[1].num_ranks = 0;
  CHECK_FALSE(decode_start(encode(start)));
  start = some_start();
  start.stop_grace = -1.0;
  CHECK_FALSE(decode_start(encode(start)));
}

TEST_CASE("texts cannot control a terminal") {
  AbortOrder order{.rank = 1, .reason = "a\x1b[2Jb\nc", .quietly = false, .status = 7};
  CHECK(decode_abort(encode(order))->reason == "a?[2Jb?c");
}

TEST_CASE("no bytes crash the readers") {
  std::mt19937 random(1);
  std::string whole = encode(some_news());
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = whole;
    for (int change = 0; change < 3; ++change) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    (void)decode_rank_report(bytes);
    (void)decode_start(bytes);
    (void)decode_hello(bytes);
    (void)decode_abort(bytes);
    (void)decode_result(bytes);
  }
}

// Launchers that talk while their ranks run: whose silence is a loss, and which messages count.
constexpr SilenceLimits kLimits{.running = 100ms, .starting = 10s};

NodeConnection link_to(int node, int socket) {
  NodeConnection link;
  link.node = node;
  link.stream.socket = dtrain::base::Descriptor(socket);
  return link;
}

/// Node 0's and node 1's.
struct Pair {
  std::unique_ptr<NodeConnections> host;
  std::unique_ptr<NodeConnections> guest;
};

std::unique_ptr<NodeConnections> channel_of(int own_node, int other_node, int socket) {
  std::vector<NodeConnection> links;
  links.push_back(link_to(other_node, socket));
  return std::make_unique<NodeConnections>(own_node, std::move(links), kLimits);
}

Pair two_channels() {
  int ends[2] = {-1, -1};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  return {.host = channel_of(0, 1, ends[0]), .guest = channel_of(1, 0, ends[1])};
}

/// What the channel takes while the other one is silent for longer than its heartbeats may be.
std::vector<NodeEvent> taken_after_silence(NodeConnections& channel) {
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

TEST_CASE("A restart order keeps the committed steps of many runs") {
  std::string committed;
  for (int run = 0; run < 1000; ++run) committed += fmt::format("0123456789abcdef:{} ", run);
  const auto order = decode_restart(
      encode(RestartOrder{.attempt = 1, .master_port = 1, .reason = "", .committed = committed}));
  REQUIRE(order);
  CHECK(order->committed == committed);
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
}  // namespace launcher::node_messages_test
