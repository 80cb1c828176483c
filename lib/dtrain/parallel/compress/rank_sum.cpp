#include "dtrain/parallel/compress/rank_sum.h"

#include "dtrain/parallel/compress/compressed_sum.h"

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

}  // namespace dtrain::parallel
