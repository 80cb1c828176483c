// Checks --schedule-pp and --pp-split against the stages and levels that there are.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "dtrain/config/values.h"

namespace dtrain::config {

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

/// Every part of the model has at least one level. With a split, which is not empty, part i has
/// split[i] of them.
///
/// Throws: Error{usage} naming --pp, and --levels or --pp-split.
void require_levels_fit(const PipelineSetting& setting, std::int64_t stages,
                        const std::vector<std::int64_t>& split, std::int64_t num_levels);

}  // namespace dtrain::config
