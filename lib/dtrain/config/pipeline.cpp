#include "dtrain/config/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

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

std::optional<std::vector<std::int64_t>> parse_pp_split(std::string_view text) {
  std::vector<std::int64_t> counts;
  if (text.empty()) return counts;
  while (true) {
    const std::size_t comma = text.find(',');
    const auto count = parse_count(text.substr(0, comma));
    if (!count) return std::nullopt;
    counts.push_back(*count);
    if (comma == std::string_view::npos) return counts;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace dtrain::config
