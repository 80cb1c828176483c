// What a run says of itself before its first step.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "dtrain/data/split.h"
#include "dtrain/train/job.h"

namespace dtrain::train {

/// Where a rank's memory goes, in bytes; computed from sizes, not measured.
struct MemoryPlan {
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;  ///< spare arenas of the tree order included
  std::int64_t optimizer = 0;
  std::int64_t units = 0;        ///< gathered, and whole gradients of single units, at the peak
  std::int64_t activations = 0;  ///< one microbatch, kept from forward to backward
  std::int64_t work = 0;         ///< temporaries of the largest block's backward
  std::int64_t checkpoint = 0;   ///< the copy that is written while training goes on

  [[nodiscard]] std::int64_t total() const {
    return parameters + gradients + optimizer + units + activations + work + checkpoint;
  }
};

[[nodiscard]] MemoryPlan plan_memory(Job& job);

/// Runs with equal text here have equal bits in every loss, norm and weight over the data axis, as
/// far as counts of ranks and microbatches are powers of two.
[[nodiscard]] std::string bitwise_class(const config::Config& config);

/// The table for people.
[[nodiscard]] std::string start_table(Job& job, const data::Split& split);

/// The fields of the "start" line of metrics.jsonl.
[[nodiscard]] nlohmann::ordered_json start_fields(Job& job, const data::Split& split);

}  // namespace dtrain::train
