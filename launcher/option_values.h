// Parses the values of dtrun's options, fills in missing options from SLURM, and gives advice on
// options that only other launchers have.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/host/slurm_step.h"
#include "dtrain/base/text/number.h"
#include "launcher/options.h"

namespace launcher {

/// Limits of dtrun's options.
inline constexpr int kMaxRanks = 4096;
inline constexpr int kMaxNodes = 4096;
inline constexpr double kLeastTimeout = 0.1;  // seconds

// The functions below throw Error{usage} naming the option, the value found and what to give.

template <typename Number>
[[nodiscard]] Number number_in(std::string_view name, std::string_view text, Number low,
                               Number high) {
  const auto value = dtrain::base::number_in<Number>(text);
  if (!value || !(*value >= low) || !(*value <= high)) {
    dtrain::base::fail(dtrain::base::ErrorKind::usage,
                       "{}: found '{}'; give a number from {} to {}", name, text, low, high);
  }
  return *value;
}

/// Advice on an option that other launchers have and dtrun lacks; empty if `name`, with its dashes,
/// is no such option.
[[nodiscard]] std::string_view advice_on_foreign(std::string_view name);

/// A number of ranks, or auto, gpu or cpu.
[[nodiscard]] int num_ranks_from(std::string_view name, std::string_view value);
/// Accepts torchrun's MIN:MAX if both are the same number.
[[nodiscard]] int num_nodes_from(std::string_view name, std::string_view value);
[[nodiscard]] StreamChoice streams_from(std::string_view name, std::string_view value);
[[nodiscard]] Bind bind_from(std::string_view name, std::string_view value);
/// Bytes.
[[nodiscard]] std::int64_t size_from(std::string_view name, std::string_view value);
/// low: the smallest value, in seconds. The largest is a day.
[[nodiscard]] std::chrono::duration<double> seconds_from(std::string_view name,
                                                         std::string_view value, double low);
/// 0: never.
[[nodiscard]] std::chrono::duration<double> hang_timeout_from(std::string_view name,
                                                              std::string_view value);

/// If srun started one dtrun per node, fills in the number of nodes, this node's rank and the
/// rendezvous address, unless the command line gives the number of nodes; and without -n one rank
/// for each of the step's GPUs on this node or, without GPUs, for each of its cores. given: the
/// options of the command line; receives those that were filled in.
///
/// Throws: Error{usage} for several tasks per node, or if the first node's address is unknown.
void take_from_slurm(const dtrain::base::SlurmStep& step, Options& options,
                     std::vector<std::string>& given);

}  // namespace launcher
