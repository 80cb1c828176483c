#include "launcher/nodes/messages.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "dtrain/base/printable.h"
#include "dtrain/net/message.h"

namespace launcher {
namespace {

using dtrain::net::MessageReader;
using dtrain::net::MessageWriter;

constexpr std::int64_t kMostRanks = std::int64_t{1} << 20;
constexpr std::size_t kMostNodes = 4096;
constexpr std::size_t kMostLines = 64;
constexpr std::int64_t kMostStatus = 255;
constexpr std::int64_t kMostAttempts = std::int64_t{1} << 20;

/// Reads numbers within limits; a number beyond them makes the whole message invalid.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : reader_(bytes) {}

  std::int64_t number(std::int64_t low, std::int64_t high) {
    const auto value = static_cast<std::int64_t>(reader_.number());
    is_good_ = is_good_ && low <= value && value <= high;
    return is_good_ ? value : low;
  }
  int small(std::int64_t low, std::int64_t high) { return static_cast<int>(number(low, high)); }
  bool flag() { return number(0, 1) == 1; }
  double seconds() {
    const double value = std::bit_cast<double>(reader_.number());
    is_good_ = is_good_ && value >= 0.0 && value <= 1e6;
    return is_good_ ? value : 0.0;
  }
  std::string text() { return dtrain::base::printable(reader_.text()); }
  [[nodiscard]] bool is_good() const { return is_good_ && reader_.is_good(); }
  [[nodiscard]] bool is_whole() const { return is_good_ && reader_.is_whole(); }

 private:
  MessageReader reader_;
  bool is_good_ = true;
};

std::uint64_t bits(std::int64_t value) { return static_cast<std::uint64_t>(value); }
std::uint64_t bits(double value) { return std::bit_cast<std::uint64_t>(value); }
std::uint64_t bits(bool value) { return value ? 1 : 0; }
std::uint64_t bits(int value) { return bits(std::int64_t{value}); }

constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();

}  // namespace

std::string encode(NodeMessage kind, int attempt, std::string_view body) {
  std::string message =
      MessageWriter().number(static_cast<std::uint64_t>(kind)).number(bits(attempt)).bytes();
  return message.append(body);
}

std::optional<NodeEnvelope> decode_envelope(std::string_view bytes) {
  constexpr std::size_t kHead = 16;
  Fields fields(bytes.substr(0, kHead));
  NodeEnvelope envelope;
  envelope.kind = static_cast<NodeMessage>(fields.number(0, kAny));
  envelope.attempt = fields.small(0, kMostAttempts);
  if (!fields.is_whole()) return std::nullopt;
  envelope.body = bytes.substr(kHead);
  return envelope;
}

std::string encode(const NodeHello& hello) {
  return MessageWriter()
      .text(hello.version)
      .number(bits(hello.node_rank))
      .number(bits(hello.num_nodes))
      .number(bits(hello.num_ranks))
      .text(hello.host)
      .bytes();
}

std::optional<NodeHello> decode_hello(std::string_view bytes) {
  Fields fields(bytes);
  NodeHello hello;
  hello.version = fields.text();
  hello.node_rank = fields.small(0, kMostNodes);
  hello.num_nodes = fields.small(1, kMostNodes);
  hello.num_ranks = fields.small(1, kMostRanks);
  hello.host = fields.text();
  return fields.is_whole() ? std::optional(hello) : std::nullopt;
}

std::string encode(const JobStart& start) {
  const Placement& placement = start.placement;
  MessageWriter writer;
  writer.text(placement.master_addr)
      .number(bits(placement.master_port))
      .text(placement.run_id)
      .text(placement.rank_token)
      .number(bits(start.abort_grace))
      .number(bits(start.stop_grace))
      .number(bits(start.heartbeat_timeout))
      .number(bits(start.max_restarts))
      .number(placement.nodes.size());
  for (const NodePlace& node : placement.nodes) writer.text(node.host).number(bits(node.num_ranks));
  return writer.bytes();
}

