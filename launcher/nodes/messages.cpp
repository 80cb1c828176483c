#include "launcher/nodes/messages.h"

#include <bit>
#include <limits>
#include <utility>

#include "dtrain/base/text/text.h"
#include "dtrain/net/message.h"

namespace launcher {
namespace {

using dtrain::net::MessageReader;
using dtrain::net::MessageWriter;

constexpr std::int64_t kMostRanks = std::int64_t{1} << 20;
constexpr std::int64_t kMostNodes = 4096;
constexpr std::int64_t kMostLines = 64;
constexpr std::int64_t kMostStatus = 255;
constexpr std::int64_t kMostAttempts = std::int64_t{1} << 20;
constexpr std::int64_t kMostPort = 65535;
constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();

/// Reads fields in order; a field beyond its limits makes the whole message invalid.
class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : reader_(bytes) {}

  template <typename Integer>
  void number(Integer& value, std::int64_t low, std::int64_t high) {
    const auto found = static_cast<std::int64_t>(reader_.number());
    is_good_ = is_good_ && low <= found && found <= high;
    value = static_cast<Integer>(is_good_ ? found : low);
  }
  void flag(bool& value) {
    int found = 0;
    number(found, 0, 1);
    value = found == 1;
  }
  void seconds(double& value) {
    value = std::bit_cast<double>(reader_.number());
    is_good_ = is_good_ && value >= 0.0 && value <= 1e6;
  }
  void text(std::string& value) {
    value = dtrain::base::printable(reader_.text(), kMostNodeMessageBytes);
  }
  template <typename Item, typename Field>
  void list(std::vector<Item>& items, std::int64_t low, std::int64_t high, Field field) {
    std::int64_t count = 0;
    number(count, low, high);
    for (; count > 0 && is_good_ && reader_.is_good(); --count) field(items.emplace_back());
  }
  [[nodiscard]] bool is_whole() const { return is_good_ && reader_.is_whole(); }

 private:
  MessageReader reader_;
  bool is_good_ = true;
};

/// Writes the same fields.
class Encoder {
 public:
  template <typename Integer>
  void number(Integer value, std::int64_t, std::int64_t) {
    writer_.number(static_cast<std::uint64_t>(value));
  }
  void flag(bool value) { writer_.number(value ? 1 : 0); }
  void seconds(double value) { writer_.number(std::bit_cast<std::uint64_t>(value)); }
  void text(const std::string& value) { writer_.text(value); }
  template <typename Item, typename Field>
  void list(std::vector<Item>& items, std::int64_t, std::int64_t, Field field) {
    writer_.number(items.size());
    for (Item& item : items) field(item);
  }
  [[nodiscard]] const std::string& bytes() const { return writer_.bytes(); }

