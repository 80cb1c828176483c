#include "dtrain/metrics/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/io/file_system.h"

namespace dtrain::metrics {
namespace {

constexpr std::array<std::string_view, base::kNumTraceParts> kCategories{
    "step", "data",   "forward",    "backward",   "units", "wait",
    "clip", "update", "evaluation", "checkpoint", "other"};

// Threads of a rank in the file: its own, background threads, its device's, then those of its groups.
constexpr std::int64_t kOwnThread = 0;
constexpr std::int64_t kBackgroundThread = 1;
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

  // The group's own counters for the same time.
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
        name, category, rank_.rank, thread,
        microseconds(times.begin - rank_.clock_offset - rank_.origin),
        microseconds(times.end - times.begin), labels);
  }

  const RankTrace& rank_;
  std::string text_;
};

// Calls of one track never overlap: all collectives, or all sends to (receives from) one peer.
std::string track_of(const comm::CallRecord& call, const std::string& group) {
  if (call.op == "send") return fmt::format("{}: sends to rank {}", group, call.peer);
  if (call.op == "recv") return fmt::format("{}: receives from rank {}", group, call.peer);
  return group;
}

using base::TracePart;

struct Row {
  TracePart part;
  std::string_view name;
};

constexpr std::array kStepRows{Row{TracePart::data, "data"},
                               Row{TracePart::forward, "forward"},
                               Row{TracePart::backward, "backward"},
                               Row{TracePart::units, "launching communication"},
                               Row{TracePart::wait, "waiting for communication"},
                               Row{TracePart::clip, "norm and clipping"},
                               Row{TracePart::update, "update"}};
constexpr std::array kOutsideRows{Row{TracePart::evaluation, "evaluation"},
                                  Row{TracePart::checkpoint, "checkpoints"}};

double seconds_of(const base::TraceSpan& span) {
  return std::max(0.0, base::Seconds(span.end - span.begin).count());
}

using SecondsOf = std::function<double(const PartTimes&)>;

constexpr std::string_view kExtremes = "               least                most";

// "forward   12.1  38.5 %   11.9 (rank 2)   12.4 (rank 0)"; empty if the activity took no time.
std::string row(std::string_view name, const std::vector<PartTimes>& ranks, bool shows_extremes,
                const SecondsOf& seconds) {
  const auto less = [&](const PartTimes& a, const PartTimes& b) { return seconds(a) < seconds(b); };
  const auto [least, most] = std::minmax_element(ranks.begin(), ranks.end(), less);
  if (seconds(*most) <= 0) return {};
  double sum = 0;
  double steps = 0;
  for (const PartTimes& rank : ranks) {
    sum += seconds(rank);
    steps += rank.step_seconds;
  }
  const auto milliseconds = [](double total, const PartTimes& rank) {
    return 1e3 * total / static_cast<double>(rank.steps);
  };
  std::string line = fmt::format(
      "\n  {:<32}{:>10.3f}{:>9.1f} %", name,
      milliseconds(sum / static_cast<double>(ranks.size()), ranks.front()), 100 * sum / steps);
  if (!shows_extremes) return line;
  const auto extreme = [&](const auto& rank) {
    return fmt::format("{:>12.3f} (rank {})", milliseconds(seconds(*rank), *rank),
                       rank - ranks.begin());
  };
  return line + extreme(least) + extreme(most);
}

}  // namespace

base::Clock::time_point start_of(const RankTrace& rank) {
  auto begin = base::Clock::time_point::max();
  for (const auto* spans : {&rank.spans.spans(), &rank.spans.concurrent()}) {
    for (const base::TraceSpan& span : *spans) begin = std::min(begin, span.begin);
  }
  for (const GroupTrace& group : rank.groups) {
    for (const comm::CallRecord& call : group.calls.records) begin = std::min(begin, call.started);
  }
  return begin - rank.clock_offset;
}

