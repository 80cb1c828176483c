// Reads batches for training ahead in a thread; chooses the sequences of an evaluation.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <span>
#include <stop_token>
#include <thread>
#include <vector>

#include "dtrain/data/batch.h"
#include "dtrain/data/split.h"

namespace dtrain::data {

struct LoaderOptions {
  std::int64_t microbatch = 1;           ///< sequences per rank and backward pass
  MicrobatchAssignment assignment = {};  ///< which of them are this rank's
  std::uint64_t seed = 0;                ///< of the sample order
  std::int64_t start_position = 0;  ///< samples consumed before the first batch, over all ranks
};

/// Serves this rank's part of one global batch after another. Global microbatch m holds the samples
/// [position + m * microbatch, + microbatch). Two global batches
/// are read ahead by a thread of its own, which destruction ends within the time of reading one
/// microbatch.
///
/// Throws:  next(): what the thread met, Error{data} for one, at this and every later call.
/// Threads: one caller.
class Loader {
 public:
  Loader(Mixture samples, const LoaderOptions& options);
  /// Returns the bytes of the batches that a rank has at once: the step's, those that are ready,
  /// and the one that waits to be.
  [[nodiscard]] static std::int64_t bytes(const LoaderOptions& options, std::int64_t seq_len);
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;
  /// This rank's microbatches of the next global batch, in order; the position moves on
  /// by the global batch.
  [[nodiscard]] std::vector<Batch> next();

  /// Samples consumed by all ranks so far: what a Loader needs to go on from here.
  [[nodiscard]] std::int64_t position() const noexcept { return position_; }

 private:
  void read_ahead(const std::stop_token& stop);
  // The sample that is read after `consumed` were. Each source has its own epochs.
  void copy(std::int64_t consumed, std::span<std::int64_t> inputs,
            std::span<std::int64_t> targets) const;

  Mixture samples_;
  SourceOrder turns_;
  std::vector<SampleOrder> orders_;  // of each source
  LoaderOptions options_;
  std::int64_t global_batch_;
  std::int64_t position_;

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::vector<Batch>> ready_;  // guarded by mutex_
  std::exception_ptr failure_;            // guarded by mutex_
  std::jthread thread_;  // last, so that it is stopped and joined before the rest goes
};

/// The sequences that an evaluation reads: `count` samples of `samples`, or all if there are fewer,
/// spread evenly: sequence j is sample floor(j * samples.size() / count).
///
/// Threads: any number of readers.
class EvaluationSequences {
 public:
  EvaluationSequences(Samples samples, std::int64_t count);

  /// Number of sequences.
  [[nodiscard]] std::int64_t size() const noexcept { return count_; }
  /// Tokens of each.
  [[nodiscard]] std::int64_t length() const noexcept { return samples_.seq_len(); }
  [[nodiscard]] std::int64_t tokens() const noexcept { return count_ * length(); }
  /// Which sample sequence `number` < size() is.
  [[nodiscard]] std::int64_t sample(std::int64_t number) const;
  /// Sequences [first, first + count), all below size().
  ///
  /// Throws: Error{data} as TokenFile::copy.
  [[nodiscard]] Batch read(std::int64_t first, std::int64_t count) const;

 private:
  Samples samples_;
  std::int64_t count_;
};

}  // namespace dtrain::data
