#include "dtrain/metrics/time_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

namespace dtrain::metrics {
namespace {

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
constexpr std::array kRowsBeside{Row{TracePart::evaluation, "evaluation"},
                                 Row{TracePart::checkpoint, "checkpoints"}};

double seconds_of(const base::TraceSpan& span) {
  return std::max(0.0, base::Seconds(span.end - span.begin).count());
}

using Figure = std::function<double(const PartTimes&)>;

constexpr std::string_view kExtremes = "               least                most";

// "forward   12.1  38.5 %   11.9 (rank 2)   12.4 (rank 0)"; nothing of a part that took no time.
std::string row(std::string_view name, const std::vector<PartTimes>& ranks, bool shows_extremes,
                const Figure& seconds) {
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

double PartTimes::rest() const {
  double claimed = 0;
  for (const Row& row : kStepRows) claimed += of(row.part);
  return step_seconds - claimed;
}

PartTimes part_times(const std::vector<base::TraceSpan>& spans) {
  std::vector<double> own(spans.size());  // without the spans within
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
  const std::size_t extreme = 20 + std::to_string(ranks.size() - 1).size();  // as row() has it
  const bool shows_extremes = ranks.size() > 1 && columns.size() + 2 * extreme <= room;
  text += fmt::format("\n{}{}", columns, shows_extremes ? kExtremes : "");
  const auto add = [&](std::string_view name, const Figure& seconds) {
    text += row(name, ranks, shows_extremes, seconds);
  };
  for (const Row& part : kStepRows) {
    add(part.name, [&](const PartTimes& rank) { return rank.of(part.part); });
  }
  add("rest", [](const PartTimes& rank) { return rank.rest(); });
  add("whole step", [](const PartTimes& rank) { return rank.step_seconds; });
  for (const Row& part : kRowsBeside) {
    add(fmt::format("beside the steps: {}", part.name),
        [&](const PartTimes& rank) { return rank.of(part.part); });
  }
  return text;
}

}  // namespace dtrain::metrics
