// The history on which a run's decisions depend (validation, spikes); saved in every checkpoint.
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
  /// evaluation_data of the sequences; empty: an older dtrain did not say, or nothing is evaluated.
  std::string data = {};
  std::int64_t best_step = -1;  ///< negative: there was no evaluation
  double best_loss = std::numeric_limits<double>::infinity();
  std::int64_t last_step = -1;
  std::int64_t num_since_best = 0;  ///< evaluations in a row whose loss was no new lowest one

  /// Takes the loss of a step, once: a second evaluation of it changes nothing. Returns whether it
  /// is the lowest so far.
  bool note(std::int64_t step, double loss);

  bool operator==(const ValidationRecord&) const = default;
};

/// The level of a figure, in natural logarithms: moments in which older steps count less and less.
struct FigureLevel {
  std::int64_t num_steps = 0;  ///< with a figure above 0
  double mean = 0;
  double variance = 0;
  std::int64_t num_beyond = 0;  ///< last steps in a row above the limit; negative: far below
  double mean_beyond = 0;       ///< of these steps

  bool operator==(const FigureLevel&) const = default;
};

/// The statistics of a SpikeDetector.
struct SpikeStatistics {
  FigureLevel loss = {};
  FigureLevel grad_norm = {};

  bool operator==(const SpikeStatistics&) const = default;
};

struct RunHistory {
  /// The step after which checkpoint.new_data began the data; 0: the run began with it.
  std::int64_t data_step = 0;
  ValidationRecord validation = {};
  SpikeStatistics spikes = {};

  bool operator==(const RunHistory&) const = default;
};

/// A JSON object in which numbers keep every bit; "{}" where nothing has happened.
[[nodiscard]] std::string to_text(const RunHistory& history);

/// The inverse of to_text. Spike statistics of an older dtrain, moments of the figures themselves,
/// become those of the logarithms of log-normal figures that have these moments.
///
/// path:   of the checkpoint, for messages.
/// Throws: Error{checkpoint} naming the checkpoint if the text is none of to_text's.
[[nodiscard]] RunHistory parse_history(const std::string& text, const std::string& path);

/// Identifies the sequences of a run's evaluations, whose losses can be compared; empty without
/// validation, and where an older dtrain kept no checksum of the data.
[[nodiscard]] std::string evaluation_data(const data::DataIdentity& data,
                                          const config::Config& config);

/// parse_history of a checkpoint; where an older dtrain did not say which sequences it evaluated,
/// those of the run that wrote the checkpoint.
///
/// saved:  that run's configuration.
/// Throws: as parse_history.
[[nodiscard]] RunHistory history_of(const checkpoint::format::Manifest& manifest,
                                    const config::Config& saved, const std::string& path);

}  // namespace dtrain::train