 private:
  MessageWriter writer_;
};

// --- the fields of each message, for both ------------------------------------------------------

template <typename Coder>
void fields(Coder& coder, NodeHello& hello) {
  coder.text(hello.version);
  coder.number(hello.node_rank, 0, kMostNodes);
  coder.number(hello.num_nodes, 1, kMostNodes);
  coder.number(hello.num_ranks, 1, kMostRanks);
  coder.text(hello.host);
}

template <typename Coder>
void fields(Coder& coder, JobStart& start) {
  Placement& placement = start.placement;
  coder.text(placement.master_addr);
  coder.number(placement.master_port, 1, kMostPort);
  coder.text(placement.run_id);
  coder.text(placement.rank_token);
  coder.seconds(start.abort_grace);
  coder.seconds(start.stop_grace);
  coder.seconds(start.heartbeat_timeout);
  coder.number(start.max_restarts, 0, kMostAttempts);
  coder.list(placement.nodes, 2, kMostNodes, [&](NodePlace& node) {
    coder.text(node.host);
    coder.number(node.num_ranks, 1, kMostRanks);
  });
}

template <typename Coder>
void fields(Coder& coder, RankReport& news) {
  coder.number(news.rank, 0, kMostRanks);
  coder.number(news.step, -1, kAny);
  coder.flag(news.stopped);
  coder.flag(news.end.by_signal);
  coder.number(news.end.code, 0, kMostStatus);
  bool has_error = news.reported_error.has_value();
  ReportedError told = news.reported_error.value_or(ReportedError{});
  coder.flag(has_error);
  coder.number(told.status, 0, kMostStatus);
  coder.flag(told.is_shared);
  coder.text(told.line);
  news.reported_error = has_error ? std::optional(std::move(told)) : std::nullopt;
  coder.list(news.last_lines, 0, kMostLines, [&](std::string& line) { coder.text(line); });
}

template <typename Coder>
void fields(Coder& coder, AbortOrder& order) {
  coder.number(order.rank, 0, kMostRanks);
  coder.text(order.reason);
  coder.flag(order.quietly);
  coder.number(order.status, 0, kMostStatus);
}

template <typename Coder>
void fields(Coder& coder, JobResult& decision) {
  coder.number(decision.status, 0, kMostStatus);
  coder.flag(decision.failed);
  coder.text(decision.line);
}

template <typename Coder>
void fields(Coder& coder, RestartOrder& order) {
  coder.number(order.attempt, 1, kMostAttempts);
  coder.number(order.master_port, 1, kMostPort);
  coder.text(order.reason);
  coder.text(order.committed);
}

template <typename Message>
std::string encoded(Message message) {
  Encoder encoder;
  fields(encoder, message);
  return encoder.bytes();
}

template <typename Message>
std::optional<Message> decoded(std::string_view bytes) {
  Decoder decoder(bytes);
  Message message;
  fields(decoder, message);
  return decoder.is_whole() ? std::optional(std::move(message)) : std::nullopt;
}

}  // namespace

std::string encode(NodeMessage kind, int attempt, std::string_view body) {
  std::string message = MessageWriter()
                            .number(static_cast<std::uint64_t>(kind))
                            .number(static_cast<std::uint64_t>(attempt))
                            .bytes();
  return message.append(body);
}

std::optional<NodeEnvelope> decode_envelope(std::string_view bytes) {
  constexpr std::size_t kHead = 16;
  Decoder head(bytes.substr(0, kHead));
  std::int64_t kind = 0;
  NodeEnvelope envelope;
  head.number(kind, 0, kAny);
  head.number(envelope.attempt, 0, kMostAttempts);
  if (!head.is_whole()) return std::nullopt;
  envelope.kind = static_cast<NodeMessage>(kind);
  envelope.body = bytes.substr(kHead);
  return envelope;
}

std::string encode(const NodeHello& hello) { return encoded(hello); }
std::string encode(const JobStart& start) { return encoded(start); }
std::string encode(const RankReport& news) { return encoded(news); }
std::string encode(const AbortOrder& order) { return encoded(order); }
std::string encode(const JobResult& decision) { return encoded(decision); }
std::string encode(const RestartOrder& order) { return encoded(order); }

std::optional<NodeHello> decode_hello(std::string_view bytes) { return decoded<NodeHello>(bytes); }

std::optional<JobStart> decode_start(std::string_view bytes) {
  auto start = decoded<JobStart>(bytes);
  if (!start) return std::nullopt;
  std::int64_t next_rank = 0;
  for (NodePlace& node : start->placement.nodes) {
    node.first_rank = static_cast<int>(next_rank);
    next_rank += node.num_ranks;
  }
  const std::string& id = start->placement.run_id;  // it names the log folder
  const bool is_folder = id.find('/') == std::string::npos && id != "." && id != "..";
  if (!is_folder || next_rank > kMostRanks || start->heartbeat_timeout <= 0) return std::nullopt;
  return start;
}

std::optional<RankReport> decode_rank_report(std::string_view bytes) {
  return decoded<RankReport>(bytes);
}

std::optional<AbortOrder> decode_abort(std::string_view bytes) {
  return decoded<AbortOrder>(bytes);
}

std::optional<JobResult> decode_result(std::string_view bytes) { return decoded<JobResult>(bytes); }

std::optional<RestartOrder> decode_restart(std::string_view bytes) {
  return decoded<RestartOrder>(bytes);
}

}  // namespace launcher
