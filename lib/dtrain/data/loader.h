// Prefetches training batches in a thread; selects the sequences of an evaluation.
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

/// Options of a Loader.
struct LoaderOptions {
  std::int64_t microbatch = 1;           ///< sequences per rank and backward pass
  MicrobatchAssignment assignment = {};  ///< this rank's microbatches
  std::uint64_t seed = 0;                ///< sample-order seed
  std::int64_t start_position = 0;  ///< samples consumed before the first batch, over all ranks
};

/// Iterates over global batches and returns this rank's part of each. Microbatch m of the global
/// batch at `position` holds samples [position + m * microbatch, position + (m + 1) * microbatch).
/// A background thread prefetches two global batches. The destructor stops it, after at most one
/// more microbatch.
///
/// Throws:  next() rethrows the error of the prefetch thread, such as Error{data}, on this and
///          every later call.
/// Threads: one caller.
class Loader {
 public:
  Loader(Mixture samples, const LoaderOptions& options);
  /// Returns the peak bytes of a rank's batches: the current step's, the prefetched ones, and the
  /// one being read.
  [[nodiscard]] static std::int64_t bytes(const LoaderOptions& options, std::int64_t seq_len);
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;
  /// Returns this rank's microbatches of the next global batch, in order, and advances position()
  /// by the global batch size.
  [[nodiscard]] std::vector<Batch> next();

  /// Samples consumed by all ranks so far; a Loader with this start_position continues from here.
  [[nodiscard]] std::int64_t position() const noexcept { return position_; }

 private:
  void read_ahead(const std::stop_token& stop);
  // Copies the next sample after `consumed` samples. Each source has its own epochs.
  void copy(std::int64_t consumed, std::span<std::int64_t> inputs,
            std::span<std::int64_t> targets) const;

  Mixture samples_;
  SourceOrder source_order_;
  std::vector<SampleOrder> sample_orders_;  // one per source
  LoaderOptions options_;
  std::int64_t global_batch_;
  std::int64_t position_;

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::vector<Batch>> ready_;  // guarded by mutex_
  std::exception_ptr failure_;            // guarded by mutex_
  std::jthread thread_;  // last member: stopped and joined before the others are destroyed
};

/// Selects the sequences of an evaluation: `count` evenly spaced samples, or all samples if there
/// are fewer. Sequence j is sample floor(j * samples.size() / count).
///
/// Threads: any number of readers.
class EvaluationSequences {
 public:
  EvaluationSequences(Samples samples, std::int64_t count);

  /// Number of sequences.
  [[nodiscard]] std::int64_t size() const noexcept { return count_; }
  /// Tokens per sequence.
  [[nodiscard]] std::int64_t length() const noexcept { return samples_.seq_len(); }
  [[nodiscard]] std::int64_t tokens() const noexcept { return count_ * length(); }
  /// Returns the sample index of sequence `number` < size().
  [[nodiscard]] std::int64_t sample(std::int64_t number) const;
  /// Reads sequences [first, first + count), all below size().
  ///
  /// Throws: Error{data} as TokenFile::copy.
  [[nodiscard]] Batch read(std::int64_t first, std::int64_t count) const;

 private:
  Samples samples_;
  std::int64_t count_;
};

}  // namespace dtrain::data