std::optional<JobStart> decode_start(std::string_view bytes) {
  Fields fields(bytes);
  JobStart start;
  Placement& placement = start.placement;
  placement.master_addr = fields.text();
  placement.master_port = fields.small(1, 65535);
  placement.run_id = fields.text();
  placement.rank_token = fields.text();
  start.abort_grace = fields.seconds();
  start.stop_grace = fields.seconds();
  start.heartbeat_timeout = fields.seconds();
  start.max_restarts = fields.small(0, kMostAttempts);
  const int count = fields.small(2, kMostNodes);
  std::int64_t next_rank = 0;
  for (int node = 0; node < count && fields.is_good(); ++node) {
    NodePlace place;
    place.host = fields.text();
    place.first_rank = static_cast<int>(next_rank);
    place.num_ranks = fields.small(1, kMostRanks);
    next_rank += place.num_ranks;
    placement.nodes.push_back(place);
  }
  const std::string& id = placement.run_id;  // a folder of logs
  const bool is_folder = id.find('/') == std::string::npos && id != "." && id != "..";
  const bool is_good =
      fields.is_whole() && is_folder && next_rank <= kMostRanks && start.heartbeat_timeout > 0;
  return is_good ? std::optional(start) : std::nullopt;
}

std::string encode(const RankNews& news) {
  MessageWriter writer;
  writer.number(bits(news.rank))
      .number(bits(news.step))
      .number(bits(news.stopped))
      .number(bits(news.by_signal))
      .number(bits(news.code))
      .number(bits(news.has_told))
      .number(bits(news.told_status))
      .number(bits(news.told_of_all))
      .text(news.told_line)
      .number(news.last_lines.size());
  for (const std::string& line : news.last_lines) writer.text(line);
  return writer.bytes();
}

std::optional<RankNews> decode_rank_news(std::string_view bytes) {
  Fields fields(bytes);
  RankNews news;
  news.rank = fields.small(0, kMostRanks);
  news.step = fields.number(-1, kAny);
  news.stopped = fields.flag();
  news.by_signal = fields.flag();
  news.code = fields.small(0, kMostStatus);
  news.has_told = fields.flag();
  news.told_status = fields.small(0, kMostStatus);
  news.told_of_all = fields.flag();
  news.told_line = fields.text();
  const auto count = static_cast<std::size_t>(fields.number(0, kMostLines));
  for (std::size_t line = 0; line < count && fields.is_good(); ++line) {
    news.last_lines.push_back(fields.text());
  }
  return fields.is_whole() ? std::optional(news) : std::nullopt;
}

std::string encode(const AbortOrder& order) {
  return MessageWriter()
      .number(bits(order.rank))
      .text(order.reason)
      .number(bits(order.quietly))
      .number(bits(order.status))
      .bytes();
}

std::optional<AbortOrder> decode_abort(std::string_view bytes) {
  Fields fields(bytes);
  AbortOrder order;
  order.rank = fields.small(0, kMostRanks);
  order.reason = fields.text();
  order.quietly = fields.flag();
  order.status = fields.small(0, kMostStatus);
  return fields.is_whole() ? std::optional(order) : std::nullopt;
}

std::string encode(const Decision& decision) {
  return MessageWriter()
      .number(bits(decision.status))
      .number(bits(decision.failed))
      .text(decision.line)
      .bytes();
}

std::optional<Decision> decode_decision(std::string_view bytes) {
  Fields fields(bytes);
  Decision decision;
  decision.status = fields.small(0, kMostStatus);
  decision.failed = fields.flag();
  decision.line = fields.text();
  return fields.is_whole() ? std::optional(decision) : std::nullopt;
}

std::string encode(const RestartOrder& order) {
  return MessageWriter()
      .number(bits(order.attempt))
      .number(bits(order.master_port))
      .text(order.reason)
      .text(order.committed)
      .bytes();
}

std::optional<RestartOrder> decode_restart(std::string_view bytes) {
  Fields fields(bytes);
  RestartOrder order;
  order.attempt = fields.small(1, kMostAttempts);
  order.master_port = fields.small(1, 65535);
  order.reason = fields.text();
  order.committed = fields.text();
  return fields.is_whole() ? std::optional(order) : std::nullopt;
}

}  // namespace launcher
