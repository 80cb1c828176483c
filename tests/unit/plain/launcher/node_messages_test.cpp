// What launchers send each other arrives as it was, and nothing else is taken for a message.
#include <catch2/catch.hpp>
#include <random>
#include <string>

#include "launcher/nodes/messages.h"

namespace launcher::node_messages_test {
namespace {

RankNews some_news() {
  return RankNews{.rank = 3,
                  .step = 12,
                  .stopped = false,
                  .end = {.by_signal = true, .code = 9},
                  .told = ToldError{.status = 7, .of_all = true, .line = "loss is infinite"},
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
  const auto news = decode_rank_news(encode(some_news()));
  REQUIRE(news);
  CHECK(encode(*news) == encode(some_news()));
  CHECK(news->last_lines == std::vector<std::string>{"one", "two"});
  CHECK(news->step == 12);
}

TEST_CASE("a rank that made no step has step -1") {
  RankNews news = some_news();
  news.step = -1;
  CHECK(decode_rank_news(encode(news))->step == -1);
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
    CHECK_FALSE(decode_rank_news(whole.substr(0, size)));
  }
  CHECK_FALSE(decode_rank_news(whole + "x"));
}

TEST_CASE("numbers beyond their limits are refused") {
  RankNews news = some_news();
  news.end.code = 256;
  CHECK_FALSE(decode_rank_news(encode(news)));
  news = some_news();
  news.step = -2;
  CHECK_FALSE(decode_rank_news(encode(news)));
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
    (void)decode_rank_news(bytes);
    (void)decode_start(bytes);
    (void)decode_hello(bytes);
    (void)decode_abort(bytes);
    (void)decode_decision(bytes);
  }
}

}  // namespace
}  // namespace launcher::node_messages_test
