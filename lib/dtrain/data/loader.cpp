#include "dtrain/data/loader.h"

#include <algorithm>
#include <utility>

#include "dtrain/base/error.h"

namespace dtrain::data {

namespace {

constexpr std::size_t kGlobalBatchesAhead = 2;

/// Builds a batch of samples [first, first + count); copy(sample, inputs, targets) fills one row.
template <typename Copy>
Batch read_batch(std::int64_t seq_len, std::int64_t first, std::int64_t count, Copy copy) {
  const auto length = static_cast<std::size_t>(seq_len);
  const auto rows = static_cast<std::size_t>(count);
  Batch batch{.inputs = std::vector<std::int64_t>(rows * length),
              .targets = std::vector<std::int64_t>(rows * length),
              .first_sample = first,
              .num_sequences = count,
              .length = seq_len};
  const std::span inputs(batch.inputs);
  const std::span targets(batch.targets);
  for (std::size_t row = 0; row < rows; ++row) {
    copy(first + static_cast<std::int64_t>(row), inputs.subspan(row * length, length),
         targets.subspan(row * length, length));
  }
  return batch;
}

}  // namespace

Loader::Loader(Mixture samples, const LoaderOptions& options)
    : samples_(std::move(samples)),
      source_order_(samples_.order()),
      options_(options),
      global_batch_(options.microbatch * options.assignment.num_microbatches()),
      position_(options.start_position) {
  const MicrobatchAssignment& assignment = options.assignment;
  DTRAIN_CHECK(options.microbatch >= 1 && assignment.grad_accum >= 1 &&
               options.start_position >= 0);
  DTRAIN_CHECK(0 <= assignment.rank && assignment.rank < assignment.num_ranks, "dp rank {} of {}",
               assignment.rank, assignment.num_ranks);
  for (const Mixture::Source& source : samples_.sources()) {
    sample_orders_.emplace_back(source.samples.size(), options.seed);
  }
  thread_ = std::jthread([this](const std::stop_token& stop) { read_ahead(stop); });
}

std::int64_t Loader::bytes(const LoaderOptions& options, std::int64_t seq_len) {
  constexpr std::int64_t kTokenBytes = 2 * sizeof(std::int64_t);  // its id and its target
  const std::int64_t tokens = options.microbatch * options.assignment.grad_accum * seq_len;
  return (std::int64_t{kGlobalBatchesAhead} + 2) * tokens * kTokenBytes;
}

std::vector<Batch> Loader::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !ready_.empty() || failure_ != nullptr; });
  // Batches read before the failure are still valid.
  if (ready_.empty()) std::rethrow_exception(failure_);
  std::vector<Batch> batches = std::move(ready_.front());
  ready_.pop_front();
  position_ += global_batch_;
  changed_.notify_all();
  return batches;
}

void Loader::read_ahead(const std::stop_token& stop) {
  const MicrobatchAssignment& assignment = options_.assignment;
  std::int64_t first = options_.start_position;
  try {
    for (;; first += global_batch_) {
      std::vector<Batch> batches;
      for (const auto id : base::first_ids<MicrobatchId>(assignment.grad_accum)) {
        if (stop.stop_requested()) break;
        batches.push_back(read_batch(
            samples_.seq_len(), first + assignment.number_of(id) * options_.microbatch,
            options_.microbatch, [this](std::int64_t consumed, auto inputs, auto targets) {
              copy(consumed, inputs, targets);
            }));
      }
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [this] { return ready_.size() < kGlobalBatchesAhead; }) ||
          stop.stop_requested()) {
        return;
      }
      ready_.push_back(std::move(batches));
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    changed_.notify_all();
  }
}

void Loader::copy(std::int64_t consumed, std::span<std::int64_t> inputs,
                  std::span<std::int64_t> targets) const {
  const SourceOrder::Position position = sample_orders_.size() == 1
                                             ? SourceOrder::Position{.consumed = consumed}
                                             : source_order_(consumed);
  const SampleOrder& order = sample_orders_[position.source];
  samples_.sources()[position.source].samples.copy(
      order(position.consumed), inputs, targets,
      order.shift(position.consumed, samples_.seq_len()));
}

EvaluationSequences::EvaluationSequences(Samples samples, std::int64_t count)
    : samples_(std::move(samples)), count_(std::min(count, samples_.size())) {
  DTRAIN_CHECK(count >= 1, "{} sequences", count);
}

// number * size / count without 64-bit overflow: count is at most 2^31 if it is below the size.
std::int64_t EvaluationSequences::sample(std::int64_t number) const {
  DTRAIN_CHECK(0 <= number && number < count_, "sequence {} of {}", number, count_);
  return number * (samples_.size() / count_) + number * (samples_.size() % count_) / count_;
}

Batch EvaluationSequences::read(std::int64_t first, std::int64_t count) const {
  return read_batch(samples_.seq_len(), first, count,
                    [this](std::int64_t number, auto inputs, auto targets) {
                      samples_.copy(sample(number), inputs, targets);
                    });
}

}  // namespace dtrain::data
