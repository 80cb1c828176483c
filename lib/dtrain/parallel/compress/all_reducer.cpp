#include "dtrain/parallel/compress/all_reducer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>

#include <algorithm>
#include <utility>

#include "dtrain/optim/global_norm.h"

namespace dtrain::parallel {
namespace {

class DtypeCodec final : public GradientCodec {
 public:
  explicit DtypeCodec(at::ScalarType dtype) : dtype_(dtype) {}

  [[nodiscard]] at::ScalarType dtype() const override { return dtype_; }
  [[nodiscard]] bool copies(at::ScalarType held) const override { return held != dtype_; }
  [[nodiscard]] at::Tensor encode(const at::Tensor& gradients) const override {
    return gradients.to(dtype_);
  }
  void decode(const at::Tensor& sum, const at::Tensor& gradients) const override {
    gradients.copy_(sum);
  }

 private:
  at::ScalarType dtype_;
};

std::unique_ptr<param::Arena> residual_arena(const AllReducerSetup& setup,
                                             const param::ArenaAllocator& allocate) {
  return std::make_unique<param::Arena>(
      param::Arena::of_trained_shard(setup.layout, setup.shard, setup.dtype, allocate));
}

}  // namespace

std::shared_ptr<const GradientCodec> dtype_codec(at::ScalarType dtype) {
  return std::make_shared<DtypeCodec>(dtype);
}

void DenseAllReducer::begin(const at::Tensor& gradients) {
  if (group_.size() == 1) return;
  const at::Tensor sent = codec_->encode(gradients);
  in_flight_.push_back({gradients, sent, group_.all_reduce(sent)});
}

void DenseAllReducer::finish() {
  for (InFlightReduction& reduction : in_flight_) {
    reduction.work.wait();
    if (codec_->copies(reduction.gradients.scalar_type())) {
      codec_->decode(reduction.sent, reduction.gradients);
    }
  }
  in_flight_.clear();
}

std::unique_ptr<AllReducer> make_all_reducer(const AllReducerSetup& setup,
                                             comm::ProcessGroup& group,
                                             const param::ArenaAllocator& allocate) {
  if (setup.compression.scheme.is_none() || group.size() == 1) {
    return std::make_unique<DenseAllReducer>(group, setup.codec);
  }
  return std::make_unique<CompressedAllReducer>(setup, group, allocate);
}

CompressedAllReducer::CompressedAllReducer(const AllReducerSetup& setup, comm::ProcessGroup& group,
                                           const param::ArenaAllocator& allocate)
    : group_(group),
      dense_(group, setup.codec),
      residual_(residual_arena(setup, allocate)),
      next_(residual_arena(setup, allocate)),
      blocks_in_begin_(setup.compression.scheme.kind == config::Compression::Kind::power_sgd) {
  for (const GradientPart& place : gradient_parts(setup.layout, setup.shard, setup.compression)) {
    whole_bytes_ += setup.codec->sent_bytes(place.size());
    parts_.push_back({.place = place, .scheme = nullptr});
    if (!place.is_compressed || group.size() == 1) continue;
    parts_.back().scheme =
        make_scheme(place, setup.compression.scheme, group, setup.dtype, allocate);
  }
}

SchemeCosts CompressedAllReducer::costs(const AllReducerSetup& setup, std::int64_t num_ranks) {
  SchemeCosts all;
  for (const GradientPart& part : gradient_parts(setup.layout, setup.shard, setup.compression)) {
    const SchemeCosts costs =
        part.is_compressed
            ? scheme_costs(part, setup.compression.scheme, num_ranks, setup.dtype)
            : SchemeCosts{.sent = bytes_in_ring(setup.codec->sent_bytes(part.size()), num_ranks),
                          .calls = 1};
    all.buffers += costs.buffers;
    all.work = std::max(all.work, costs.work);
    all.sent += costs.sent;
    all.calls += costs.calls;
    all.factor += costs.factor;
  }
  return all;
}

MemoryPlan CompressedAllReducer::memory(const AllReducerSetup& setup, std::int64_t num_ranks) {
  const std::int64_t arena = param::Arena::bytes_of_trained_shard(setup.layout, setup.dtype);
  const SchemeCosts parts = costs(setup, num_ranks);
  return {.gradients = 2 * arena,
          .buffers = parts.buffers,
          .encoded_gradients = parts.work,
          .state = parts.factor,
          .residuals = arena};
}

void CompressedAllReducer::begin_step(const StepReduceOptions& options) {
  step_ = options;
  in_flight_.clear();
  flushed_.clear();
  if (!std::exchange(has_begun_, true)) {  // a checkpoint may have loaded residuals
    for (Part& part : parts_) {
      part.has_residual = residual_->slice(part.place.range).ne(0).any().item<bool>();
    }
  }
  dense_.begin_step(options);
  report_ = {};
  bytes_before_ = group_.calls().counters().bytes_sent;
}

void CompressedAllReducer::begin(param::ElementRange range, const at::Tensor& gradients) {
  const at::NoGradGuard no_grad;
  const auto first = std::ranges::find_if(
      parts_, [&](const Part& part) { return part.place.range.end <= range.end; });
  for (auto part = first; part != parts_.end() && part->place.range.begin >= range.begin; ++part) {
    const at::Tensor own =
        gradients.narrow(0, part->place.range.begin - range.begin, part->place.size());
    if (part->scheme == nullptr || !step_.compresses) {
      begin_dense(*part, own);
    } else {
      begin_part(*part, own);
    }
  }
}

void CompressedAllReducer::begin_dense(Part& part, const at::Tensor& gradients) {
  if (part.has_residual) {
    gradients.add_(residual_->slice(part.place.range), step_.loss_scale);
    flushed_.push_back(&part);
  }
  dense_.begin(gradients);
}

// The previous part sends its second message while this part's first one is in flight, in the same
// order on all ranks.
void CompressedAllReducer::begin_part(const Part& part, const at::Tensor& gradients) {
  const auto start = base::Clock::now();
  const double waited = group_.calls().counters().wait_seconds;
  at::Tensor values = next_->slice(part.place.range);
  at::add_out(values, gradients, residual_->slice(part.place.range), step_.loss_scale);
  part.scheme->begin(values);
  if (!in_flight_.empty()) in_flight_.back().scheme.advance();
  in_flight_.push_back({.scheme = *part.scheme, .gradients = gradients, .residual = values});
  report_.seconds += busy_seconds(start, waited);
}

double CompressedAllReducer::busy_seconds(base::Clock::time_point since,
                                          double waited_before) const {
  return base::seconds_since(since) - (group_.calls().counters().wait_seconds - waited_before);
}

void CompressedAllReducer::finish() {
  const at::NoGradGuard no_grad;
  dense_.finish();
  if (in_flight_.empty()) return;
  const auto start = base::Clock::now();
  const double waited = group_.calls().counters().wait_seconds;
  in_flight_.back().scheme.advance();
  for (const InFlightPart& part : in_flight_) {
    part.scheme.finish(part.gradients);
    if (step_.loss_scale != 1) part.residual.div_(step_.loss_scale);
  }
  report_.seconds += busy_seconds(start, waited);
}

void CompressedAllReducer::end_step(bool has_updated) {
  report_.bytes_sent = group_.calls().counters().bytes_sent - bytes_before_;
  report_.bytes_whole = bytes_in_ring(whole_bytes_, group_.size());
  if (!has_updated) return;
  for (Part* part : flushed_) {
    residual_->slice(part->place.range).zero_();
    part->has_residual = false;
  }
  if (in_flight_.empty()) return;
  std::swap(residual_, next_);
  for (const InFlightPart& part : in_flight_) part.scheme.commit();
}

ErrorFeedbackState CompressedAllReducer::error_feedback() const {
  ErrorFeedbackState state{.residuals = residual_.get()};
  for (const Part& part : parts_) {
    const at::Tensor factor = part.scheme ? part.scheme->factor() : at::Tensor();
    if (factor.defined()) state.factors.push_back({part.place.id, part.place.range, factor});
  }
  return state;
}

std::optional<CompressionReport> CompressedAllReducer::report() const {
  const auto start = base::Clock::now();
  CompressionReport report = report_;
  report.residual_norm = optim::norm_of(residual_->flat()).item<double>();
  report.seconds += base::seconds_since(start);
  return report;
}

}  // namespace dtrain::parallel
