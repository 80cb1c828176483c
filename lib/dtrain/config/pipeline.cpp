#include "dtrain/config/pipeline.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "dtrain/base/error.h"

namespace dtrain::config {

using base::ErrorKind;
using base::fail;

void require_schedule_fits(const PipelineSetting& setting, const PipelineSize& size,
                           std::string_view microbatches_flag) {
  if (setting.kind != PipelineKind::interleaved) return;
  if (size.stages == 1) {
    fail(ErrorKind::usage,
         "--schedule-pp {} needs several stages, but --pp is 1: use --schedule-pp 1f1b, or more "
         "stages",
         setting);
  }
  const std::int64_t below = size.microbatches / size.stages * size.stages;
  if (below == size.microbatches) return;
  const std::string fitting = below == 0 ? fmt::format("{}", size.stages)
                                         : fmt::format("{} or {}", below, below + size.stages);
  fail(ErrorKind::usage,
       "--schedule-pp {} runs microbatches in groups of as many as there are stages (--pp {}), but "
       "{} is {}: use {}, or another schedule",
       setting, size.stages, microbatches_flag, size.microbatches, fitting);
}

void require_levels_fit(const PipelineSetting& setting, std::int64_t stages,
                        const std::vector<std::int64_t>& split, std::int64_t num_levels) {
  const std::int64_t parts = stages * setting.chunks;
  std::string cut = fmt::format("--pp {}", stages);
  if (setting.chunks > 1) cut += fmt::format(" with --schedule-pp {}", setting);
  if (parts > num_levels) {
    fail(ErrorKind::usage,
         "{} cuts the model into {} parts, but --levels {} leaves some of them without a level: "
         "lower one, or raise --levels",
         cut, parts, num_levels);
  }
  if (split.empty()) return;
  const std::string given = fmt::format("--pp-split {}", fmt::join(split, ","));
  if (static_cast<std::int64_t>(split.size()) != parts) {
    fail(ErrorKind::usage, "{} has {} part{}, but {} makes {}: give the levels of each part", given,
         split.size(), split.size() == 1 ? "" : "s", cut, parts);
  }
  const auto empty = std::find(split.begin(), split.end(), 0);
  if (empty != split.end()) {
    fail(ErrorKind::usage, "{}: part {} has no level: give it at least 1, or lower --pp {}", given,
         empty - split.begin(), stages);
  }
  const std::int64_t sum = std::accumulate(split.begin(), split.end(), std::int64_t{0});
  if (sum != num_levels) {
    fail(ErrorKind::usage, "{} has {} levels in all, but --levels is {}: change one of them", given,
         sum, num_levels);
  }
}

}  // namespace dtrain::config
