#include "dtrain/metrics/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/file_system.h"

namespace dtrain::metrics {
namespace {

constexpr std::array<std::string_view, base::kNumTraceParts> kCategories{
    "step", "data",   "forward",    "backward",   "units", "wait",
    "clip", "update", "evaluation", "checkpoint", "other"};

// Threads of a rank in the file: its own, what was done beside it, its device's, then those of its
// groups.
constexpr std::int64_t kOwnThread = 0;
constexpr std::int64_t kThreadBeside = 1;
constexpr std::int64_t kDeviceThread = 2;
constexpr std::int64_t kFirstGroupThread = 3;

std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }

double microseconds(base::Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

// Writes the events of one rank.
class Events {
 public:
  explicit Events(const RankTrace& rank) : rank_(rank) {
    name("process_name", 0,
         fmt::format("rank {} of {} on {}", rank.rank, rank.num_ranks, rank.host));
    append(R"({{"ph":"M","name":"process_sort_index","pid":{},"args":{{"sort_index":{}}}}})",
           rank.rank, rank.rank);
  }

  void name_thread(std::int64_t thread, const std::string& text) {
    name("thread_name", thread, text);
    append(
        R"({{"ph":"M","name":"thread_sort_index","pid":{},"tid":{},"args":{{"sort_index":{}}}}})",
        rank_.rank, thread, thread);
  }

  void add(const base::TraceSpan& span, std::int64_t thread) {
    std::string labels;
    for (const base::TraceLabel& label : {span.first, span.second}) {
      if (label.key.empty()) continue;
      labels += fmt::format(R"({}"{}":{})", labels.empty() ? "" : ",", label.key, label.value);
    }
    complete(span.name, kCategories.at(static_cast<std::size_t>(span.part)), thread,
             {span.begin, span.end}, labels);
  }

  void add(const comm::CallRecord& call, const std::string& group, std::int64_t thread) {
    const std::int64_t bytes = call.count * static_cast<std::int64_t>(elementSize(call.dtype));
    complete(call.op, "call", thread, {call.started, call.ended},
             fmt::format(R"("group":{},"call":{},"bytes":{},"bytes_sent":{},"queued_us":{:.3f})",
                         quoted(group), call.number, bytes, call.bytes_sent,
                         microseconds(call.started - call.queued)));
  }

  // What the group itself has counted meanwhile.
  void add_counters(const GroupTrace& group) {
    const comm::CallCounters& counters = group.calls.counters;
    append(
        R"({{"ph":"M","name":"group_counters","pid":{},"args":{{"group":{},"calls":{},"bytes_sent":{},"wait_seconds":{}}}}})",
        rank_.rank, quoted(group.label), counters.calls, counters.bytes_sent,
        counters.wait_seconds);
  }

  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  struct Times {
    base::Clock::time_point begin;
    base::Clock::time_point end;
  };

  template <typename... Arguments>
  void append(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    if (!text_.empty()) text_ += ",\n";
    fmt::format_to(std::back_inserter(text_), format, std::forward<Arguments>(arguments)...);
  }

  void name(std::string_view what, std::int64_t thread, const std::string& text) {
    append(R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{"name":{}}}}})", what, rank_.rank,
           thread, quoted(text));
  }

  void complete(std::string_view name, std::string_view category, std::int64_t thread,
                const Times& times, const std::string& labels) {
    append(
        R"({{"ph":"X","name":"{}","cat":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{{}}}}})",
        name, category, rank_.rank, thread, microseconds(times.begin - rank_.ahead - rank_.origin),
        microseconds(times.end - times.begin), labels);
  }

  const RankTrace& rank_;
  std::string text_;
};

// Calls of one lane follow each other: all collectives, or all sends to (receives from) one peer.
std::string lane_of(const comm::CallRecord& call, const std::string& group) {
  if (call.op == "send") return fmt::format("{}: sends to rank {}", group, call.peer);
  if (call.op == "recv") return fmt::format("{}: receives from rank {}", group, call.peer);
  return group;
}

}  // namespace

base::Clock::time_point begin_of(const RankTrace& rank) {
  auto begin = base::Clock::time_point::max();
  for (const auto* spans : {&rank.spans.spans(), &rank.spans.beside()}) {
    for (const base::TraceSpan& span : *spans) begin = std::min(begin, span.begin);
  }
  for (const GroupTrace& group : rank.groups) {
    for (const comm::CallRecord& call : group.calls.records) begin = std::min(begin, call.started);
  }
  return begin - rank.ahead;
}

std::string trace_events(const RankTrace& rank) {
  Events events(rank);
  events.name_thread(kOwnThread, "steps");
  for (const base::TraceSpan& span : rank.spans.spans()) {
    if (span.end >= span.begin) events.add(span, kOwnThread);
  }
  if (!rank.spans.beside().empty()) events.name_thread(kThreadBeside, "checkpoints");
  for (const base::TraceSpan& span : rank.spans.beside()) events.add(span, kThreadBeside);
  if (!rank.device_spans.empty()) events.name_thread(kDeviceThread, "device");
  for (const base::TraceSpan& span : rank.device_spans) events.add(span, kDeviceThread);
  std::int64_t next_thread = kFirstGroupThread;
  for (const GroupTrace& group : rank.groups) {
    events.add_counters(group);
    std::vector<std::string> lanes;
    for (const comm::CallRecord& call : group.calls.records) {
      const std::string lane = lane_of(call, group.label);
      const auto found = std::find(lanes.begin(), lanes.end(), lane);
      const auto place = found - lanes.begin();
      if (found == lanes.end()) {
        lanes.push_back(lane);
        events.name_thread(next_thread + place, lane);
      }
      events.add(call, group.label, next_thread + place);
    }
    next_thread += std::ssize(lanes);
  }
  return events.take();
}

std::vector<base::TraceSpan> on_device(const base::Trace& trace,
                                       const std::vector<base::Clock::time_point>& times) {
  std::vector<base::TraceSpan> spans = trace.spans();
  for (base::TraceSpan& span : spans) {
    const bool has_ended = span.device_end >= 0;
    span.begin = times.at(static_cast<std::size_t>(span.device_begin));
    span.end = has_ended ? times.at(static_cast<std::size_t>(span.device_end)) : span.begin;
  }
  return spans;
}

void write_trace(const std::string& path, const std::vector<std::string>& parts) {
  base::AtomicFile file(path, base::ErrorKind::data);
  const auto write = [&](std::string_view text) {
    file.write(std::as_bytes(std::span(text.data(), text.size())));
  };
  write("{\"displayTimeUnit\":\"ms\",\"otherData\":{\"program\":\"dtrain\"},\"traceEvents\":[\n");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) write(",\n");
    write(parts[i]);
  }
  write("\n]}\n");
  file.commit();
}

}  // namespace dtrain::metrics
