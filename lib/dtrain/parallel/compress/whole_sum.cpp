#include "dtrain/parallel/compress/whole_sum.h"

namespace dtrain::parallel {

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

}  // namespace dtrain::parallel
