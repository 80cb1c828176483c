#include "dtrain/parallel/compress/rank_sum.h"

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

std::unique_ptr<param::Arena> residual_arena(const RankSumSetup& setup,
                                             const param::ArenaAllocator& allocate) {
  return std::make_unique<param::Arena>(
      param::Arena::of_trained_shard(setup.layout, setup.shard, setup.dtype, allocate));
}

}  // namespace

std::shared_ptr<const GradientCodec> travel_in(at::ScalarType dtype) {
  return std::make_shared<DtypeCodec>(dtype);
}

void WholeSum::begin(const at::Tensor& gradients) {
  if (group_.size() == 1) return;
  const at::Tensor sent = codec_->encode(gradients);
  travels_.push_back({gradients, sent, group_.all_reduce(sent)});
}

void WholeSum::finish() {
  for (Travel& travel : travels_) {
    travel.work.wait();
    if (codec_->copies(travel.gradients.scalar_type())) {
      codec_->decode(travel.sent, travel.gradients);
    }
  }
  travels_.clear();
}

std::unique_ptr<RankSum> make_rank_sum(const RankSumSetup& setup, comm::ProcessGroup& group,
                                       const param::ArenaAllocator& allocate) {
  if (setup.compression.scheme.is_none() || group.size() == 1) {
    return std::make_unique<WholeSum>(group, setup.codec);
  }
  return std::make_unique<CompressedSum>(setup, group, allocate);
}

CompressedSum::CompressedSum(const RankSumSetup& setup, comm::ProcessGroup& group,
                             const param::ArenaAllocator& allocate)
    : group_(group),
      whole_(group, setup.codec),
      residual_(residual_arena(setup, allocate)),
      next_(residual_arena(setup, allocate)),
      waits_in_begin_(setup.compression.scheme.kind == config::Compression::Kind::power_sgd) {
  for (const GradientPart& place : gradient_parts(setup.layout, setup.shard, setup.compression)) {
    whole_bytes_ += setup.codec->sent_bytes(place.size());
    parts_.push_back({.place = place, .scheme = nullptr});
    if (!place.is_compressed || group.size() == 1) continue;
    parts_.back().scheme =
        make_scheme(place, setup.compression.scheme, group, setup.dtype, allocate);
  }
}

SchemeCosts CompressedSum::costs(const RankSumSetup& setup, std::int64_t num_ranks) {
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
    all.carried += costs.carried;
  }
  return all;
}

MemoryPlan CompressedSum::memory(const RankSumSetup& setup, std::int64_t num_ranks) {
  const std::int64_t arena = param::Arena::bytes_of_trained_shard(setup.layout, setup.dtype);
  const SchemeCosts parts = costs(setup, num_ranks);
  return {.gradients = 2 * arena,
          .buffers = parts.buffers,
          .travelling = parts.work,
          .state = parts.carried,
          .carried = arena};
}

void CompressedSum::begin_step(const StepTerms& terms) {
  terms_ = terms;
  travels_.clear();
  paying_.clear();
  if (!std::exchange(has_begun_, true)) {  // a checkpoint may have brought residuals
    for (Part& part : parts_) {
      part.owes = residual_->slice(part.place.range).ne(0).any().item<bool>();
    }
  }
  whole_.begin_step(terms);
  report_ = {};
  bytes_before_ = group_.calls().counters().bytes_sent;
}

void CompressedSum::begin(param::ElementRange range, const at::Tensor& gradients) {
  const at::NoGradGuard no_grad;
  const auto first = std::ranges::find_if(
      parts_, [&](const Part& part) { return part.place.range.end <= range.end; });
  for (auto part = first; part != parts_.end() && part->place.range.begin >= range.begin; ++part) {
    const at::Tensor own =
        gradients.narrow(0, part->place.range.begin - range.begin, part->place.size());
    if (part->scheme == nullptr || !terms_.compresses) {
      begin_whole(*part, own);
    } else {
      begin_part(*part, own);
    }
  }
}

void CompressedSum::begin_whole(Part& part, const at::Tensor& gradients) {
  if (part.owes) {
    gradients.add_(residual_->slice(part.place.range), terms_.loss_scale);
    paying_.push_back(&part);
  }
  whole_.begin(gradients);
}

// The part before sends its second message while this one's first is on its way, at the same place
// on all ranks.
void CompressedSum::begin_part(const Part& part, const at::Tensor& gradients) {
  const auto start = base::Clock::now();
  const double waited = group_.calls().counters().wait_seconds;
  at::Tensor values = next_->slice(part.place.range);
  at::add_out(values, gradients, residual_->slice(part.place.range), terms_.loss_scale);
  part.scheme->begin(values);
  if (!travels_.empty()) travels_.back().scheme.advance();
  travels_.push_back({.scheme = *part.scheme, .gradients = gradients, .residual = values});
  report_.seconds += busy_seconds(start, waited);
}

double CompressedSum::busy_seconds(base::Clock::time_point since, double waited_before) const {
  return base::seconds_since(since) - (group_.calls().counters().wait_seconds - waited_before);
}

void CompressedSum::finish() {
  const at::NoGradGuard no_grad;
  whole_.finish();
  if (travels_.empty()) return;
  const auto start = base::Clock::now();
  const double waited = group_.calls().counters().wait_seconds;
  travels_.back().scheme.advance();
  for (const Travel& travel : travels_) {
    travel.scheme.finish(travel.gradients);
    if (terms_.loss_scale != 1) travel.residual.div_(terms_.loss_scale);
  }
  report_.seconds += busy_seconds(start, waited);
}

void CompressedSum::end_step(bool has_updated) {
  report_.bytes_sent = group_.calls().counters().bytes_sent - bytes_before_;
  report_.bytes_whole = bytes_in_ring(whole_bytes_, group_.size());
  if (!has_updated) return;
  for (Part* part : paying_) {
    residual_->slice(part->place.range).zero_();
    part->owes = false;
  }
  if (travels_.empty()) return;
  std::swap(residual_, next_);
  for (const Travel& travel : travels_) travel.scheme.keep();
}

Carried CompressedSum::carried() const {
  Carried carried{.residuals = residual_.get()};
  for (const Part& part : parts_) {
    const at::Tensor factor = part.scheme ? part.scheme->factor() : at::Tensor();
    if (factor.defined()) carried.factors.push_back({part.place.id, part.place.range, factor});
  }
  return carried;
}

std::optional<CompressionReport> CompressedSum::report() const {
  const auto start = base::Clock::now();
  CompressionReport report = report_;
  report.residual_norm = optim::norm_of(residual_->flat()).item<double>();
  report.seconds += base::seconds_since(start);
  return report;
}

}  // namespace dtrain::parallel
