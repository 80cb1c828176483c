// What --schedule-pp and --pp-split mean.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::config {

/// In which order a stage runs the forward and backward passes of its microbatches.
enum class PipelineKind {
  gpipe,        ///< all forwards, then all backwards
  one_f_one_b,  ///< backwards as early as they can be: few microbatches in flight
  interleaved,  ///< the same with several small parts of the model on each stage
};

/// A value of --schedule-pp.
struct PipelineSetting {
  PipelineKind kind = PipelineKind::one_f_one_b;
  std::int64_t chunks = 1;  ///< parts of the model on each stage; above 1 where interleaved

  /// As --schedule-pp takes it: "1f1b".
  [[nodiscard]] std::string text() const;
  bool operator==(const PipelineSetting&) const = default;
};

/// "gpipe", "1f1b", "interleaved:V" (V at least 2). Nothing for other texts.
[[nodiscard]] std::optional<PipelineSetting> parse_schedule_pp(std::string_view text);

/// Throws: Error{usage} naming --schedule-pp for other texts than these.
[[nodiscard]] PipelineSetting require_schedule_pp(std::string_view text);

/// How many stages there are, and how many microbatches each of them runs in a step.
struct PipelineSize {
  std::int64_t stages = 1;
  std::int64_t microbatches = 1;
};

/// Interleaved stages run their microbatches in groups of as many as there are stages.
///
/// microbatches_flag: the setting that gave their number, for the message.
/// Throws: Error{usage} naming --schedule-pp and what it does not go with.
void require_schedule_fits(const PipelineSetting& setting, const PipelineSize& size,
                           std::string_view microbatches_flag);

/// The numbers of "3,5,4"; empty for "".
///
/// Throws: Error{usage} naming --pp-split for other texts.
[[nodiscard]] std::vector<std::int64_t> require_pp_split(std::string_view text);

/// Every part of the model has at least one level. With a split, which is not empty, part i has
/// split[i] of them.
///
/// Throws: Error{usage} naming --pp, and --levels or --pp-split.
void require_levels_fit(const PipelineSetting& setting, std::int64_t stages,
                        const std::vector<std::int64_t>& split, std::int64_t num_levels);

}  // namespace dtrain::config
