#include "dtrain/config/pipeline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "dtrain/base/error.h"

namespace dtrain::config {
namespace {

using base::ErrorKind;
using base::fail;

constexpr std::string_view kInterleaved = "interleaved:";

// A whole number that fills the text.
std::optional<std::int64_t> parse_count(std::string_view text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end || value < 0) return std::nullopt;
  return value;
}

}  // namespace

std::string PipelineSetting::text() const {
  if (kind == PipelineKind::gpipe) return "gpipe";
  if (kind == PipelineKind::one_f_one_b) return "1f1b";
  return fmt::format("{}{}", kInterleaved, chunks);
}

std::optional<PipelineSetting> parse_schedule_pp(std::string_view text) {
  if (text == "gpipe") return PipelineSetting{.kind = PipelineKind::gpipe};
  if (text == "1f1b") return PipelineSetting{.kind = PipelineKind::one_f_one_b};
  if (!text.starts_with(kInterleaved)) return std::nullopt;
  const auto chunks = parse_count(text.substr(kInterleaved.size()));
  if (!chunks || *chunks < 2) return std::nullopt;
  return PipelineSetting{.kind = PipelineKind::interleaved, .chunks = *chunks};
}

PipelineSetting require_schedule_pp(std::string_view text) {
  if (const auto setting = parse_schedule_pp(text)) return *setting;
  fail(ErrorKind::usage,
       "--schedule-pp: found \"{}\", but it must be gpipe, 1f1b or interleaved:V (parts of the "
       "model on each stage, at least 2)",
       text);
}

void require_schedule_fits(const PipelineSetting& setting, const PipelineSize& size,
                           std::string_view microbatches_flag) {
  if (setting.kind != PipelineKind::interleaved) return;
  if (size.stages == 1) {
    fail(ErrorKind::usage,
         "--schedule-pp {} needs several stages, but --pp is 1: use --schedule-pp 1f1b, or more "
         "stages",
         setting.text());
  }
  const std::int64_t below = size.microbatches / size.stages * size.stages;
  if (below == size.microbatches) return;
  const std::string fitting = below == 0 ? fmt::format("{}", size.stages)
                                         : fmt::format("{} or {}", below, below + size.stages);
  fail(ErrorKind::usage,
       "--schedule-pp {} runs microbatches in groups of as many as there are stages (--pp {}), but "
       "{} is {}: use {}, or another schedule",
       setting.text(), size.stages, microbatches_flag, size.microbatches, fitting);
}

std::vector<std::int64_t> require_pp_split(std::string_view text) {
  std::vector<std::int64_t> counts;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const auto count = parse_count(rest.substr(0, comma));
    if (!count || comma + 1 == rest.size()) {
      fail(ErrorKind::usage,
           "--pp-split: found \"{}\", but it must be the levels of each part, as in 3,5,4", text);
    }
    counts.push_back(*count);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return counts;
}

void require_levels_fit(const PipelineSetting& setting, std::int64_t stages,
                        const std::vector<std::int64_t>& split, std::int64_t num_levels) {
  const std::int64_t parts = stages * setting.chunks;
  std::string cut = fmt::format("--pp {}", stages);
  if (setting.chunks > 1) cut += fmt::format(" with --schedule-pp {}", setting.text());
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
