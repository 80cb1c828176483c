#include "dtrain/commands/doctor/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "dtrain/base/cpu_list.h"

namespace dtrain::commands::doctor {

// CPUs and ranks are listed alike.
std::string rank_list(const std::vector<int>& ranks) { return base::cpu_list_text(ranks); }

std::string by_rank(std::span<const std::string> values) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<int>> ranks_of;
  for (std::size_t rank = 0; rank < values.size(); ++rank) {
    std::vector<int>& ranks = ranks_of[values[rank]];
    if (ranks.empty()) order.push_back(values[rank]);
    ranks.push_back(static_cast<int>(rank));
  }
  if (order.size() == 1) return order.front();
  std::string text;
  for (const std::string& value : order) {
    const std::vector<int>& ranks = ranks_of[value];
    text += fmt::format("{}{} (rank{} {})", text.empty() ? "" : "; ", value,
                        ranks.size() == 1 ? "" : "s", rank_list(ranks));
  }
  return text;
}

void Findings::fact(std::string_view name, std::string_view value) {
  output_(fmt::format("{:<15} {}\n", name, value));
}

void Findings::problem(base::ErrorKind kind, std::string text) {
  fact("PROBLEM", text);
  problems_.push_back({kind, std::move(text)});
}

void Findings::fact_of_ranks(std::string_view name, std::span<const std::string> values) {
  fact(name, by_rank(values));
}

void Findings::equal_fact(std::string_view name, std::span<const std::string> values,
                          std::string_view advice) {
  fact_of_ranks(name, values);
  if (std::ranges::all_of(values, [&](const auto& value) { return value == values.front(); })) {
    return;
  }
  problem(base::ErrorKind::usage, fmt::format("{} differs between ranks: {}", name, advice));
}

void Findings::require_none() const {
  if (problems_.empty()) return;
  const Problem& first = problems_.front();
  base::fail(first.kind, "the doctor found {} problem{}, the first: {}", problems_.size(),
             problems_.size() == 1 ? "" : "s", first.text);
}

}  // namespace dtrain::commands::doctor
