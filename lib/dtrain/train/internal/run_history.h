// The state of early stopping, best-checkpoint tracking, spike detection and --max-skipped, saved
// in checkpoints.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "dtrain/checkpoint/format/manifest.h"
#include "dtrain/config/config.h"
#include "dtrain/data/split.h"

namespace dtrain::train {

/// The evaluations of a run so far, all of the same sequences.
struct ValidationRecord {
  /// evaluation_data of the sequences; empty without validation, and in checkpoints of older
  /// versions.
  std::string data = {};
  std::int64_t best_step = -1;  ///< negative before the first evaluation
  double best_loss = std::numeric_limits<double>::infinity();
  std::int64_t last_step = -1;
  std::int64_t num_since_best = 0;  ///< evaluations since the lowest loss

  /// Records the loss of a step; no-op if the step was already evaluated. Returns true if the loss
  /// is the lowest so far.
  bool note(std::int64_t step, double loss);

  bool operator==(const ValidationRecord&) const = default;
};

/// Exponential moving mean and variance of the natural logarithm of a figure: the loss or the
/// gradient norm.
struct FigureLevel {
  std::int64_t num_steps = 0;  ///< steps whose figure was above 0
  double mean = 0;
  double variance = 0;
  std::int64_t num_beyond = 0;  ///< latest consecutive steps above the limit; negative: below it
  double mean_beyond = 0;       ///< mean of these steps

  bool operator==(const FigureLevel&) const = default;
};

/// The statistics of a SpikeDetector.
struct SpikeStatistics {
  FigureLevel loss = {};
  FigureLevel grad_norm = {};

  bool operator==(const SpikeStatistics&) const = default;
};

struct RunHistory {
  /// The step after which the run switched to its current data (checkpoint.new_data); 0: it began
  /// with this data.
  std::int64_t data_step = 0;
  ValidationRecord validation = {};
  SpikeStatistics spikes = {};
  std::int64_t skipped_in_a_row = 0;  ///< latest consecutive steps whose update was skipped

  bool operator==(const RunHistory&) const = default;
};

/// Returns a JSON object in which numbers keep every bit; "{}" for an empty history.
[[nodiscard]] std::string to_text(const RunHistory& history);

/// The inverse of to_text. Older versions saved moments of the figures instead of their logarithms;
/// converts these, assuming log-normal figures.
///
/// path:   the checkpoint's path, for messages.
/// Throws: Error{checkpoint} naming the checkpoint if the text is not from to_text.
[[nodiscard]] RunHistory parse_history(const std::string& text, const std::string& path);

/// Returns a text that identifies the evaluated sequences: losses with equal texts can be compared.
/// Empty without validation, and if an older version saved no checksum of the data.
[[nodiscard]] std::string evaluation_data(const data::DataIdentity& data,
                                          const config::Config& config);

/// Returns the history of a checkpoint. If an older version did not save ValidationRecord::data,
/// derives it from `saved`.
///
/// saved:  the configuration of the run that wrote the checkpoint.
/// Throws: as parse_history.
[[nodiscard]] RunHistory history_of(const checkpoint::format::Manifest& manifest,
                                    const config::Config& saved, const std::string& path);

}  // namespace dtrain::train
