#include "dtrain/planner/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <variant>

#include "dtrain/base/error.h"
#include "dtrain/config/open_layout.h"
#include "dtrain/metrics/format.h"

namespace dtrain::planner {
namespace {

using Outcome = std::variant<Choice, Misfit>;

// All flags but the last one, which is the microbatch.
std::string without_microbatch(const Layout& layout) {
  Layout rest = layout;
  rest.flags.pop_back();
  return fmt::format("{} {}", layout.ranks, rest.text());
}

class Planner {
 public:
  Planner(const config::Config& asked, const Site& site, const Rates& rates,
          const std::function<std::int64_t(std::int64_t)>& memory)
      : asked_(asked), site_(site), rates_(rates), memory_(memory) {}

  [[nodiscard]] Outcome look_at(const Layout& layout) const {
    try {
      const config::Config config = with_layout(asked_, layout, site_);
      const std::int64_t limit = memory_(std::min(layout.ranks, site_.ranks_per_node));
      // What does not fit is not run.
      Prediction found = predict(config, site_, rates_.without_runs());
      if (found.memory > limit) {
        return Misfit{
            layout,
            fmt::format("takes {} per rank, more than the {} that a rank may take",
                        metrics::format_bytes(found.memory), metrics::format_bytes(limit)),
            /*lacks_memory=*/true};
      }
      if (rates_.measured != nullptr) found = predict(config, site_, rates_);
      return Choice{layout, config, found};
    } catch (const base::Error& error) {
      if (error.kind() != base::ErrorKind::usage) throw;
      return Misfit{layout, error.what()};
    }
  }

 private:
  const config::Config& asked_;
  const Site& site_;
  const Rates& rates_;
  const std::function<std::int64_t(std::int64_t)>& memory_;
};

}  // namespace

Ranking rank_layouts(const config::Config& asked, const Site& site, const Rates& rates,
                     const std::function<std::int64_t(std::int64_t)>& memory,
                     const std::function<void(const std::string&)>& progress) {
  const std::vector<std::int64_t> all_ranks = ranks_to_plan(asked, site.cores);
  config::Config open = asked;
  config::resolve_open_batch(open.batch, std::ranges::max(all_ranks));
  const Planner planner(open, site, rates, memory);
  std::map<std::string, Choice> best;  // by all flags but the microbatch
  std::map<std::string, Misfit> misfits;
  for (const std::int64_t ranks : all_ranks) {
    for (const Layout& layout : layouts_of(open, ranks, site)) {
      const std::string key = without_microbatch(layout);
      // A larger microbatch takes more.
      const auto before = misfits.find(key);
      if (before != misfits.end() && before->second.lacks_memory) continue;
      progress(fmt::format("{} ranks: {}", ranks, layout.text()));
      Outcome outcome = planner.look_at(layout);
      if (auto* misfit = std::get_if<Misfit>(&outcome)) {
        misfits.insert_or_assign(key, std::move(*misfit));
        continue;
      }
      Choice& choice = std::get<Choice>(outcome);
      const auto found = best.find(key);
      if (found == best.end() || choice.tokens_per_second() > found->second.tokens_per_second()) {
        best.insert_or_assign(key, std::move(choice));
      }
    }
  }
  Ranking ranking;
  for (auto& [key, choice] : best) {
    misfits.erase(key);
    ranking.choices.push_back(std::move(choice));
  }
  for (auto& [key, misfit] : misfits) ranking.misfits.push_back(std::move(misfit));
  std::ranges::stable_sort(ranking.choices, [](const Choice& a, const Choice& b) {
    const double first = a.tokens_per_second();
    const double second = b.tokens_per_second();
    return first != second ? first > second : a.prediction.memory < b.prediction.memory;
  });
  return ranking;
}

}  // namespace dtrain::planner