std::string trace_events(const RankTrace& rank) {
  Events events(rank);
  events.name_thread(kOwnThread, "steps");
  for (const base::TraceSpan& span : rank.spans.spans()) {
    if (span.end >= span.begin) events.add(span, kOwnThread);
  }
  if (!rank.spans.concurrent().empty()) events.name_thread(kBackgroundThread, "checkpoints");
  for (const base::TraceSpan& span : rank.spans.concurrent()) events.add(span, kBackgroundThread);
  if (!rank.device_spans.empty()) events.name_thread(kDeviceThread, "device");
  for (const base::TraceSpan& span : rank.device_spans) events.add(span, kDeviceThread);
  std::int64_t next_thread = kFirstGroupThread;
  for (const GroupTrace& group : rank.groups) {
    events.add_counters(group);
    std::vector<std::string> tracks;
    for (const comm::CallRecord& call : group.calls.records) {
      const std::string track = track_of(call, group.label);
      const auto found = std::find(tracks.begin(), tracks.end(), track);
      const auto place = found - tracks.begin();
      if (found == tracks.end()) {
        tracks.push_back(track);
        events.name_thread(next_thread + place, track);
      }
      events.add(call, group.label, next_thread + place);
    }
    next_thread += std::ssize(tracks);
  }
  return events.take();
}

std::vector<base::TraceSpan> device_spans(const base::Trace& trace,
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

double PartTimes::rest() const {
  double claimed = 0;
  for (const Row& row : kStepRows) claimed += of(row.part);
  return step_seconds - claimed;
}

PartTimes part_times(const std::vector<base::TraceSpan>& spans) {
  std::vector<double> own(spans.size());  // without nested spans
  std::vector<std::size_t> roots(spans.size());
  for (std::size_t i = 0; i < spans.size(); ++i) {
    own[i] += seconds_of(spans[i]);
    const auto parent = static_cast<std::size_t>(spans[i].parent);
    roots[i] = spans[i].parent < 0 ? i : roots[parent];
    if (spans[i].parent >= 0) own[parent] -= seconds_of(spans[i]);
  }
  PartTimes times;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const base::TraceSpan& span = spans[i];
    const bool is_in_step = spans[roots[i]].part == TracePart::step;
    if (span.part == TracePart::step) {
      ++times.steps;
      times.step_seconds += seconds_of(span);
    } else if (is_in_step) {
      times.of(span.part) += own[i];
    } else if (roots[i] == i) {
      times.of(span.part) += seconds_of(span);
    }
  }
  return times;
}

std::string to_text(const PartTimes& times) {
  return nlohmann::json{times.steps, times.step_seconds, times.seconds}.dump();
}

PartTimes times_from(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  PartTimes times{.steps = json.at(0).get<std::int64_t>(),
                  .step_seconds = json.at(1).get<double>()};
  json.at(2).get_to(times.seconds);
  return times;
}

std::string time_table(const std::vector<PartTimes>& ranks, std::string_view clock,
                       std::size_t room) {
  const std::int64_t steps = ranks.front().steps;
  std::string text =
      fmt::format("profile of {} step{}{}{}", steps, steps == 1 ? "" : "s",
                  clock.empty() ? "" : fmt::format(", {}", clock),
                  ranks.size() == 1 ? "" : fmt::format(", mean of {} ranks", ranks.size()));
  const std::string columns = fmt::format("  {:<32}{:>10}{:>11}", "of a step", "ms", "share");
  const std::size_t extreme = 20 + std::to_string(ranks.size() - 1).size();  // as in row()
  const bool shows_extremes = ranks.size() > 1 && columns.size() + 2 * extreme <= room;
  text += fmt::format("\n{}{}", columns, shows_extremes ? kExtremes : "");
  const auto add = [&](std::string_view name, const SecondsOf& seconds) {
    text += row(name, ranks, shows_extremes, seconds);
  };
  for (const Row& part : kStepRows) {
    add(part.name, [&](const PartTimes& rank) { return rank.of(part.part); });
  }
  add("rest", [](const PartTimes& rank) { return rank.rest(); });
  add("whole step", [](const PartTimes& rank) { return rank.step_seconds; });
  for (const Row& part : kOutsideRows) {
    add(fmt::format("outside the steps: {}", part.name),
        [&](const PartTimes& rank) { return rank.of(part.part); });
  }
  return text;
}

}  // namespace dtrain::metrics
